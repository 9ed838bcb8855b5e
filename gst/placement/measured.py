"""Placement loop, from a program and devices to the fastest plan: profile, plan in simulation, search, measure.

Finally the best plans and the whole-model variants are measured twice: one set of runs chooses, a second gives the
time, as the fastest of many measured medians is partly luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import LEAST_ROUNDS, Log, Measurement, rested
from gst.graphs.store import prepare
from gst.lowering.plan import Plan, in_order_of
from gst.machine.devices import Device, supports, this_machine
from gst.machine.load import LoadGate, LoadMeter
from gst.placement import planning
from gst.placement.cost_models import COST_MODELS, load_costs, save_costs
from gst.placement.fitted import FittedSimulator
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.loop import Loop, brought, report_rows, tau
from gst.placement.machines import machine
from gst.placement.objectives import Learned, MeasuredObjective, Planned, SimulatedObjective
from gst.placement.profiling import FusedTask, cached_task, chains, check_costs, fused_task, profiled_task, whole_step
from gst.placement.task import Task, check_same
from gst.programs import Program
from gst.reporting.headline import LOOP
from gst.util.progress import Progress, no_progress
from gst.whole_model.child_process import Timed, variants_beside
from gst.whole_model.choosing import TIMES, Candidates, winner
from gst.whole_model.variants import COMPILED, ORDINARY, PYTORCH, Variant
from partitioners import usual_method

SEARCH_RUNS = 5  # of each plan that a search measures, alternating
SEARCHES = "searches.jsonl"  # log of the searches in simulation
FUSED_SEARCHES = "searches_fused.jsonl"  # log of those in which each fused group is one operation
GROUPS = "groups_fused.json"  # measured times of the fused groups
TO_COMPILE = 0.6  # of the seconds, for compiling variants, at most; up to twice as many on busy cores
TO_PROFILE = 0.2  # of the seconds, for the runs from which contention is fitted, and for waiting before them
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
        here: whole-model variants in this process by name, see `gst.whole_model.choosing.Candidates`.
        seconds: time limit, about: fewer plans are measured, and fewer variants compiled. On busy cores it lasts up to
            twice as long.

    Raises:
        ValueError: the program does not run, or no plan fits the memory limit (the message has the least that would
            do), or `out` is of another program, other devices or settings.
    """
    meter = LoadMeter()
    host, names = fleet.kind.machine if fleet else this_machine(), [each.name for each in devices]
    learned = load_costs(Path(settings.warm_start), host, names) if settings.warm_start else {}
    check_costs(program, devices, out, host)  # before anything is compiled
    searched = {"seed": settings.seed, "tasks": [name for name in settings.tasks if name != "fusion"]}
    for record in Log(out / SEARCHES).read():
        check_same(out / SEARCHES, record, searched)
    to_compile_s = settings.compile_s if math.isinf(seconds) else TO_COMPILE * seconds
    with (
        fleet or IsolatedExecutor(source, devices) as runner,
        whole_variants(
            source, runner, program, replace(settings, compile_s=to_compile_s * meter.stretch()), here, progress
        ) as found,
    ):
        variants, skip_reason = found
        profile_s = TO_PROFILE * seconds
        patience_s = 0.0 if fleet else min(settings.patience_s, profile_s)  # hosts wait by themselves
        profile = partial(profiled_task, program, runner, settings.seed, patience_s, progress, profile_s)
        task = cached_task(program, runner.devices, out, profile, host)
        left_s, asked = (seconds - meter.spent()) * meter.stretch(), settings.budget
        settings = _limited(settings, left_s, task.least_alone_us / 1e3, out)

        simulated = replace(settings, budget=asked)  # methods have their turn, even without time to measure plans
        planned = _plans(task, learned, simulated, out / SEARCHES, progress)
        planning.check_fits(task, planned)
        starts, fused, extra = _fused(task, planned, runner, learned, simulated, out, progress)
        search = None
        if settings.budget > 0:
            search = _search(task, fused, runner, starts, learned, out, settings, progress)
            extra[LOOP] = _unfolded(search.planned(), fused)
            if costs := search.reward.surrogate.learned():
                save_costs(out, costs, host, task.names)

        count = num_baselines(seconds, task.least_alone_us / 1e3)
        final_plans = finalists(planned, settings.methods, count) | extra
        plans = {name: _as_run(task, plan) for name, plan in planning.plans_by_name(final_plans).items()}
        finals = measure_finals(runner, plans, program, settings, progress, variants, skip_reason)

    result = _result(task, settings, finals, final_plans, search)
    if fleet is not None:
        result |= {"machine": dict(finals.first[PYTORCH].machine), "hosts": fleet.kind.num_hosts}
    if search is not None and (dataset := search.dataset()) is not None:
        prepare([dataset], out / "dataset", max_nodes=512, method=usual_method())
    drawing = {"measurements": [] if search is None else report_rows(search.trials)}
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
        patience_s=min(settings.patience_s, SHARE * seconds),
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
    patience_s = settings.patience_s if math.isinf(settings.finals_s) else 0.0  # else it would wait before every plan
    gate = LoadGate(patience_s=patience_s, progress=progress)
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


LARGEST_WHOLE = 5_000  # operations of a program that is compiled into one: Inductor takes minutes for these
NUM_BASELINES = 12  # that are measured, the best in simulation; every method's plan is
NUM_AGAIN = 3  # plans in the second set
LEAST_SHARE, LEAST_FUSED = 0.9, 0.5  # least time of a plan / (time on one core / cores), and with fusion
LEAST_MS = 1.0  # of a program for which a plan is made
TO_PLAN = 0.4  # of the seconds, at least: operations are profiled before anything is planned
COMPILING = "compiling variants of the step, which takes minutes"
FIRST, AGAIN = "measuring the finalists afresh", "measuring the fastest once more"


def finalists(
    planned: Mapping[str, Planned], methods: Collection[str], num_baselines: int = NUM_BASELINES
) -> dict[str, Planned]:
    """Choose the plans to measure: of all methods, of the best baselines, and the best device alone (`single:*`)."""
    ms = {name: np.nan_to_num(each.expected_ms, nan=np.inf) for name, each in planned.items()}
    baselines = sorted((name for name in planned if name not in methods), key=lambda name: ms[name])
    singles = [name for name in baselines if name.startswith("single:")]
    others = [name for name in baselines if name not in singles]
    chosen = {*singles[:1], *others[:num_baselines]}
    return {name: each for name, each in planned.items() if name in methods or name in chosen}


@dataclass(frozen=True, eq=False)
class Finals:
    """Two sets of alternating runs by name of a plan or of a whole-model variant: `first` of all, `second` of the
    fastest.
    """

    first: Mapping[str, Measurement]
    second: Mapping[str, Measurement]

    @property
    def best(self) -> str:
        """Name of the plan with the least geometric mean of both medians, of the first if none ran twice."""
        again = fastest(self.second)
        in_both = [name for name in fastest(self.first) if name in again]
        ms = {name: self.first[name].median_ms * self.second[name].median_ms for name in in_both}
        return min(in_both, key=lambda name: ms[name]) if in_both else fastest(self.first)[0]

    @property
    def winner(self) -> str:
        """Name of the variant or plan to run: the simplest that no other beats beyond noise in both sets."""
        alone = {PYTORCH, ORDINARY}
        variants = [name for name, each in self.first.items() if each.plan_key is None and name not in alone]
        return winner([PYTORCH, *variants, self.best], (self.first, self.second))

    def figures(self) -> dict[str, Any]:
        """Return `best`, `winner`, `load` (share of the cores that others took), and times by the second set:
        `objective` of the best plan, `winner_ms`, `pytorch_ms`, `compiled_ms`. A time is None for what did not run."""
        ms = {name: None if np.isnan(each.median_ms) else each.median_ms for name, each in self.second.items()}
        best_ms = ms[self.best] if ms[self.best] is not None else self.first[self.best].median_ms
        return {
            "best": self.best, "objective": best_ms, "winner": self.winner, "winner_ms": ms[self.winner],
            "pytorch_ms": ms[PYTORCH], "compiled_ms": ms[COMPILED],
            "load": max(each.load for each in (*self.first.values(), *self.second.values())),
        }  # fmt: skip

    def entry(self, name: str, planned: Planned | None, num_measured: int) -> dict[str, Any]:
        """Return the entry of a plan or variant in `plans` of a result, see `gst.placement.planning.placed_result`."""
        first, second = self.first[name].to_dict(), self.second[name].to_dict() if name in self.second else {}
        expected_ms = None if planned is None or np.isnan(planned.expected_ms) else planned.expected_ms
        return {
            **{key: first[key] for key in TIMES},
            **{f"again_{key}": second.get(key) for key in TIMES},
            "feasible": self.first[name].outcome == "ok",
            "reason": self.first[name].reason,
            "seconds_to_plan": None if planned is None else planned.seconds,
            "measurements": num_measured,
            "runs": self.first[name].repetitions,
            "simulated_ms": expected_ms,
        }


def fastest(measurements: Mapping[str, Measurement], count: int | None = None) -> list[str]:
    """Return names of plans that ran, the fastest median first; several names of one plan count as one."""
    ran = {name: each for name, each in measurements.items() if each.outcome == "ok" and each.plan_key is not None}
    keys = list(dict.fromkeys(ran[name].plan_key for name in sorted(ran, key=lambda name: ran[name].median_ms)))
    return [name for key in keys[:count] for name in ran if ran[name].plan_key == key]


@contextmanager
def whole_variants(
    source: Path | str, runner: IsolatedExecutor | FleetWorkers, program: Program, settings: planning.Settings,
    here: Mapping[str, Callable[[], object]], progress: Progress,
) -> Iterator[tuple[Timed, str]]:  # fmt: skip
    """Make the whole-model variants of the step, and the reason why nothing is compiled; hosts of a fleet make theirs.

    They come before the search: compiled code is the strongest rival of plans, and a short search would leave no time.
    """
    skip_reason = "" if settings.compile_step else "left out, as asked"
    if program.num_nodes > LARGEST_WHOLE:
        skip_reason = f"left out: torch.compile takes minutes for {program.num_nodes:,} operations"
    if isinstance(runner, FleetWorkers):
        yield {}, skip_reason
        return
    if here:
        yield {name: partial(rested, step) for name, step in here.items()}, skip_reason
        return
    progress(COMPILING, 0, 1)
    with variants_beside(source, runner.devices, settings.compile_s, skip_reason) as variants:
        yield variants, skip_reason


def measure_finals(
    runner: IsolatedExecutor | FleetWorkers, plans: dict[str, Plan], program: Program, settings: planning.Settings,
    progress: Progress, variants: Timed, skip_reason: str,
) -> Finals:  # fmt: skip
    """Measure all plans and the whole-model variants alternately, then the fastest again.

    Args:
        variants, skip_reason: see `whole_variants`.

    Raises:
        ValueError: no plan ran.
    """

    def measured(few: dict[str, Plan], words: str) -> dict[str, Measurement]:
        distinct = list({plan.key: plan for plan in few.values()}.values())  # a plan of several names runs once
        progress(words, 0, 1)
        if isinstance(runner, FleetWorkers):
            return by_name(few, runner.measure_with_steps(distinct, settings.repetitions, 2, skip_reason))
        look_s = 0.1 if math.isinf(settings.finals_s) else 0.0
        gate = LoadGate(patience_s=settings.patience_s, interval_s=look_s, progress=progress)
        measurements = measure_plans(
            runner, distinct, settings.repetitions, 2, gate, variants, partial(progress, words), settings.finals_s
        )
        return by_name(few, measurements, tuple(variants))

    compiles_there = isinstance(runner, FleetWorkers) and not skip_reason
    first = measured(plans, f"compiling the step, which takes minutes, then {FIRST}" if compiles_there else FIRST)
    again = {name: plans[name] for name in fastest(first, NUM_AGAIN)}
    if not again:
        reasons = sorted({first[name].reason for name in plans})
        names = ", ".join(device.name for device in runner.devices)
        raise ValueError(f"no plan of {program.name} ran on {names}: {'; '.join(reasons)}")
    return Finals(first, measured(again, AGAIN))


def by_name(
    plans: Mapping[str, Plan], measured: Sequence[Measurement], variants: Sequence[str] = (PYTORCH, COMPILED)
) -> dict[str, Measurement]:
    """Return measurements by name, from those of the distinct plans in order, then of the variants."""
    keys = list(dict.fromkeys(plan.key for plan in plans.values()))
    by_key = dict(zip([*keys, *variants], measured, strict=True))
    return {**{name: by_key[plan.key] for name, plan in plans.items()}, **{name: by_key[name] for name in variants}}


def chain_share(program: Program) -> float:
    """Return the work of the longest chain of operations as a share of all work, by the roofline of one core.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> chain_share(capture_module(layers, (torch.ones(1, 8),)))
        1.0
    """
    work = machine("cores:1").task(program).times_us[0]
    ends = work.tolist()
    for node, operation in enumerate(program.operations):
        ends[node] += max((ends[each] for each in operation.producers), default=0.0)
    return max(ends, default=0.0) / max(float(work.sum()), 1e-9)


def no_headroom(
    variants: Candidates,
    devices: Sequence[Device],
    cores: int,
    settings: planning.Settings,
    left: float,
    program: Program | None = None,
) -> str:
    """Say why no plan for cores could be the fastest, or be found in the time that is left; empty if one could.

    A plan runs the operations one by one. All cores together need at least their share of the time of one core, and the
    longest chain of operations needs its share of the time on all cores.

    Args:
        variants: of the whole model, with their times.
        devices: of plans; if one is an accelerator nothing is known beforehand.
        left: share of the seconds, 0 .. 1.
        program: of the model, if it was captured.

    Examples:
        >>> variants = Candidates({}, {}, {"pytorch": 5.0, "pytorch, 1 thread": 8.0})
        >>> no_headroom(variants, (), cores=2, settings=planning.Settings(), left=0.2)
        'compiling took the time; give more seconds, or None for as long as it takes'
    """
    if any(device.kind != "cpu" for device in devices):
        return ""
    if variants.best_ms < LEAST_MS:
        return f"handing values from core to core gains nothing in a program of less than {LEAST_MS:g} ms"
    fuses = "fusion" in settings.tasks
    one_ms = variants.first_ms.get(Variant(PYTORCH, 1).name, variants.first_ms[PYTORCH])
    least_ms = one_ms / cores * (LEAST_FUSED if fuses else LEAST_SHARE)
    if variants.best_ms <= least_ms:
        return f"one core takes {one_ms:.2f} ms as written, so none is likely to take less than {least_ms:.2f} ms"
    chain = 0.0 if program is None else chain_share(program)
    chain_ms = chain * variants.first_ms[PYTORCH] * (LEAST_FUSED if fuses else 1.0)
    if variants.best_ms <= chain_ms:
        return (
            f"{chain:.0%} of the work is one chain of operations, which takes {chain_ms:.2f} ms on all cores as written"
        )
    return "" if left > TO_PLAN else "compiling took the time; give more seconds, or None for as long as it takes"
