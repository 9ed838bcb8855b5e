"""Are measurements and the cost model worth it? The search with both, without the one, and without the other.

    python -m experiments.bench search_loop
    python -m experiments.bench search_loop --machines cores:4,gpus:4 --seeds 5

`loop`: `gst.placement.loop.Loop` with a budget of 50 measurements, which screens thousands of plans by the
simulator corrected by what was measured. `simulated`: no measurement; the best in simulation of the baselines and of
annealing that asks the simulator as often as the loop does. `alone`: no screen; annealing that asks the hardware about
every plan, from the same plans, with 50 and with 500 measurements. `network`: the loop by the GST cost model, which
is asked about a quarter as many plans. All plans found are measured afresh in turns.

With `--machines` the hardware is simulated: costs that the search does not know (`unlike`), and noise. What was found
is then judged without noise, and `portfolio` is the best of the baselines.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Float64

from experiments.bench.placement import times
from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Log, Measurement, median_interval
from gst.lowering.plan import Plan
from gst.machine.devices import discover, machine_record, select
from gst.machine.load import LoadGate
from gst.placement.cost_models import NetworkSurrogate
from gst.placement.loop import Loop
from gst.placement.machines import machine
from gst.placement.measured import SEARCH_RUNS
from gst.placement.objectives import Batches, Budgeted, MeasuredObjective, Measurer, Objective, SimulatedObjective
from gst.placement.planning import plan_all, plans_by_name
from gst.placement.profiling import measured_task
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.programs import traced
from gst.simulation.simulator import Contention
from gst.util.progress import bar

DEVICES = ("cpu:0", "cpu:1", "cpu:0-1")
EVALUATIONS, NETWORK_EVALUATIONS = 2_000, 500  # plans of each annealing of the loop
SPREAD, NOISE = 0.2, 0.03  # standard deviations of logarithms: of costs from what is believed, and of runs
SHARED = Contention(slowdown=0.1, memory_slowdown=0.05, remote_ns_per_byte=0.02)  # of cores; nobody told the search
RESULTS = Path("experiments/results")


class PretendedObjective:
    """`SEARCH_RUNS` noisy runs of each plan on a machine that is simulated."""

    def __init__(self, task: Task, seed: int) -> None:
        self._truth, self._generator = SimulatedObjective(task), np.random.default_rng([seed, 1])

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([measurement.median_ms for measurement in self.measure(plans)])

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]:
        return enumerate(map(self.measure, batches))

    def measure(self, plans: Sequence[Plan]) -> list[Measurement]:
        seen = []
        for plan, took in zip(plans, self._truth(plans).tolist(), strict=True):
            samples = (took * np.exp(NOISE * self._generator.standard_normal(SEARCH_RUNS))).tolist()
            seen.append(Measurement(plan.key, plan.key, tuple(samples), *median_interval(samples, self._generator)))
        return seen


def unlike(task: Task, seed: int) -> Task:
    """A machine that is not as believed: kinds of operations, single ones, devices and links are faster or slower than
    that, and cores slow each other down."""
    generator = np.random.default_rng([seed, 0])

    def factors(*shape: int) -> np.ndarray:
        return np.exp(SPREAD * generator.standard_normal(shape))

    opcodes, costs = task.graph.opcodes, task.costs
    times = costs.times_us * factors(1, int(opcodes.max()) + 1)[:, opcodes] * factors(1, task.num_nodes)
    changed = replace(
        costs, times_us=times * np.sqrt(factors(len(task.devices), 1)), latency_us=costs.latency_us * factors(),
        bytes_per_us=costs.bytes_per_us * factors(),
    )  # fmt: skip
    return replace(task, costs=changed, contention=SHARED if task.devices[0].kind == "cpu" else task.contention)


def starts_of(task: Task, seed: int, evaluations: int = EVALUATIONS) -> dict[str, Plan]:
    return plans_by_name(plan_all(task, SimulatedObjective(task), ("annealing",), evaluations, seed=seed))


def simulated(task: Task, seed: int) -> Plan:
    """The best in simulation, of as many plans as the loop asks about: once to start, twice in every round."""
    plans = list(starts_of(task, seed, (1 + 2 * Loop.rounds) * EVALUATIONS).values())
    return plans[int(np.nanargmin(SimulatedObjective(task)(plans)))]


def loops(
    task: Task, measurer: Measurer, starts: Mapping[str, Plan], budget: int, seed: int
) -> Iterator[tuple[str, Plan]]:
    """Run the search with each cost model."""
    for key, surrogate, evaluations in (
        ("loop", None, EVALUATIONS), ("network", NetworkSurrogate(task, seed), NETWORK_EVALUATIONS),
    ):  # fmt: skip
        with TemporaryDirectory() as empty:
            log = Log(Path(empty) / "measurements.jsonl")
            search = Loop(task, measurer, log, starts, budget, evaluations, seed=seed, surrogate=surrogate)
            yield key, search.run()


def alone(
    task: Task, runtime: Objective, starts: Mapping[str, Plan], budget: int, seed: int, more: int
) -> dict[str, Plan]:
    """Anneal by measurements alone, and return the best plan after `budget` of them, and after `more` times as many."""
    budgeted = Budgeted(runtime, more * budget)
    anneal(task, budgeted, seed, start=list(starts.values()))
    found = zip(budgeted.curve, budgeted.improvements, strict=True)
    early = [plan for (asked, _), plan in found if asked <= budget]
    return {"alone": early[-1]} | ({"alone_more": budgeted.improvements[-1]} if more > 1 else {})


def measured(name: str, budget: int, repetitions: int, seeds: int, more: int) -> dict[str, Any]:
    """On two cores and the set of both: the median over rounds of the mean over seeds, with its interval."""
    program, devices = traced(name), select(DEVICES, discover())
    plans: list[tuple[str, Plan]] = []
    with IsolatedExecutor(name, devices) as isolated:
        for seed in range(seeds):
            task = measured_task(program, isolated, seed)
            starts = starts_of(task, seed)
            gated = MeasuredObjective(isolated, SEARCH_RUNS, gate=LoadGate())
            plans += [("simulated", simulated(task, seed)), *loops(task, gated, starts, budget, seed)]
            plans += alone(task, gated, starts, budget, seed, more).items()
        seen = measure_plans(isolated, [plan for _, plan in plans], repetitions, 2, LoadGate())
    good: dict[str, list[Measurement]] = {key: [] for key, _ in plans}
    for (key, _), each in zip(plans, seen, strict=True):
        if each.outcome == "ok":
            good[key].append(each)
    return times(good)


def pretended(name: str, machine_name: str, budget: int, seed: int, more: int) -> dict[str, float]:
    """The same on a simulated machine that is not as the search believes; milliseconds without noise."""
    task = machine(machine_name).task(traced(name))
    real = unlike(task, seed)
    starts = starts_of(task, seed)
    plans = alone(task, PretendedObjective(real, seed), starts, budget, seed, more)
    plans |= loops(task, PretendedObjective(real, seed), starts, budget, seed)
    plans["simulated"] = simulated(task, seed)
    truth = SimulatedObjective(real)
    best = float(np.nanmin(truth([plan for key, plan in starts.items() if key != "annealing"])))
    return {"portfolio_ms": best} | {f"{key}_ms": float(truth([plan])[0]) for key, plan in plans.items()}


def over_loop(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the geometric mean slowdown of the plans of each other method."""
    keys = ("portfolio", "simulated", "alone", "alone_more", "network")
    others = [key for key in keys if f"{key}_ms" in rows[0]]
    return {key: statistics.geometric_mean(row[f"{key}_ms"] / row["loop_ms"] for row in rows) for key in others}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Search on every machine; the result is written to `options.json` after each program."""
    if options.seeds < 1:
        raise ValueError(f"--seeds is {options.seeds}; want 1 or more")
    programs, machines = options.programs.split(","), [name for name in options.machines.split(",") if name]
    path = options.json or RESULTS / f"search_loop{'_simulated' if machines else ''}.json"
    asked = f"--programs {options.programs} --budget {options.budget} --more {options.more} --seeds {options.seeds}"
    known = {
        "budget": options.budget, "more": options.more, "seeds": options.seeds, "evaluations": EVALUATIONS,
        "machine": machine_record(),
    }  # fmt: skip
    rows: dict[str, Any] = {}
    for where, name in bar([(where, name) for where in machines or [""] for name in programs]):
        if where:
            runs = [pretended(name, where, options.budget, seed, options.more) for seed in range(options.seeds)]
            each = {key: [run[key] for run in runs] for key in runs[0]} | {"over_loop": over_loop(runs)}
            rows.setdefault(where, {})[name] = each
            result = {
                "simulated": True, "spread": SPREAD, "noise": NOISE, "network_evaluations": NETWORK_EVALUATIONS,
                "machines": rows, **known,
                "command": f"python -m experiments.bench search_loop {asked} --machines {options.machines}",
            }  # fmt: skip
        else:
            rows[name] = measured(name, options.budget, options.repetitions, options.seeds, options.more)
            result = {
                "rows": rows, "over_loop": over_loop(list(rows.values())), **known,
                "command": f"python -m experiments.bench search_loop {asked}",
            }  # fmt: skip
        path.write_text(json.dumps(result, indent=1) + "\n")
    return result
