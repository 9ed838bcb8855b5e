"""From a program and devices to the fastest plan found, by real measurements: profile, plan, search, finals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gst.execution.executor import finds_order
from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Log, Measurement
from gst.execution.plain import COMPILED, PYTORCH, failing, steps_beside
from gst.graphs.store import prepare
from gst.lowering.plan import Plan, in_order_of
from gst.machine.devices import Device, core_numbers, supports
from gst.machine.load import LoadGate
from gst.placement.api.headroom import within
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.fleet.processes import Workers
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.fusion.measured import FusedTask, chains, fused_task, segments, share_in_parallel, whole_step
from gst.placement.objectives import MeasuredObjective, Measurer, PlanRunner, SimulatedObjective
from gst.placement.planning import (
    DEFAULT_SETTINGS,
    METHODS,
    PlacementResult,
    Planned,
    Settings,
    check_fits,
    curves,
    placed_result,
    plan_by,
    plans_by_name,
)
from gst.placement.policies.constructive.fine_tuning import FineTuning
from gst.placement.profiling import cached_task, profiled_task
from gst.placement.search.measured import Search
from gst.placement.search.surrogates import NetworkSurrogate
from gst.placement.task import Task
from gst.programs import Program
from gst.util.progress import Progress, no_progress
from gst.whole_model.child_process import ways_beside
from gst.whole_model.choosing import winner
from gst.whole_model.on_accelerator import steps_on_accelerator
from partitioners import usual_method

SEARCH_RUNS = 5  # of each plan that a search measures, in turns
SEARCHES = "searches.jsonl"  # what was found in simulation
GROUPINGS = {"fused": chains, "segments": segments}  # which operations may be compiled into one
ROOM = 0.8  # of the time of all operations on the fastest device: what segments in parallel may take
LARGEST_WHOLE = 5_000  # operations of a program that is compiled into one: Inductor takes minutes for these
NUM_BASELINES = 12  # that are measured at the end, of those that look best in simulation; and every method's plan
NUM_AGAIN = 3  # plans that are measured again
OLD = "old_plan"  # name of the plan of an earlier version of the program
TO_COMPILE = 0.4  # of the seconds that are left, if there are so many
ALONE = 5  # times that, at most, for a step of which nothing else is compiled


def place_measured(
    program: Program,
    source: Path | str,
    devices: Sequence[Device],
    out: Path,
    settings: Settings = DEFAULT_SETTINGS,
    progress: Progress = no_progress,
    fleet: FleetWorkers | None = None,
    here: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    old_plan: Plan | None = None,
    seconds: float = math.inf,
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
        here: other ways to run the step, in this process, by name, the simplest first; see
            `gst.execution.plain.steps_beside`.
        old_plan: of an earlier version of the program; the search begins with it too, and it is among the finalists.
        seconds: about as long as all of it may take: fewer plans are measured, and fewer ways compiled.

    Raises:
        ValueError: the program does not run, or no plan fits the memory limit (the message says the least that would
            do), or `out` is of another program, other devices or settings.
    """

    started = time.perf_counter()
    with fleet or IsolatedExecutor(source, devices) as runner:
        profile = partial(profiled_task, program, runner, settings, progress)
        task = cached_task(program, runner.devices, out, profile)
        limited = settings
        if not math.isinf(seconds):
            left = seconds - (time.perf_counter() - started)
            limited = replace(within(settings, left, task.least_alone_us / 1e3), compile_s=TO_COMPILE * left)
        before = [record["most_evaluations"] for record in Log(out / SEARCHES).read()]  # of a search that goes on
        evaluations = next((each for each in before if each <= settings.evaluations), limited.evaluations)
        settings = replace(limited, evaluations=evaluations)
        simulated = replace(  # `guided_search` is the one method that measures, and fusion is of the task or is not
            settings,
            methods=tuple(name for name in settings.methods if name != "guided_search"),
            tasks=tuple(name for name in settings.tasks if name != "fusion"),
        )
        planned = plan_by(simulated, task, SimulatedObjective(task), out / SEARCHES, progress)
        if old_plan is not None:
            expected_ms = float(SimulatedObjective(task)([old_plan])[0])
            planned[OLD] = Planned(old_plan, expected_ms, 0.0, 1)
        check_fits(task, planned)
        final_plans = finalists(planned) | {name: each for name, each in planned.items() if name == OLD}
        fused, starts = None, planned
        for kind, found in _groupings(task, runner, out, progress) if "fusion" in settings.tasks else ():
            of_groups = plan_by(
                simulated, found.task, SimulatedObjective(found.task), out / searches_of(kind), progress
            )
            best = _best(of_groups)
            final_plans[f"{best}:{kind}"] = _unfolded(of_groups[best], found)
            if fused is None or of_groups[best].expected_ms < starts[_best(starts)].expected_ms:
                fused, starts = found, of_groups
        if "fusion" in settings.tasks and supports(task.devices) and program.num_nodes <= LARGEST_WHOLE:
            final_plans["whole:fused"] = Planned(whole_step(task), float("nan"), 0.0, 0)
        search = None
        if settings.budget > 0 and "guided_search" in settings.methods:
            with _measurer(source, runner, settings, progress) as measurer:
                search = _search(task, fused, measurer, starts, out, settings, progress, fleet is not None)
                final_plans["guided_search"] = _unfolded(search.planned(), fused)
        plans = {name: _as_run(task, plan) for name, plan in plans_by_name(final_plans).items()}
        finals = _measure_finally(source, runner, plans, program, settings, progress, here)
    best = finals.best
    entries = {
        name: _measured_entry(
            measurement, finals.second.get(name), final_plans.get(name), search if name == "guided_search" else None
        )
        for name, measurement in finals.first.items()
    }
    figures = finals.figures()
    result = placed_result(task, "measured", best, figures["objective"], lower_bound_us(task) / 1e3, entries)
    result |= {**figures, "cost_model": {"name": settings.cost_model, **_cost_model(search)}}
    if fleet is not None:
        result |= {"machine": dict(finals.first[PYTORCH].machine), "hosts": fleet.kind.num_hosts}
    if search is not None and (dataset := search.dataset()) is not None:
        prepare([dataset], out / "dataset", max_nodes=512, method=usual_method())
    drawing = {"measurements": [] if search is None else search.report_rows(), "curves": curves(planned)}
    return PlacementResult(task, plans[best], result, drawing)


def groups_of(kind: str) -> str:
    """Name of the file of what was measured of groups of a kind."""
    return f"groups_{kind}.json"


def searches_of(kind: str) -> str:
    """Name of the log of the searches in which groups of a kind are one operation each."""
    return f"searches_{kind}.jsonl"


def _groupings(task: Task, runner: PlanRunner, out: Path, progress: Progress) -> Iterator[tuple[str, FusedTask]]:
    """The task with groups of each kind of which some are faster compiled; without segments where even the best plan
    of them leaves little to gain, as compiling them takes minutes."""
    for kind, grouping in GROUPINGS.items():
        groups = grouping(task)
        if kind == "segments" and not (supports(task.devices) and share_in_parallel(task, groups) <= ROOM):
            continue
        found = fused_task(task, runner, groups, progress, out / groups_of(kind))
        if found is not None:
            yield kind, found


def _best(planned: Mapping[str, Planned]) -> str:
    return min(planned, key=lambda name: np.nan_to_num(planned[name].expected_ms, nan=np.inf))


@contextmanager
def _measurer(
    source: Path | str, runner: IsolatedExecutor | FleetWorkers, settings: Settings, progress: Progress
) -> Iterator[Measurer]:
    """What a search measures by: the process that profiled, several others, or the hosts of a fleet."""
    if isinstance(runner, FleetWorkers):
        yield runner
        return
    gate = LoadGate(patience_s=settings.patience_s, progress=progress)
    if settings.workers == 1:
        yield MeasuredObjective(runner, SEARCH_RUNS, gate=gate)
        return
    make = partial(IsolatedExecutor, source, runner.devices)
    with Workers(make, settings.workers, SEARCH_RUNS, gate=gate) as workers:
        yield workers


def _search(
    task: Task, fused: FusedTask | None, measurer: Measurer, starts: Mapping[str, Planned], out: Path,
    settings: Settings, progress: Progress, on_fleet: bool,
) -> Search:  # fmt: skip
    searched = task if fused is None else fused.task
    return Search(
        searched, measurer, Log(out / "measurements.jsonl"), plans_by_name(starts), settings.budget,
        settings.evaluations, settings.tasks, seed=settings.seed, progress=progress,
        as_run=partial(_as_run, task) if fused is None else partial(_unfolded_plan, fused),
        surrogate=NetworkSurrogate(searched, settings.seed) if settings.cost_model == "network" else None,
        tuning=FineTuning(searched, settings.seed) if "policy" in settings.methods else None,
        on_fleet=on_fleet,
    )  # fmt: skip


def _as_run(task: Task, plan: Plan) -> Plan:
    """The plan with its operations in the order of its simulation where lanes do not find one while they run."""
    if finds_order(task.devices) or plan.fusion is not None:
        return plan
    return in_order_of(plan, task.simulator.run(plan))


def _unfolded(planned: Planned, fused: FusedTask | None) -> Planned:
    """A plan of the fused task, in which each group is one operation, as a plan of the program."""
    if fused is None or planned.plan is None:
        return planned
    return replace(planned, plan=_unfolded_plan(fused, planned.plan))


def _unfolded_plan(fused: FusedTask, plan: Plan) -> Plan:
    return fused.unfold(_as_run(fused.task, plan))


def _measure_finally(
    source: Path | str, runner: IsolatedExecutor | FleetWorkers, plans: dict[str, Plan], program: Program,
    settings: Settings, progress: Progress, here: Mapping[str, Callable[[], object]],
) -> Finals:  # fmt: skip
    """Two sets of fresh runs in turns, of all plans and of the fastest of them; a plan under several names runs once.

    Raises:
        ValueError: no plan ran.
    """
    skip_reason = "" if settings.compile_step else "left out, as asked"
    if program.num_nodes > LARGEST_WHOLE:
        skip_reason = f"left out: torch.compile takes minutes for {program.num_nodes:,} operations"
    with ExitStack() as stack:
        if not isinstance(runner, FleetWorkers):
            steps = stack.enter_context(_ways(source, runner.devices, skip_reason, settings, here, progress))

        def measure_in_turns(few: dict[str, Plan], what: str) -> dict[str, Measurement]:
            distinct = list({plan.key: plan for plan in few.values()}.values())
            progress(what, 0, 1)
            if isinstance(runner, FleetWorkers):
                return by_name(few, runner.measure_beside_steps(distinct, settings.repetitions, 2, skip_reason))
            gate = LoadGate(patience_s=settings.patience_s, progress=progress)
            measured = measure_plans(
                runner, distinct, settings.repetitions, 2, gate, steps, partial(progress, what), settings.finals_s
            )
            return by_name(few, measured, tuple(steps))

        compiling = isinstance(runner, FleetWorkers) and not skip_reason
        words = "compiling the step, which takes minutes, then " * compiling
        first = measure_in_turns(plans, f"{words}measuring the finalists afresh")
        again = {name: plans[name] for name in fastest(first, NUM_AGAIN)}
        if not again:
            reasons = sorted({first[name].reason for name in plans})
            names = ", ".join(device.name for device in runner.devices)
            raise ValueError(f"no plan of {program.name} ran on {names}: {'; '.join(reasons)}")
        return Finals(first, measure_in_turns(again, "measuring the fastest once more"))


@contextmanager
def _ways(
    source: Path | str, devices: Sequence[Device], skip_reason: str, settings: Settings,
    here: Mapping[str, Callable[[], object]], progress: Progress,
) -> Iterator[dict[str, Callable[[], float]]]:  # fmt: skip
    """What runs the step without a plan, the simplest first: what is `here`, or the step as written and other ways on
    the first accelerator, or those of `gst.place` on these cores. A way that is left out raises its reason."""
    accelerator = next((device for device in devices if device.is_accelerator), None)
    with ExitStack() as stack:
        if accelerator is not None and not here:
            progress("compiling the step in several ways, which takes minutes", 0, 1)
            there = accelerator.torch_device
            yield stack.enter_context(steps_on_accelerator(source, there, settings.compile_s, skip_reason))
            return
        if skip_reason or here or accelerator is not None:
            yield stack.enter_context(steps_beside(source, skip_reason, here, ALONE * settings.compile_s))
            return
        runs = stack.enter_context(steps_beside(source, "not made yet", here))
        progress("compiling the step in several ways, which takes minutes", 0, 1)
        cores = len({number for each in core_numbers(devices) for number in each})
        try:
            made, reasons = stack.enter_context(ways_beside(source, cores, settings.compile_s))
        except ValueError as error:  # the child stopped: what it tried is no way to run the step
            made, reasons = {}, {COMPILED: str(error)}
        left_out = {name: partial(failing, reason) for name, reason in reasons.items()}
        yield {PYTORCH: runs[PYTORCH], **made, **left_out}


def _measured_entry(
    first: Measurement, second: Measurement | None, planned: Planned | None, search: Search | None
) -> dict[str, Any]:
    record, again = first.to_dict(), {} if second is None else second.to_dict()
    simulated_ms = float("nan") if planned is None else planned.expected_ms
    return {
        **{key: record[key] for key in ("median_ms", "low_ms", "high_ms")},
        **{f"again_{key}": again.get(key) for key in ("median_ms", "low_ms", "high_ms")},
        "feasible": first.outcome == "ok",
        "reason": first.reason,
        "seconds_to_plan": None if planned is None else planned.seconds,
        "measurements": 0 if search is None else len(search.trials),
        "runs": first.repetitions,
        "simulated_ms": None if np.isnan(simulated_ms) else simulated_ms,
    }


def _cost_model(search: Search | None) -> dict[str, Any]:
    if search is None:
        return {"tau": None, "num_measured": 0, "num_screened": 0}
    tau = search.tau()
    return {
        "tau": None if np.isnan(tau) else tau,
        "num_measured": len(search.trials),
        "num_screened": search.num_screened,
    }


# The end: the best plans and the step itself, measured in turns, twice. The fastest of many measured medians is fast in
# part by luck. So a plan is chosen by a first set of runs, and its time is taken from a second one.


def finalists(planned: Mapping[str, Planned]) -> dict[str, Planned]:
    """The plans that are worth measuring: of the methods all, of the baselines the best by simulation, and of the
    devices alone (`single:*`) the best one.

    Examples:
        >>> slow, fast = (Planned(None, ms, 0.0, 0) for ms in (2.0, 1.0))
        >>> list(finalists({"single:cpu:0": slow, "single:cpu:1": fast, "heft": slow, "annealing": slow}))
        ['single:cpu:1', 'heft', 'annealing']
    """
    ms = {name: np.nan_to_num(each.expected_ms, nan=np.inf) for name, each in planned.items()}
    baselines = sorted((name for name in planned if name not in METHODS), key=lambda name: ms[name])
    singles = [name for name in baselines if name.startswith("single:")]
    others = [name for name in baselines if name not in singles]
    chosen = {*singles[:1], *others[:NUM_BASELINES]}
    return {name: each for name, each in planned.items() if name in METHODS or name in chosen}


@dataclass(frozen=True, eq=False)
class Finals:
    """Two sets of runs in turns, each by name of a plan, with `pytorch` and `compiled` among them.

    Args:
        first: of all plans.
        second: of the `NUM_AGAIN` fastest of the first set alone.
    """

    first: Mapping[str, Measurement]
    second: Mapping[str, Measurement]

    @property
    def best(self) -> str:
        """Name of the fastest plan of the first set, of those that ran in the second too."""
        in_order, again = fastest(self.first), set(fastest(self.second))
        return next((name for name in in_order if name in again), in_order[0])

    @property
    def winner(self) -> str:
        """`pytorch`, `compiled`, another way without a plan, or `best`: what is to run. Each takes the place of the one
        before it if its runs are faster beyond noise in both sets."""
        steps = [name for name, each in self.first.items() if each.plan_key is None and name != PYTORCH]
        return winner([PYTORCH, *steps, self.best], (self.first, self.second))

    def figures(self) -> dict[str, Any]:
        """For a result: `winner` and, by the second set, `winner_ms`, `objective` (of the best plan), `pytorch_ms` and
        `compiled_ms`, None for what did not run; `load`, the share of the cores that other processes took."""
        ms = {name: None if np.isnan(each.median_ms) else each.median_ms for name, each in self.second.items()}
        best_ms = ms[self.best] if ms[self.best] is not None else self.first[self.best].median_ms
        return {
            "best": self.best,
            "objective": best_ms,
            "winner": self.winner,
            "winner_ms": ms[self.winner],
            "pytorch_ms": ms[PYTORCH],
            "compiled_ms": ms[COMPILED],
            "load": max(each.load for each in (*self.first.values(), *self.second.values())),
        }


def fastest(measurements: Mapping[str, Measurement], count: int | None = None) -> list[str]:
    """Names of plans that ran, the fastest median first; several names of one plan count as one."""
    ran = {name: each for name, each in measurements.items() if each.outcome == "ok" and each.plan_key is not None}
    keys = list(dict.fromkeys(ran[name].plan_key for name in sorted(ran, key=lambda name: ran[name].median_ms)))
    return [name for key in keys[:count] for name in ran if ran[name].plan_key == key]


def by_name(
    plans: Mapping[str, Plan], measured: Sequence[Measurement], steps: Sequence[str] = (PYTORCH, COMPILED)
) -> dict[str, Measurement]:
    """Measurements of the distinct plans, in order, then of the steps, for every name."""
    keys = list(dict.fromkeys(plan.key for plan in plans.values()))
    by_key = dict(zip([*keys, *steps], measured, strict=True))
    return {**{name: by_key[plan.key] for name, plan in plans.items()}, **{name: by_key[name] for name in steps}}
