"""From a program and devices to the fastest plan found: what `gst place`, `gst demo` and `gst.place` do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gst.devices import Device, LoadGate, Log, Measurement, PlainPyTorch, Plan, pointwise_chains
from gst.devices.calibration import fit
from gst.devices.isolated import IsolatedExecutor, measure_plans
from gst.devices.measure import Failure
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import single
from gst.placement.outcome import AS_USUAL, Found, Settings, check_fits, curves, evaluations, placed_result
from gst.placement.planning import Planned, plan_all
from gst.placement.random_plans import random_plans
from gst.placement.runtime import MeasuredRuntime, SimulatedRuntime
from gst.placement.search import Search
from gst.placement.task import Task
from gst.placement.workers import Workers
from gst.programs import Program
from gst.progress import Progress
from gst.store import prepare

NUM_CALIBRATION = 12  # plans that contention is learned from
CALIBRATION_RUNS = 5  # of each, in turns; the quickest counts
SEARCH_RUNS = 5  # of each plan that a search measures, in turns


def place_measured(
    program: Program,
    source: Path | str,
    devices: Sequence[Device],
    out: Path,
    settings: Settings = AS_USUAL,
    progress: Progress = lambda what, done, total: None,
) -> Found:
    """Profile a program on devices of this machine, plan by every method in simulation, search with real measurements,
    and measure all finalists afresh beside plain PyTorch.

    Writes to `out` `searches.jsonl` and `measurements.jsonl` as they grow, from which the same call goes on.

    Args:
        program: what is placed.
        source: its name (`traced`), or a directory where it is saved: processes that run plans read it.
        devices: where its operations may go; a memory limit of a device holds for the values of a run.

    Raises:
        ValueError: the program does not run, or no plan fits the memory limit (the message says the least that would
            do), or `out` is of another program, other devices or settings.
    """
    limit = min((each.memory_limit for each in devices if each.memory_limit is not None), default=None)
    with IsolatedExecutor(source, devices, limit) as isolated:
        progress("profiling", 0, 1)
        LoadGate(patience_s=settings.patience_s).wait()
        task = measured_task(program, isolated, settings.seed)
        simulated = SimulatedRuntime(task)
        planned = plan_all(
            task, simulated, [name for name in settings.methods if name != "ours"], evaluations(settings),
            [name for name in settings.tasks if name != "fusion"], settings.seed, Log(out / "searches.jsonl"), progress,
        )  # fmt: skip
        check_fits(task, planned)
        finalists = {name: each.plan for name, each in planned.items() if each.plan is not None}
        search = None
        if settings.budget > 0 and "ours" in settings.methods:
            with _measuring(source, isolated, settings) as runtime:
                search = _search(task, runtime, finalists, out, settings, progress)
                finalists["ours"] = search.run()
        if "fusion" in settings.tasks:
            finalists |= _fused(program, task, finalists)
        final = _measure_finally(source, isolated, finalists, settings, progress)
    ran = {name: final[name].median_ms for name in finalists if final[name].outcome == "ok"}
    if not ran:
        reasons = sorted({final[name].reason for name in finalists})
        raise ValueError(f"no plan of {program.name} ran on {', '.join(task.names)}: {'; '.join(reasons)}")
    best = min(ran, key=lambda name: ran[name])
    expected = {name: float(simulated([plan])[0]) for name, plan in finalists.items()}
    plans = {name: _measured_entry(seen, planned.get(name), search, expected.get(name)) for name, seen in final.items()}
    result = placed_result(task, "measured", best, ran[best], lower_bound_us(task) / 1e3, plans)
    result |= {"pytorch_ms": final["pytorch"].median_ms, "cost_model": _cost_model(search)}
    if search is not None and (dataset := search.dataset()) is not None:
        prepare([dataset], out / "dataset", max_nodes=512)
    shown = {"measurements": [] if search is None else search.shown(), "curves": curves(planned)}
    return Found(task, finalists[best], result, shown)


def _fused(program: Program, task: Task, finalists: dict[str, Plan]) -> dict[str, Plan]:
    """The plans that are best by simulation and by search, with chains of element-wise operations fused: compiled, and
    kept where that is faster (see `gst.devices.fused`)."""
    took = SimulatedRuntime(task)(list(finalists.values()))
    best = list(finalists)[int(np.nanargmin(took))]
    chosen = {name: finalists[name] for name in (best, "ours") if name in finalists}
    return {
        f"{name}:fused": replace(plan, fusion=pointwise_chains(program, plan.placement))
        for name, plan in chosen.items()
    }


def measured_task(program: Program, isolated: IsolatedExecutor, seed: int) -> Task:
    """Costs as profiled, and contention as learned from a few plans that keep several devices busy.

    A machine's speed drifts between the profile and the runs of these plans, which would be taken for contention. So
    each device alone takes turns with the plans, and its profile is scaled to what it takes there.
    """
    task = Task.of_program(program, isolated.costs(program))
    count = len(task.devices)
    if count < 2:
        return task
    alone = [single(task, device) for device in range(count)]
    plans = [plan for _, plan in islice(random_plans(task, seed), NUM_CALIBRATION)]
    try:
        runs = isolated.timelines([*alone, *plans], CALIBRATION_RUNS)
    except Failure:
        return task
    if not runs:
        return task
    took = np.array([(run.end_us - run.begin_us).sum() for run in runs[:count]])
    scale = took / np.maximum(task.times_us.sum(1), 1e-9)
    costs = replace(task.costs, times_us=task.times_us * scale[:, None])
    return Task.of_program(program, costs, fit(costs, runs[count:]))


@contextmanager
def _measuring(
    source: Path | str, isolated: IsolatedExecutor, settings: Settings
) -> Iterator[MeasuredRuntime | Workers]:
    """What a search measures by: the process that profiled, or several others."""
    gate = LoadGate(patience_s=settings.patience_s)
    if settings.workers == 1:
        yield MeasuredRuntime(isolated, SEARCH_RUNS, gate=gate)
        return
    make = partial(IsolatedExecutor, source, isolated.devices, isolated.memory_limit)
    with Workers(make, settings.workers, SEARCH_RUNS, gate=gate) as workers:
        yield workers


def _search(
    task: Task, runtime: MeasuredRuntime | Workers, starts: dict[str, Plan], out: Path, settings: Settings,
    progress: Progress,
) -> Search:  # fmt: skip
    return Search(
        task, runtime, Log(out / "measurements.jsonl"), dict(starts), settings.budget, settings.evaluations,
        settings.tasks, seed=settings.seed, progress=progress,
    )  # fmt: skip


def _measure_finally(
    source: Path | str, isolated: IsolatedExecutor, plans: dict[str, Plan], settings: Settings, progress: Progress
) -> dict[str, Measurement]:
    """Fresh, interleaved runs of every plan and of plain PyTorch (`pytorch`); a plan under several names runs once."""
    distinct = {plan.key: plan for plan in plans.values()}
    with PlainPyTorch(source) as plain:
        *measured, pytorch = measure_plans(
            isolated, list(distinct.values()), settings.repetitions, 2, LoadGate(patience_s=settings.patience_s),
            {"pytorch": plain}, lambda done, total: progress("measuring the finalists afresh", done, total),
        )  # fmt: skip
    seen = dict(zip(distinct, measured, strict=True))
    return {**{name: seen[plan.key] for name, plan in plans.items()}, "pytorch": pytorch}


def _measured_entry(
    seen: Measurement, planned: Planned | None, search: Search | None, simulated_ms: float | None
) -> dict[str, Any]:
    record = seen.to_dict()
    spent = len(search.trials) if planned is None and search is not None and seen.plan_key else 0
    seconds = planned.seconds if planned is not None else search.seconds if spent and search is not None else None
    return {
        **{key: record[key] for key in ("median_ms", "low_ms", "high_ms")}, "feasible": seen.outcome == "ok",
        "reason": seen.reason, "seconds_to_plan": seconds, "measurements": spent, "runs": seen.repetitions,
        "simulated_ms": simulated_ms,
    }  # fmt: skip


def _cost_model(search: Search | None) -> dict[str, Any]:
    if search is None:
        return {"tau": None, "num_measured": 0, "num_screened": 0}
    tau = search.tau()
    return {
        "tau": None if np.isnan(tau) else tau, "num_measured": len(search.trials), "num_screened": search.num_screened,
    }  # fmt: skip
