"""From a program and devices to the fastest plan found: what `gst place`, `gst demo` and `gst.place` do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gst.devices import Device, LoadGate, Log, Measurement, Plan
from gst.devices.describe.machine import supports
from gst.devices.execute.costs import profiled_costs
from gst.devices.execute.isolated import IsolatedExecutor, measure_plans
from gst.devices.execute.measure import Failure
from gst.devices.execute.plain import PYTORCH, steps_beside
from gst.devices.simulate.calibration import fit
from gst.devices.simulate.simulator import Contention
from gst.files.untrusted import read_object
from gst.files.writing import atomic_write
from gst.graphs.store import prepare
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import single
from gst.placement.finals import NUM_AGAIN, Finals, by_name, fastest, finalists
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.fusion.measured import FusedTask, fused_task, whole_step
from gst.placement.objective import MeasuredObjective, Measurer, SimulatedObjective
from gst.placement.outcome import AS_USUAL, PlacementResult, Settings, check_fits, curves, evaluations, placed_result
from gst.placement.planning import Planned, plan_all, plans_found
from gst.placement.random_plans import random_plans
from gst.placement.screening import NetworkSurrogate
from gst.placement.search import Search, as_is
from gst.placement.task import Task
from gst.placement.workers import Workers
from gst.process.progress import Progress, no_progress
from gst.programs import Program

NUM_CALIBRATION = 12  # plans that contention is learned from
CALIBRATION_RUNS = 5  # of each, in turns; the quickest counts
SEARCH_RUNS = 5  # of each plan that a search measures, in turns
COSTS, GROUPS = "costs.json", "groups.json"  # what was measured of operations, and of groups compiled into one
LARGEST_WHOLE = 5_000  # operations of a program that is compiled into one: Inductor takes minutes for these


def place_measured(
    program: Program,
    source: Path | str,
    devices: Sequence[Device],
    out: Path,
    settings: Settings = AS_USUAL,
    progress: Progress = no_progress,
    fleet: FleetWorkers | None = None,
    written: Callable[[], object] | None = None,
) -> PlacementResult:
    """Profile a program on devices of this machine, or of hosts of a fleet, plan by every method in simulation, search
    with real measurements, and measure the finalists afresh beside the step as written and as compiled.

    Writes to `out` what it measured of the devices, and `searches.jsonl` and `measurements.jsonl` as they grow, from
    which the same call goes on.

    Args:
        program: what is placed.
        source: its name (`traced`), or a directory where it is saved: processes that run plans read it.
        devices: where its operations may go; a memory limit of a device holds for the values of a run.
        fleet: workers on hosts of one kind with these devices, not entered yet; None = measure on this machine.
        written: the step as written, which runs in this process; see `gst.devices.execute.plain.steps_beside` for None.

    Raises:
        ValueError: the program does not run, or no plan fits the memory limit (the message says the least that would
            do), or `out` is of another program, other devices or settings.
    """

    def profiled() -> Task:
        if fleet is None and settings.patience_s > 0:
            LoadGate(patience_s=settings.patience_s, progress=progress).wait()
        progress("profiling", 0, 1)
        return measured_task(program, isolated, settings.seed)

    with fleet or IsolatedExecutor(source, devices) as isolated:
        task = cached_task(program, isolated.devices, out, profiled)
        planned = _planned(task, out / "searches.jsonl", settings, progress)
        check_fits(task, planned)
        final_plans = finalists(planned)
        fused = fused_task(task, isolated, progress, out / GROUPS) if "fusion" in settings.tasks else None
        starts = planned
        if fused is not None:
            starts = _planned(fused.task, out / "searches_fused.jsonl", settings, progress)
            best = min(starts, key=lambda name: np.nan_to_num(starts[name].expected_ms, nan=np.inf))
            final_plans[f"{best}:fused"] = _unfolded(starts[best], fused)
        if "fusion" in settings.tasks and supports(task.devices) and program.num_nodes <= LARGEST_WHOLE:
            final_plans["whole:fused"] = Planned(whole_step(task), float("nan"), 0.0, 0)
        search = None
        if settings.budget > 0 and "guided_search" in settings.methods:
            with _measurer(source, isolated, settings, progress) as measurer:
                search = _search(task, fused, measurer, starts, out, settings, progress, fleet is not None)
                final_plans["guided_search"] = _unfolded(search.planned(), fused)
        plans = plans_found(final_plans)
        finals = _measure_finally(source, isolated, plans, program, settings, progress, written)
    best = finals.best
    entries = {
        name: _measured_entry(
            seen, finals.second.get(name), final_plans.get(name), search if name == "guided_search" else None
        )
        for name, seen in finals.first.items()
    }
    figures = finals.figures()
    result = placed_result(task, "measured", best, figures["objective"], lower_bound_us(task) / 1e3, entries)
    known = {"name": settings.cost_model, **_cost_model(search)}
    result |= {**figures, "cost_model": known}
    if fleet is not None:
        result |= {"machine": dict(finals.first[PYTORCH].machine), "hosts": fleet.kind.num_hosts}
    if search is not None and (dataset := search.dataset()) is not None:
        prepare([dataset], out / "dataset", max_nodes=512)
    shown = {"measurements": [] if search is None else search.report_rows(), "curves": curves(planned)}
    return PlacementResult(task, plans[best], result, shown)


def _planned(task: Task, path: Path, settings: Settings, progress: Progress) -> dict[str, Planned]:
    """What baselines and methods find in simulation. Groups are of the task, or there are none."""
    methods = [name for name in settings.methods if name != "guided_search"]  # which measures
    return plan_all(
        task, SimulatedObjective(task), methods, evaluations(settings),
        [name for name in settings.tasks if name != "fusion"], settings.seed, Log(path), progress,
    )  # fmt: skip


def measured_task(program: Program, isolated: IsolatedExecutor | FleetWorkers, seed: int) -> Task:
    """Costs as profiled, and contention as learned from a few plans that keep several devices busy.

    A machine's speed drifts between the profile and the runs of these plans, which would be taken for contention. So
    each device alone takes turns with the plans, and its profile is scaled to what it takes there.
    """
    task = Task.of_program(program, isolated.costs())
    count = len(task.devices)
    if count < 2:
        return task
    alone = [single(task, device) for device in range(count)]
    known = {plan.key for plan in alone}
    plans = list(islice((plan for _, plan in random_plans(task, seed) if plan.key not in known), NUM_CALIBRATION))
    try:
        runs = isolated.timelines([*alone, *plans], CALIBRATION_RUNS)
    except Failure:
        return task
    if not runs:
        return task
    took = np.array([(run.end_us - run.begin_us).sum() for run in runs[:count]])
    scale = took / np.maximum(task.times_us.sum(1), 1e-9)
    costs = replace(task.costs, times_us=task.times_us * scale[:, None])
    return Task.of_program(program, costs, fit(costs, runs[count:]) if plans else None)


def cached_task(program: Program, devices: Sequence[Device], out: Path, make: Callable[[], Task]) -> Task:
    """The task with costs that `make` measures, or that `out` holds from before: a search that goes on needs the costs
    it began with, as baselines would make other plans of others.

    Raises:
        ValueError: `out` has costs of another program or other devices, or they are damaged.
    """
    path = out / COSTS
    if not path.exists():
        task = make()
        record = {
            "program": program.key, "devices": list(task.names), "times_us": task.times_us.tolist(),
            "own_bytes": task.costs.own_bytes.tolist(), "contention": task.contention.to_dict(),
        }  # fmt: skip
        with atomic_write(path) as file:
            file.write(json.dumps(record))
    record = read_object(path)
    if record["program"] != program.key or record["devices"] != [device.name for device in devices]:
        raise ValueError(f"{path} is of another program or other devices; give another --out")
    costs = profiled_costs(program, devices, np.array(record["times_us"], np.float64))
    costs = replace(costs, own_bytes=np.array(record["own_bytes"], np.int64))
    return Task.of_program(program, costs, Contention(**record["contention"]))


@contextmanager
def _measurer(
    source: Path | str, isolated: IsolatedExecutor | FleetWorkers, settings: Settings, progress: Progress
) -> Iterator[Measurer]:
    """What a search measures by: the process that profiled, several others, or the hosts of a fleet."""
    if isinstance(isolated, FleetWorkers):
        yield isolated
        return
    gate = LoadGate(patience_s=settings.patience_s, progress=progress)
    if settings.workers == 1:
        yield MeasuredObjective(isolated, SEARCH_RUNS, gate=gate)
        return
    make = partial(IsolatedExecutor, source, isolated.devices)
    with Workers(make, settings.workers, SEARCH_RUNS, gate=gate) as workers:
        yield workers


def _search(
    task: Task, fused: FusedTask | None, measurer: Measurer, starts: Mapping[str, Planned], out: Path,
    settings: Settings, progress: Progress, on_fleet: bool,
) -> Search:  # fmt: skip
    searched = task if fused is None else fused.task
    return Search(
        searched, measurer, Log(out / "measurements.jsonl"), plans_found(starts), settings.budget, settings.evaluations,
        settings.tasks, seed=settings.seed, progress=progress, as_run=as_is if fused is None else fused.unfold,
        surrogate=NetworkSurrogate(searched, settings.seed) if settings.cost_model == "network" else None,
        on_fleet=on_fleet,
    )  # fmt: skip


def _unfolded(found: Planned, fused: FusedTask | None) -> Planned:
    """What was found for a task whose groups are single operations, as a plan of the program."""
    return found if fused is None or found.plan is None else replace(found, plan=fused.unfold(found.plan))


def _measure_finally(
    source: Path | str, isolated: IsolatedExecutor | FleetWorkers, plans: dict[str, Plan], program: Program,
    settings: Settings, progress: Progress, written: Callable[[], object] | None,
) -> Finals:  # fmt: skip
    """Two sets of fresh runs in turns, of all plans and of the fastest of them; a plan under several names runs once.

    Raises:
        ValueError: no plan ran.
    """
    progress("compiling the step", 0, 1)
    left_out = "" if settings.compile_step else "left out, as asked"
    if program.num_nodes > LARGEST_WHOLE:
        left_out = f"left out: torch.compile takes minutes for {program.num_nodes:,} operations"
    with ExitStack() as stack:
        if not isinstance(isolated, FleetWorkers):
            steps = stack.enter_context(steps_beside(source, left_out, written))

        def measured(few: dict[str, Plan], what: str) -> dict[str, Measurement]:
            distinct = list({plan.key: plan for plan in few.values()}.values())
            progress(what, 0, 1)
            if isinstance(isolated, FleetWorkers):
                return by_name(few, isolated.measure_beside_steps(distinct, settings.repetitions, 2, left_out))
            gate = LoadGate(patience_s=settings.patience_s, progress=progress)
            told = lambda done, total: progress(what, done, total)  # noqa: E731
            return by_name(few, measure_plans(isolated, distinct, settings.repetitions, 2, gate, steps, told))

        first = measured(plans, "measuring the finalists afresh")
        again = {name: plans[name] for name in fastest(first, NUM_AGAIN)}
        if not again:
            reasons = sorted({first[name].reason for name in plans})
            names = ", ".join(device.name for device in isolated.devices)
            raise ValueError(f"no plan of {program.name} ran on {names}: {'; '.join(reasons)}")
        return Finals(first, measured(again, "measuring the fastest once more"))


def _measured_entry(
    seen: Measurement, again: Measurement | None, planned: Planned | None, search: Search | None
) -> dict[str, Any]:
    record, second = seen.to_dict(), {} if again is None else again.to_dict()
    simulated_ms = float("nan") if planned is None else planned.expected_ms
    return {
        **{key: record[key] for key in ("median_ms", "low_ms", "high_ms")},
        **{f"again_{key}": second.get(key) for key in ("median_ms", "low_ms", "high_ms")},
        "feasible": seen.outcome == "ok", "reason": seen.reason,
        "seconds_to_plan": None if planned is None else planned.seconds,
        "measurements": 0 if search is None else len(search.trials), "runs": seen.repetitions,
        "simulated_ms": None if np.isnan(simulated_ms) else simulated_ms,
    }  # fmt: skip


def _cost_model(search: Search | None) -> dict[str, Any]:
    if search is None:
        return {"tau": None, "num_measured": 0, "num_screened": 0}
    tau = search.tau()
    return {
        "tau": None if np.isnan(tau) else tau, "num_measured": len(search.trials), "num_screened": search.num_screened,
    }  # fmt: skip
