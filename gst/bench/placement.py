"""Is what a search finds faster than plain PyTorch, one device and the baselines, measured?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from gst.bench.executor import ratio_interval
from gst.devices import LoadGate, Log, Measurement, PlainPyTorch, Plan, discover, machine_record, select
from gst.devices.isolated import IsolatedExecutor, measure_plans
from gst.devices.measure import median_interval
from gst.placement.place import measured_task
from gst.placement.planning import plan_all
from gst.placement.runtime import MeasuredRuntime, SimulatedRuntime
from gst.placement.search import Search
from gst.placement.task import Task
from gst.programs import traced
from gst.progress import Progress

CORES, SETS = ("cpu:0", "cpu:1"), ("cpu:0", "cpu:1", "cpu:0-1")
PLANNED = ("heft", "metis", "annealing", "go")
RATIOS = {
    "over_one_device": ("one_device", "best"), "over_heft": ("heft", "best"),
    "over_pytorch": ("pytorch", "moldable"), "over_compile": ("compile", "moldable"),
}  # fmt: skip


def bench(
    names: Sequence[str],
    out: Path,
    budget: int = 50,
    evaluations: int = 5_000,
    seeds: int = 3,
    repetitions: int = 25,
    compiled: bool = True,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """For each program plans on two cores, and on two cores and the set of both, all measured in turns at the end.

    Args:
        names: of programs.
        out: where searches write what they measure, and go on from.
        budget: measurements of each search.
        evaluations: simulated plans for each method.
        seeds: searches, each with its own seed.
        repetitions: of each plan at the end, in turns.
        compiled: whether `torch.compile` of the whole step is among them, which takes minutes to compile.

    Returns:
        machine, settings, and for each of `workloads`: num_nodes, and `X_ms`, `X_low_ms`, `X_high_ms` for one_device,
        pytorch, compile, heft, metis, annealing, go, best (of the search on two cores) and moldable (of the search with
        the set of both): the median over rounds of the mean over seeds, with its bootstrap 95 % interval; the medians
        of each seed; and the ratios `over_one_device`, `over_heft` of best, `over_pytorch`, `over_compile` of moldable
        with their intervals. `geomean` of each ratio over the programs.
    """
    workloads: dict[str, dict[str, Any]] = {}
    for done, name in enumerate(names):
        progress(f"placing {name}", done, len(names))
        workloads[name] = _one(name, out / name.replace(":", "-"), budget, evaluations, seeds, repetitions, compiled)
    progress("placed", len(names), len(names))
    ratios = [key for key in RATIOS if all(key in row for row in workloads.values())]
    geomean = {key: float(np.exp(np.mean([np.log(row[key]) for row in workloads.values()]))) for key in ratios}
    settings = {"budget": budget, "evaluations": evaluations, "seeds": seeds, "repetitions": repetitions}
    return {"machine": machine_record(), **settings, "workloads": workloads, "geomean": geomean}


def _one(
    name: str, out: Path, budget: int, evaluations: int, seeds: int, repetitions: int, compiled: bool
) -> dict[str, Any]:
    program, devices = traced(name), select(SETS, discover())
    with IsolatedExecutor(name, devices) as isolated, ExitStack() as stack:
        moldable = measured_task(program, isolated, 0)
        cores = moldable.on(CORES)
        plans: dict[str, list[Plan]] = {"one_device": [cores.plan(np.zeros(program.num_nodes, np.int64))]}
        for seed in range(seeds):
            planned = plan_all(cores, SimulatedRuntime(cores), PLANNED[2:], evaluations, seed=seed)
            for label in PLANNED if seed == 0 else PLANNED[2:]:
                _add(plans, label, planned[label].plan)
            starts = {key: each.plan for key, each in planned.items() if each.plan is not None}
            found = _searched(cores, isolated, starts, out / f"cores-{seed}", budget, evaluations, seed)
            _add(plans, "best", found)
            planned = plan_all(moldable, SimulatedRuntime(moldable), ("annealing",), evaluations, seed=seed)
            starts = {key: each.plan for key, each in planned.items() if each.plan is not None}
            found = _searched(moldable, isolated, starts, out / f"sets-{seed}", budget, evaluations, seed)
            _add(plans, "moldable", found)
        beside = {"pytorch": stack.enter_context(PlainPyTorch(name))}
        if compiled:
            beside["compile"] = stack.enter_context(PlainPyTorch(name, compiled=True))
        flat = [(label, plan) for label, several in plans.items() for plan in several]
        seen = measure_plans(isolated, [plan for _, plan in flat], repetitions, 2, LoadGate(), beside)
    measured: dict[str, list[Measurement]] = {}
    for (label, _), measurement in zip([*flat, *((label, None) for label in beside)], seen, strict=True):
        measured.setdefault(label, []).append(measurement)
    return {"num_nodes": program.num_nodes, **_figures(measured), "quiet": seen[0].quiet}


def _add(plans: dict[str, list[Plan]], label: str, plan: Plan | None) -> None:
    assert plan is not None, f"{label} found no plan"
    plans.setdefault(label, []).append(plan)


def _searched(
    task: Task, isolated: IsolatedExecutor, starts: Mapping[str, Plan], out: Path, budget: int, evaluations: int,
    seed: int,
) -> Plan:  # fmt: skip
    runtime = MeasuredRuntime(isolated, repetitions=5, gate=LoadGate())
    return Search(task, runtime, Log(out / "measurements.jsonl"), starts, budget, evaluations, seed=seed).run()


def _figures(measured: Mapping[str, Sequence[Measurement]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    samples = {label: np.mean([each.samples_ms for each in several], axis=0) for label, several in measured.items()}
    for label, values in samples.items():
        median, low, high = median_interval(values.tolist(), np.random.default_rng(0))
        figures |= {f"{label}_ms": median, f"{label}_low_ms": low, f"{label}_high_ms": high}
        if len(measured[label]) > 1:
            figures[f"{label}_by_seed_ms"] = [each.median_ms for each in measured[label]]
    for key, (above, below) in RATIOS.items():
        if above in samples:
            ratio, low, high = ratio_interval(samples[above], samples[below])
            figures |= {key: ratio, f"{key}_low": low, f"{key}_high": high}
    return figures
