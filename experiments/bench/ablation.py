"""Ablation of the placement loop: the runtime of its plans without each of its parts, on this machine's cores.

    python -m experiments.bench ablation
    python -m experiments.bench ablation --programs rnnlm,bert --seeds 5 --seconds 20 --resume

`loop`: annealing in simulation, then rounds of measurements, from which ridge regression learns how wrong the simulator
is, and in which annealing and mutations propose plans. That is what `gst place` does. Rows without a part spend its
time on the others: `learning` (measured, but the simulator is believed), `measurements` (annealing in simulation
alone), `schedule` (operations run in program order). Rows with another part: `policy` proposes plans too, fine-tuned on
what is predicted; `network` learns by the GST cost model in place of ridge regression. Numbers of plans in simulation
are such that no row has more time for them than the loop; networks are trained on top. One long annealing takes less
than is reckoned from short ones. `seconds` says what each row took. `portfolio` is the best baseline in simulation.
Each seed has a profile of its own. All plans found are measured afresh in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Float64

from experiments.bench.search_loop import DEVICES
from experiments.bench.strangers_steps import STEPS
from experiments.bootstrap import mean_interval
from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import discover, machine_record, select
from gst.machine.load import LoadGate
from gst.placement.baselines.portfolio import portfolio
from gst.placement.cost_models import LinearSurrogate, NetworkSurrogate
from gst.placement.loop import AT_ONCE, Loop
from gst.placement.measured import SEARCH_RUNS
from gst.placement.objectives import (
    Budgeted,
    InProgramOrder,
    MeasuredObjective,
    Measurer,
    Objective,
    SimulatedObjective,
    restrict,
)
from gst.placement.planning import BUDGET
from gst.placement.policies.constructive.fine_tuning import FineTuning, TaskRollouts
from gst.placement.policies.constructive.network import shipped_weights
from gst.placement.profiling import measured_task
from gst.placement.proposers import COSTS
from gst.placement.reward import Surrogate
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.programs import traced
from gst.util.progress import bar
from gst.util.untrusted import read_object
from gst.util.writing import write_json

WITHOUT, WITH = ("learning", "measurements", "schedule"), ("policy", "network")
ROWS = ("loop", *WITHOUT, *WITH, "portfolio")
TIMED, BUILT = 100, 10  # steps of annealing and plans of the policy that are timed, to know how many there is time for
APART = 1_000  # seeds of annealings differ by less within a search


class Believed(Surrogate):
    """A surrogate that learns nothing: the simulator is right."""

    def learn(self, plans: Sequence[Plan], simulated_ms: np.ndarray, logs: np.ndarray) -> None:
        return None

    def __call__(self, plans: Sequence[Plan], simulated_ms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(plans)), np.zeros(len(plans))


@dataclass(frozen=True)
class Rates:
    """Seconds of a step of annealing, of a plan of the policy with its simulation, of a plan that is measured."""

    step: float
    build: float
    measure: float

    @staticmethod
    def of(task: Task, start: Plan, measurer: Objective) -> Rates:
        simulated, rollouts, weights = SimulatedObjective(task), TaskRollouts(task), shipped_weights()

        def build() -> None:
            for _ in range(BUILT):
                if (plan := rollouts(weights)) is not None:
                    simulated([plan])

        return Rates(
            _seconds(lambda: anneal(task, Budgeted(simulated, TIMED), start=[start])) / TIMED,
            _seconds(build) / BUILT,
            _seconds(lambda: measurer([start] * AT_ONCE)) / AT_ONCE,
        )


def _seconds(call: Callable[[], object]) -> float:
    call()  # what is compiled
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def plan_of(row: str, task: Task, measurer: Measurer, rates: Rates, seconds: float, seed: int) -> Plan:
    """The plan that a loop finds.

    Args:
        row: one of `ROWS`, but for `portfolio`.
        seconds: about as many go to plans in simulation, beside those in which `BUDGET` plans are measured, or could
            be.
    """
    tasks = ("placement",) if row == "schedule" else ("placement", "schedule")
    simulated = SimulatedObjective(task)
    objective = simulated if "schedule" in tasks else InProgramOrder(simulated)
    plans = {name: restrict(plan, tasks) for name, plan in portfolio(task).items()}
    left = seconds + BUDGET * rates.measure * (row == "measurements")
    steps = 1 if row == "measurements" else 1 + 2 * Loop.rounds
    built = (1 + Loop.rounds) / COSTS["policy"] * (row == "policy")
    evaluations = max(int(left / (steps * rates.step + built * rates.build)), 1)
    first = Budgeted(objective, evaluations)
    anneal(task, first, APART * seed, start=list(plans.values()))
    assert first.best is not None
    if row == "measurements":
        return restrict(first.best, tasks)
    plans["annealing"] = restrict(first.best, tasks)
    if row == "policy":
        policy = Budgeted(simulated, max(evaluations // COSTS["policy"], 1))
        FineTuning(task, seed).run(policy)
        plans |= {} if policy.best is None else {"policy": policy.best}
    others = {"learning": Believed, "network": partial(NetworkSurrogate, task, seed)}
    surrogate = others.get(row, partial(LinearSurrogate, task))()
    with TemporaryDirectory() as empty:
        log = Log(Path(empty) / "measurements.jsonl")
        search = Loop(
            task, measurer, log, plans, BUDGET, evaluations, tasks, seed=APART * seed, surrogate=surrogate,
            methods=("annealing", "policy") if row == "policy" else ("annealing",),
        )  # fmt: skip
        return search.run()


def measured(name: str, seconds: float, repetitions: int, seeds: int, patience_s: float) -> dict[str, Any]:
    """Of each row and seed the median milliseconds of the plan found, its simulated ones, and the seconds it took."""
    source = STEPS.get(name, name)
    program, devices = traced(source), select(DEVICES, discover())
    rows: list[tuple[str, int]] = []
    plans: list[Plan] = []
    simulated: list[float] = []
    took: dict[str, list[float]] = {row: [] for row in ROWS}
    with IsolatedExecutor(source, devices) as isolated:
        gate = LoadGate(patience_s=patience_s)
        measurer = MeasuredObjective(isolated, SEARCH_RUNS, gate=gate)
        for seed in range(seeds):
            task = measured_task(program, isolated, seed)
            objective, baselines = SimulatedObjective(task), list(portfolio(task).values())
            best = baselines[int(np.nanargmin(objective(baselines)))]
            rates = Rates.of(task, best, measurer)
            for row in np.random.default_rng(seed).permutation(ROWS).tolist():  # which comes first is chance
                begun = time.perf_counter()
                plan = best if row == "portfolio" else plan_of(row, task, measurer, rates, seconds, seed)
                took[row].append(time.perf_counter() - begun)
                rows.append((row, seed))
                plans.append(plan)
                simulated.append(float(objective([plan])[0]))
        seen = measure_plans(isolated, plans, repetitions, 2, gate)
    result: dict[str, Any] = {row: {"ms": [], "simulated_ms": [], "seconds": took[row]} for row in ROWS}
    for (row, _), each, expected in sorted(zip(rows, seen, simulated, strict=True), key=lambda entry: entry[0][1]):
        result[row]["ms"].append(each.median_ms)
        result[row]["simulated_ms"].append(expected)
    return {"num_nodes": program.num_nodes, "load": max(each.load for each in seen), "rows": result}


def over_loop(programs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the slowdown of each row's plans compared with the loop's: geometric mean over seeds and programs, with a
    95 % interval by bootstrap over programs. A plan that failed counts as the baseline does."""
    result = {}
    for row in ROWS[1:]:
        logs = np.array([np.mean(_logs(each["rows"], row) - _logs(each["rows"], "loop")) for each in programs.values()])
        mean, low, high = np.exp(mean_interval(logs)).tolist()
        shares = [np.mean(each["rows"][row]["seconds"]) / np.mean(each["rows"]["loop"]["seconds"])
                  for each in programs.values()]  # fmt: skip
        result[row] = {
            "mean": mean, "low": low, "high": high, "seconds": float(np.mean(shares)),
        }  # fmt: skip
    return result


def _logs(rows: dict[str, Any], row: str) -> Float64[np.ndarray, " seeds"]:
    took, baseline = (np.array(rows[each]["ms"], np.float64) for each in (row, "portfolio"))
    return np.log(np.where(np.isnan(took), baseline, took))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Search for plans of every program; the result is written to `options.json` after each."""
    if options.seeds < 1:
        raise ValueError(f"--seeds is {options.seeds}; want 1 or more")
    settings = {
        "seconds": options.seconds, "budget": BUDGET, "seeds": options.seeds, "repetitions": options.repetitions,
        "machine": machine_record(),
    }  # fmt: skip
    programs: dict[str, Any] = {}
    if options.goes_on and options.json.exists():
        before = read_object(options.json)
        if any(before[key] != value for key, value in settings.items()):
            raise ValueError(f"{options.json} is of other settings or another machine; leave --resume away")
        programs = before["programs"]
    result: dict[str, Any] = {}
    for name in bar(options.programs.split(",")):
        if name not in programs:
            programs[name] = measured(name, options.seconds, options.repetitions, options.seeds, options.patience)
        asked = (
            f"--programs {','.join(programs)} --seeds {options.seeds} --seconds {options.seconds:g} "
            f"--repetitions {options.repetitions} --patience {options.patience:g}"
        )
        result = {
            "programs": programs, "over_loop": over_loop(programs), **settings,
            "command": f"python -m experiments.bench ablation {asked}",
        }  # fmt: skip
        write_json(options.json, result)
    return result
