"""Measured plans of the searches, compared with plain PyTorch, torch.compile, one device and the baselines.

python -m experiments.bench placement --programs rnnlm --budget 30 --seeds 1
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.executor import ratio_interval
from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Log, Measurement, median_interval
from gst.lowering.plan import Plan
from gst.machine.devices import discover, machine_record, select
from gst.machine.load import LoadGate
from gst.placement.loop import Loop
from gst.placement.measured import SEARCH_RUNS
from gst.placement.objectives import MeasuredObjective, Planned, SimulatedObjective
from gst.placement.planning import plan_all, plans_by_name
from gst.placement.profiling import chains, fused_task, measured_task, whole_step
from gst.placement.task import Task
from gst.programs import WORKLOADS, traced
from gst.util.progress import Progress, no_progress
from gst.whole_model.child_process import START_LIMIT_S, StepProcess
from gst.whole_model.variants import COMPILED

CORES, SETS = ("cpu:0", "cpu:1"), ("cpu:0", "cpu:1", "cpu:0-1")
CHOOSING_RUNS = 15  # of plans found in different ways, in turns, to take the fastest
PLANNED = ("heft", "metis", "annealing", "go")
RATIOS = {
    "over_one_device": ("one_device", "best"), "over_heft": ("heft", "best"),
    "over_pytorch": ("pytorch", "moldable"), "over_compile": ("compile", "moldable"),
    "fused_over_pytorch": ("pytorch", "fused"), "fused_over_compile": ("compile", "fused"),
    "fused_over_one_device": ("one_device", "fused"), "fused_over_heft": ("heft", "fused"),
}  # fmt: skip


HELP = {
    "budget": "measurements of each search", "evaluations": "simulated plans of each method",
    "without_compile": "leave torch.compile and fusion out: they take minutes",
    "out": "where searches write what they measure, and go on from",
}  # fmt: skip
COLUMNS = ("one_device_ms", "heft_ms", "best_ms", "moldable_ms", "pytorch_ms", "over_pytorch")


def run(
    programs: tuple[str, ...] = tuple(WORKLOADS),
    out: Path = Path("runs/bench/placement"),
    budget: int = 50,
    evaluations: int = 5_000,
    seeds: int = 3,
    repetitions: int = 25,
    without_compile: bool = False,
    patience: float = 20.0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Search for plans of each program on two cores, and on two cores and the set of both, and measure all alternately
    at the end.

    Returns:
        machine, settings, and for each of `workloads`: num_nodes, and `X_ms`, `X_low_ms`, `X_high_ms` for one_device,
        pytorch, compile, heft, metis, annealing, go, best (of the search on two cores), moldable (of the search with
        the set of both) and fused (the same with groups of operations compiled, or the whole step compiled where that
        is faster in runs before; `fused_by_seed` says which): the median over rounds of the mean over seeds, with its
        bootstrap 95 % interval; the medians of each seed; and the ratios `over_one_device`, `over_heft` of best,
        `over_pytorch`, `over_compile` of moldable and `fused_over_X` of fused with their intervals. `geomean` of each
        ratio over the programs.
    """
    workloads: dict[str, dict[str, Any]] = {}
    gate = LoadGate(patience_s=patience)
    for done, name in enumerate(programs):
        progress(f"placing {name}", done, len(programs))
        directory = out / name.replace(":", "-")
        workloads[name] = _one(name, directory, budget, evaluations, seeds, repetitions, not without_compile, gate)
    progress("placed", len(programs), len(programs))
    ratios = [key for key in RATIOS if all(key in row for row in workloads.values())]
    geomean = {key: statistics.geometric_mean(row[key] for row in workloads.values()) for key in ratios}
    return {
        "machine": machine_record(), "budget": budget, "evaluations": evaluations, "seeds": seeds,
        "repetitions": repetitions, "patience_s": patience, "workloads": workloads, "geomean": geomean,
    }  # fmt: skip


def _on(task: Task, names: Sequence[str]) -> Task:
    """Return the same task on some of its devices."""
    chosen, costs = [task.names.index(name) for name in names], task.costs
    links = np.ix_(chosen, chosen)
    fewer = replace(
        costs, devices=tuple(task.devices[each] for each in chosen), times_us=costs.times_us[chosen],
        own_bytes=costs.own_bytes[chosen], latency_us=costs.latency_us[links], bytes_per_us=costs.bytes_per_us[links],
    )  # fmt: skip
    return replace(task, costs=fewer)


def _one(
    name: str, out: Path, budget: int, evaluations: int, seeds: int, repetitions: int, compiled: bool, gate: LoadGate
) -> dict[str, Any]:
    program, devices = traced(name), select(SETS, discover())
    with IsolatedExecutor(name, devices) as isolated, ExitStack() as stack:
        moldable = measured_task(program, isolated, 0)
        cores = _on(moldable, CORES)
        fused = fused_task(moldable, isolated, chains(moldable)) if compiled else None

        def search(
            task: Task,
            planned: Mapping[str, Planned],
            where: str,
            seed: int,
            as_run: Callable[[Plan], Plan] = Loop.as_run,
        ) -> Plan:
            runtime, log = MeasuredObjective(isolated, SEARCH_RUNS, gate=gate), Log(out / where / "measurements.jsonl")
            starts = plans_by_name(planned)
            return as_run(Loop(task, runtime, log, starts, budget, evaluations, seed=seed, as_run=as_run).run())

        chosen: list[str] = []
        plans: dict[str, list[Plan]] = {"one_device": [cores.plan(np.zeros(program.num_nodes, np.int64))]}
        for seed in range(seeds):
            planned = plan_all(cores, SimulatedObjective(cores), PLANNED[2:], evaluations, seed=seed)
            for label in PLANNED if seed == 0 else PLANNED[2:]:
                _add(plans, label, planned[label].plan)
            _add(plans, "best", search(cores, planned, f"cores-{seed}", seed))
            planned = plan_all(moldable, SimulatedObjective(moldable), ("annealing",), evaluations, seed=seed)
            _add(plans, "moldable", search(moldable, planned, f"sets-{seed}", seed))
            if not compiled:
                continue
            candidates = {"moldable": plans["moldable"][-1], "whole": whole_step(moldable)}
            if fused is not None:
                planned = plan_all(fused.task, SimulatedObjective(fused.task), ("annealing",), evaluations, seed=seed)
                candidates["groups"] = search(fused.task, planned, f"fused-{seed}", seed, fused.unfold)
            took = MeasuredObjective(isolated, CHOOSING_RUNS, gate=gate)(list(candidates.values()))
            chosen.append(list(candidates)[int(np.nanargmin(took))])
            _add(plans, "fused", candidates[chosen[-1]])
        beside = {"pytorch": stack.enter_context(StepProcess(name))}
        if compiled:
            process = stack.enter_context(StepProcess(name, seconds=START_LIMIT_S, skip_reason=""))
            beside["compile"] = partial(process, COMPILED)
        flat = [(label, plan) for label, several in plans.items() for plan in several]
        seen = measure_plans(isolated, [plan for _, plan in flat], repetitions, 2, gate, beside)
    measured: dict[str, list[Measurement]] = {}
    for (label, _), measurement in zip([*flat, *((label, None) for label in beside)], seen, strict=True):
        measured.setdefault(label, []).append(measurement)
    named = {"fused_by_seed": chosen} if chosen else {}
    return {"num_nodes": program.num_nodes, **_figures(measured), **named, "quiet": seen[0].quiet}


def _add(plans: dict[str, list[Plan]], label: str, plan: Plan | None) -> None:
    assert plan is not None, f"{label} found no plan"
    plans.setdefault(label, []).append(plan)


def _figures(measured: Mapping[str, Sequence[Measurement]]) -> dict[str, Any]:
    """Return medians of plans by name, several of a name for several seeds, and their ratios, see `run`."""
    figures: dict[str, Any] = {}
    for label, several in measured.items():
        median, low, high = median_interval(_mean_samples(several).tolist(), np.random.default_rng(0))
        figures |= {f"{label}_ms": median, f"{label}_low_ms": low, f"{label}_high_ms": high}
        if len(several) > 1:
            figures[f"{label}_by_seed_ms"] = [each.median_ms for each in several]
    samples = {label: _mean_samples(several) for label, several in measured.items()}
    for key, (above, below) in RATIOS.items():
        if above in samples and below in samples:
            ratio, low, high = ratio_interval(samples[above], samples[below])
            figures |= {key: ratio, f"{key}_low": low, f"{key}_high": high}
    return figures


def _mean_samples(several: Sequence[Measurement]) -> np.ndarray:
    return np.mean([each.samples_ms for each in several], axis=0)
