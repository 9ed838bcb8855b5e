"""From a program and devices to the fastest plan found: what `gst place`, `gst demo` and `gst.place` do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gst.data.cost_graphs import read_cost_graph
from gst.devices import Device, LoadGate, Log, Measurement, PlainPyTorch, Plan, machine_record, pointwise_chains
from gst.devices.calibration import fit
from gst.devices.isolated import IsolatedExecutor, measure_plans
from gst.devices.measure import Failure
from gst.placement.baselines import single
from gst.placement.bounds import lower_bound_us
from gst.placement.planning import USUAL, Planned, check_names, plan_all
from gst.placement.published import PublishedRuntime, published_bound
from gst.placement.published_search import search_published
from gst.placement.random_plans import random_plans
from gst.placement.runtime import MeasuredRuntime, Progress, Runtime, SimulatedRuntime
from gst.placement.search import Search
from gst.placement.task import Task
from gst.programs import Program
from gst.store import prepare

NUM_CALIBRATION = 12  # plans that contention is learned from
CALIBRATION_RUNS = 5  # of each, in turns; the quickest counts


@dataclass(frozen=True)
class Settings:
    """How long to look for a plan, and how.

    Args:
        budget: plans that the search for `ours` may measure; 0 = none, the portfolio alone is measured.
        evaluations: simulated plans that each method may ask about.
        methods: some of `gst.placement.planning.METHODS`.
        tasks: what is decided: 'placement', 'schedule', 'fusion'.
        repetitions: runs of each plan at the end.
        seed: of everything that is drawn.
        patience_s: how long to wait for quiet cores.
    """

    budget: int = 50
    evaluations: int = 2_000
    methods: tuple[str, ...] = USUAL
    tasks: tuple[str, ...] = ("placement", "schedule")
    repetitions: int = 25
    seed: int = 0
    patience_s: float = 20.0

    def __post_init__(self) -> None:
        check_names(self.methods, self.tasks)
        for what in ("budget", "evaluations"):
            if getattr(self, what) < 0:
                raise ValueError(f"{what} is {getattr(self, what)}; 0 = the portfolio alone")
        if self.repetitions < 1:
            raise ValueError(f"repetitions is {self.repetitions}; want 1 or more")


@dataclass(frozen=True, eq=False)
class Found:
    """What a search for a plan ends with.

    Args:
        task: what was placed.
        plan: the fastest.
        result: for programs, see the README.
        drawn: what the report shows beyond it.
    """

    task: Task
    plan: Plan
    result: dict[str, Any]
    drawn: dict[str, Any] = field(default_factory=dict)


def place_measured(
    program: Program,
    source: Path | str,
    devices: Sequence[Device],
    out: Path,
    settings: Settings = Settings(),
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
            task, simulated, [name for name in settings.methods if name != "ours"], _evaluations(settings),
            [name for name in settings.tasks if name != "fusion"], settings.seed, Log(out / "searches.jsonl"), progress,
        )  # fmt: skip
        _check_fits(task, planned)
        search = _search(task, isolated, planned, out, settings, progress)
        finalists = {name: each.plan for name, each in planned.items() if each.plan is not None}
        if search is not None:
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
    result = _result(task, "measured", best, ran[best], lower_bound_us(task) / 1e3, plans)
    result |= {"pytorch_ms": final["pytorch"].median_ms, "cost_model": _cost_model(search)}
    if search is not None and (dataset := search.dataset()) is not None:
        prepare([dataset], out / "dataset", max_nodes=512)
    shown = {"measurements": [] if search is None else search.shown(), "curves": _curves(planned)}
    return Found(task, finalists[best], result, shown)


def place_simulated(
    task: Task,
    out: Path,
    settings: Settings = Settings(),
    progress: Progress = lambda what, done, total: None,
    runtime: Runtime | None = None,
) -> Found:
    """Plan by every method on costs alone: a program on a machine that is not here. Nothing is measured.

    Args:
        runtime: who simulates; `SimulatedRuntime(task)` if None. With fusion the lower bound is of operations one by
            one, which fused ones may pass.

    Raises:
        ValueError: no plan fits the memories (the message says the least that would do), or `out` is of another task.
    """
    simulated = SimulatedRuntime(task) if runtime is None else runtime
    return _place_on_costs(task, simulated, "simulated", lower_bound_us(task) / 1e3, out, settings, progress)


def place_graph(
    path: Path,
    out: Path,
    settings: Settings = Settings(),
    progress: Progress = lambda what, done, total: None,
) -> Found:
    """Plan a published cost graph, by its published latency; one with a backward pass, by simulation.

    Raises:
        ValueError: it is no cost graph, or as `place_simulated`.
    """
    graph = read_cost_graph(path)
    task = Task.of_cost_graph(graph)
    if graph.backward.any():
        return place_simulated(task, out, settings, progress)
    return _place_on_costs(
        task, PublishedRuntime(graph), "published", published_bound(graph), out, settings, progress,
        lambda: search_published(graph, settings.seed),
    )  # fmt: skip


def _place_on_costs(
    task: Task, runtime: Runtime, kind: str, bound_ms: float, out: Path, settings: Settings, progress: Progress,
    own_search: Callable[[], Plan] | None = None,
) -> Found:  # fmt: skip
    """`own_search`, if there is one, knows this kind of runtime; its plan is `contiguous`, where there is a budget."""
    planned = plan_all(
        task, runtime, settings.methods, _evaluations(settings), settings.tasks, settings.seed,
        Log(out / "searches.jsonl"), progress,
    )  # fmt: skip
    if own_search is not None and settings.budget > 0:
        started = time.perf_counter()
        plan = own_search()
        planned["contiguous"] = Planned(plan, float(runtime([plan])[0]), time.perf_counter() - started, 0)
    _check_fits(task, planned)
    ran = {name: each.expected_ms for name, each in planned.items() if np.isfinite(each.expected_ms)}
    best = min(ran, key=lambda name: ran[name])
    chosen = planned[best].plan
    assert chosen is not None
    plans = {
        name: {
            "latency": each.expected_ms, "feasible": name in ran, "seconds_to_plan": each.seconds, "measurements": 0,
            "evaluations": each.evaluations,
        }
        for name, each in planned.items()
    }  # fmt: skip
    return Found(task, chosen, _result(task, kind, best, ran[best], bound_ms, plans), {"curves": _curves(planned)})


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


def _curves(planned: dict[str, Planned]) -> dict[str, list[list[float]]]:
    return {name: [list(point) for point in each.curve] for name, each in planned.items() if each.curve}


def _evaluations(settings: Settings) -> int:
    return settings.evaluations if settings.budget > 0 else 0


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


def _check_fits(task: Task, planned: dict[str, Planned]) -> None:
    if any(np.isfinite(each.expected_ms) for each in planned.values()):
        return
    limits = {name: limit for name, limit in task.memories.items() if limit is not None}
    if not limits:
        raise ValueError(f"no plan of {task.name} can run on {', '.join(task.names)}: some operation runs on none")
    least = min(
        max(task.memory_use(task.simulator.run(each.plan))[name] for name in limits)
        for each in planned.values()
        if each.plan is not None
    )
    told = ", ".join(f"{name} {limit / 2**20:.1f} MiB" for name, limit in limits.items())
    raise ValueError(
        f"no plan of {task.name} fits ({told}); the least that would do for a plan found is {least / 2**20:.1f} MiB"
    )


def _search(
    task: Task, isolated: IsolatedExecutor, planned: dict[str, Planned], out: Path, settings: Settings,
    progress: Progress,
) -> Search | None:  # fmt: skip
    if settings.budget == 0 or "ours" not in settings.methods:
        return None
    runtime = MeasuredRuntime(isolated, repetitions=5, gate=LoadGate(patience_s=settings.patience_s))
    starts = {name: each.plan for name, each in planned.items() if each.plan is not None}
    return Search(
        task, runtime, Log(out / "measurements.jsonl"), starts, settings.budget, settings.evaluations, settings.tasks,
        seed=settings.seed, progress=progress,
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


def _result(
    task: Task, runtime: str, best: str, objective: float, bound_ms: float, plans: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    return {
        "program": task.name, "num_nodes": task.num_nodes, "devices": list(task.names), "runtime": runtime,
        "objective": objective, "lower_bound": bound_ms, "best": best, "plans": plans, "machine": machine_record(),
    }  # fmt: skip
