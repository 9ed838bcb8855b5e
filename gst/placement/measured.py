"""Placement loop, from a program and devices to the fastest plan: profile, plan in simulation, search, measure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gst.execution.isolated import IsolatedExecutor
from gst.execution.measure import LEAST_ROUNDS, Log
from gst.graphs.store import prepare
from gst.lowering.plan import Plan, in_order_of
from gst.machine.devices import Device, supports, this_machine
from gst.machine.load import LoadGate
from gst.placement import planning
from gst.placement.cost_models import COST_MODELS, load_costs, save_costs
from gst.placement.finals import LARGEST_WHOLE, NUM_BASELINES, Finals, finalists, measure_finals, whole_variants
from gst.placement.fitted import FittedSimulator
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.loop import Loop, brought, report_rows, tau
from gst.placement.objectives import MeasuredObjective, Planned, SimulatedObjective
from gst.placement.profiling import FusedTask, cached_task, chains, fused_task, profiled_task, whole_step
from gst.placement.reward import Learned
from gst.placement.task import Task
from gst.programs import Program
from gst.reporting.headline import LOOP
from gst.util.progress import Progress, no_progress
from gst.whole_model.variants import PYTORCH
from partitioners import usual_method

SEARCH_RUNS = 5  # of each plan that a search measures, alternating
SEARCHES = "searches.jsonl"  # log of the searches in simulation
FUSED_SEARCHES = "searches_fused.jsonl"  # log of those in which each fused group is one operation
GROUPS = "groups_fused.json"  # measured times of the fused groups
TO_COMPILE = 0.6  # of the seconds, for compiling variants, at most
TO_SEARCH = 0.25  # of the seconds, for measuring plans in the search
SHARE = 0.05  # of the seconds, for each of two sets of runs at the end
RUNS = 8  # of a plan in the search, with those that warm up and compare outputs
FINALISTS = 12
LEAST_BASELINES = 3  # that are measured, however short the time


def place_measured(
    program: Program,
    source: Path | str,
    devices: Sequence[Device],
    out: Path,
    settings: planning.Settings = planning.DEFAULT_SETTINGS,
    progress: Progress = no_progress,
    fleet: FleetWorkers | None = None,
    here: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    seconds: float = math.inf,
) -> planning.PlacementResult:
    """Find the fastest plan of a program by real measurements.

    The program is profiled, every method plans in simulation, a search measures plans, and the finalists are measured
    afresh, compared with whole-model variants of the step. `out` receives the profile, `searches.jsonl` and
    `measurements.jsonl`, from which the same call goes on.

    Args:
        source: name of the program (`pinned`), or a directory where it is saved; processes that run plans read it.
        devices: for its operations; a memory limit of a device holds for the values of a run.
        fleet: workers on hosts of one kind with these devices, not entered yet; None = measure on this machine.
        here: whole-model variants in this process by name, see `gst.whole_model.child_process.steps_beside`.
        seconds: time limit, about: fewer plans are measured, and fewer variants compiled.

    Raises:
        ValueError: the program does not run, or no plan fits the memory limit (the message has the least that would
            do), or `out` is of another program, other devices or settings.
    """
    started = time.perf_counter()
    machine, names = fleet.kind.machine if fleet else this_machine(), [each.name for each in devices]
    learned = load_costs(Path(settings.warm_start), machine, names) if settings.warm_start else {}
    compiling = settings if math.isinf(seconds) else replace(settings, compile_s=TO_COMPILE * seconds)
    with (
        fleet or IsolatedExecutor(source, devices) as runner,
        whole_variants(source, runner, program, compiling, here, progress) as found,
    ):
        (variants, kernels), skip_reason = found
        patience_s = 0.0 if fleet else settings.patience_s  # hosts wait by themselves
        profile = partial(profiled_task, program, runner, settings.seed, patience_s, progress)
        task = cached_task(program, runner.devices, out, profile, machine)
        left_s = seconds - (time.perf_counter() - started)
        settings = _limited(settings, left_s, task.least_alone_us / 1e3, out)

        planned = _plans(task, learned, settings, out / SEARCHES, progress)
        planning.check_fits(task, planned)
        starts, fused, extra = _fused(task, planned, runner, learned, settings, out, progress)
        search = None
        if settings.budget > 0:
            search = _search(task, fused, runner, starts, learned, out, settings, progress)
            extra[LOOP] = _unfolded(search.planned(), fused)
            if costs := search.reward.surrogate.learned():
                save_costs(out, costs, machine, task.names)

        count = num_baselines(seconds, task.least_alone_us / 1e3)
        final_plans = finalists(planned, settings.methods, count) | extra
        plans = {name: _as_run(task, plan) for name, plan in planning.plans_by_name(final_plans).items()}
        finals = measure_finals(runner, plans, program, settings, progress, variants, skip_reason)

    result = _result(task, settings, finals, final_plans, search)
    result |= {"kernels": kernels} if kernels else {}
    if fleet is not None:
        result |= {"machine": dict(finals.first[PYTORCH].machine), "hosts": fleet.kind.num_hosts}
    if search is not None and (dataset := search.dataset()) is not None:
        prepare([dataset], out / "dataset", max_nodes=512, method=usual_method())
    drawing = {"measurements": [] if search is None else report_rows(search.trials), "curves": planning.curves(planned)}
    return planning.PlacementResult(task, plans[finals.best], result, drawing)


def _fused(
    task: Task, planned: Mapping[str, Planned], runner: IsolatedExecutor | FleetWorkers, learned: Learned,
    settings: planning.Settings, out: Path, progress: Progress,
) -> tuple[Mapping[str, Planned], FusedTask | None, dict[str, Planned]]:  # fmt: skip
    """Return plans to search from, the task in which fused groups are operations (None without any that is faster), and
    further finalists."""
    extra: dict[str, Planned] = {}
    if "fusion" not in settings.tasks:
        return planned, None, extra
    assert task.program is not None
    fused = fused_task(task, runner, chains(task), progress, out / GROUPS)
    if supports(task.devices) and task.program.num_nodes <= LARGEST_WHOLE:
        extra["whole:fused"] = Planned(whole_step(task), float("nan"), 0.0, 0)
    if fused is None:
        return planned, None, extra
    in_groups = _plans(fused.task, learned, settings, out / FUSED_SEARCHES, progress)
    best = min(in_groups, key=lambda name: np.nan_to_num(in_groups[name].expected_ms, nan=np.inf))
    return in_groups, fused, {f"{best}:fused": _unfolded(in_groups[best], fused), **extra}


def _result(
    task: Task, settings: planning.Settings, finals: Finals, final_plans: Mapping[str, Planned], search: Loop | None
) -> dict[str, Any]:
    trials, screened = ([], 0) if search is None else (search.trials, search.num_screened)
    figures, order = finals.figures(), tau(trials)
    entries = {
        name: finals.entry(name, final_plans.get(name), len(trials) if name == LOOP else 0) for name in finals.first
    }
    cost_model = {
        "name": settings.cost_model, "tau": None if np.isnan(order) else order, "num_measured": len(trials),
        "num_screened": screened,
    }  # fmt: skip
    result = planning.placed_result(task, settings, "measured", finals.best, figures["objective"], entries)
    return result | {"proposed": brought(trials), **figures, "cost_model": cost_model}


def within(settings: planning.Settings, seconds: float, run_ms: float) -> planning.Settings:
    """Limit the settings of a search to some seconds, if a plan takes `run_ms`, as the model does as written.

    Examples:
        >>> within(planning.Settings(budget=50), seconds=30.0, run_ms=100.0).budget
        8
    """
    if math.isinf(seconds):
        return settings
    seconds, run_s = max(seconds, 0.0), run_ms / 1e3
    plans = int(TO_SEARCH * seconds / (RUNS * run_s + 0.05))
    rounds = int(seconds * SHARE / (FINALISTS * run_s))
    return replace(
        settings,
        budget=min(settings.budget, plans),
        evaluations=min(settings.evaluations, 10 + 20 * plans),
        repetitions=min(settings.repetitions, max(rounds, LEAST_ROUNDS)),
        finals_s=SHARE * seconds,
        patience_s=0.0,  # otherwise it would wait before every plan
    )


def num_baselines(seconds: float, run_ms: float) -> int:
    """Return how many baselines are measured at the end within some seconds of a search, if a plan takes `run_ms`.

    Examples:
        >>> num_baselines(60.0, 150.0), num_baselines(60.0, 1.0), num_baselines(math.inf, 150.0)
        (5, 12, 12)
    """
    if math.isinf(seconds):
        return NUM_BASELINES
    return min(max(int(2 * SHARE * seconds / (RUNS * run_ms / 1e3)), LEAST_BASELINES), NUM_BASELINES)


def _limited(settings: planning.Settings, left_s: float, run_ms: float, out: Path) -> planning.Settings:
    """Limit the settings to the time that is left; a search that goes on keeps its number of evaluations."""
    limited = within(settings, left_s, run_ms)
    before = [record["most_evaluations"] for record in Log(out / SEARCHES).read()]
    evaluations = next((each for each in before if each <= settings.evaluations), limited.evaluations)
    return replace(limited, evaluations=evaluations)


def _plans(
    task: Task, learned: Learned, settings: planning.Settings, log: Path, progress: Progress
) -> dict[str, Planned]:
    """Plan by every baseline and method in simulation, with costs learned before; fusion is part of the task."""
    task = FittedSimulator(task, learned).corrected(task) if learned else task
    tasks = tuple(name for name in settings.tasks if name != "fusion")
    return planning.plan_by(replace(settings, tasks=tasks), task, SimulatedObjective(task), log, progress)


def _search(
    task: Task, fused: FusedTask | None, runner: IsolatedExecutor | FleetWorkers, starts: Mapping[str, Planned],
    learned: Learned, out: Path, settings: planning.Settings, progress: Progress,
) -> Loop:  # fmt: skip
    gate = LoadGate(patience_s=settings.patience_s, progress=progress)
    on_fleet = isinstance(runner, FleetWorkers)
    measurer = runner if isinstance(runner, FleetWorkers) else MeasuredObjective(runner, SEARCH_RUNS, gate=gate)
    searched = task if fused is None else fused.task
    return Loop(
        searched, measurer, Log(out / "measurements.jsonl"), planning.plans_by_name(starts), settings.budget,
        settings.evaluations, settings.tasks, seed=settings.seed, progress=progress,
        as_run=partial(_as_run, task) if fused is None else partial(_unfolded_plan, fused),
        surrogate=COST_MODELS[settings.cost_model](searched, settings.seed, learned), methods=settings.methods,
        on_fleet=on_fleet,
    )  # fmt: skip


def _as_run(task: Task, plan: Plan) -> Plan:
    """Put operations in the order of their simulation on devices that do not find an order while they run."""
    if supports(task.devices) or plan.fusion is not None:
        return plan
    return in_order_of(plan, task.simulator.run(plan))


def _unfolded(planned: Planned, fused: FusedTask | None) -> Planned:
    if fused is None or planned.plan is None:
        return planned
    return replace(planned, plan=_unfolded_plan(fused, planned.plan))


def _unfolded_plan(fused: FusedTask, plan: Plan) -> Plan:
    return fused.unfold(_as_run(fused.task, plan))
