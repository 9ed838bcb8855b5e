"""Settings of a search, and plans of a task by every baseline and method, judged without measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import portfolio
from gst.placement.cost_models import COST_MODELS
from gst.placement.methods import METHODS, words_of
from gst.placement.objectives import (
    InProgramOrder,
    Objective,
    Planned,
    SearchReward,
    SimulatedObjective,
    check_tasks,
    restrict,
)
from gst.placement.task import Task, check_same
from gst.util.progress import Progress, no_progress

DEFAULT_METHODS = ("annealing",)

BUDGET = 16
"""Plans measured by default. On two cores a search of 50 ended 3 % behind annealing on the simulator; it is ahead where
costs differ from the profile."""


def check_names(methods: Sequence[str], tasks: Sequence[str]) -> None:
    """Raises:
    ValueError: a method or a task is unknown, or placement is not among the tasks.
    """
    if wrong := [name for name in methods if name not in METHODS]:
        raise ValueError(f"there is no method {wrong[0]!r}; there are {', '.join(METHODS)}")
    check_tasks(tasks)


@dataclass(frozen=True)
class Settings:
    """Settings of a search for a plan.

    Args:
        budget: plans that the loop may measure; 0 = none, the baselines alone are measured.
        evaluations: plans that each method may ask about, in simulation and again in each round of the loop.
        methods: some of `gst.placement.methods.METHODS`.
        tasks: the decisions to make, some of `gst.placement.objectives.TASKS`.
        repetitions: runs of each plan at the end.
        patience_s: seconds to wait for quiet cores.
        cost_model: one of `gst.placement.cost_models.COST_MODELS`; it learns from measurements how the simulator errs.
        compile_step: also measure the step compiled and frozen, on all cores and on one; each takes up to a minute.
        compile_s: no such variant is begun after half of these seconds, and none is compiled beyond them.
        finals_s: seconds of each set of runs at the end, see `gst.execution.measure.measure`.
        warm_start: directory of a search of another program on this machine, whose fitted costs this one starts from.
    """

    budget: int = BUDGET
    evaluations: int = 2_000
    methods: tuple[str, ...] = DEFAULT_METHODS
    tasks: tuple[str, ...] = ("placement", "schedule")
    repetitions: int = 25
    seed: int = 0
    patience_s: float = 20.0
    cost_model: str = "fitted"
    compile_step: bool = True
    compile_s: float = 120.0
    finals_s: float = math.inf
    warm_start: Path | str | None = None

    def __post_init__(self) -> None:
        check_names(self.methods, self.tasks)
        for what in ("budget", "evaluations"):
            if getattr(self, what) < 0:
                raise ValueError(f"{what} is {getattr(self, what)}; 0 = the portfolio alone")
        if self.repetitions < 1:
            raise ValueError(f"repetitions is {self.repetitions}; want 1 or more")
        if self.cost_model not in COST_MODELS:
            raise ValueError(f"there is no cost model {self.cost_model!r}; there are {', '.join(COST_MODELS)}")
        if self.warm_start is not None and self.cost_model == "none":
            raise ValueError("without a cost model a search starts from no learned costs; take fitted or gst")


DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """The fastest plan of a search, and its comparison with the others.

    Args:
        result: see `gst.placement.planning.placed_result`.
        drawing: more data for the report, see `gst.placement.api.drawing`.
    """

    task: Task
    plan: Plan
    result: dict[str, Any]
    drawing: dict[str, Any] = field(default_factory=dict)


def plan_all(
    task: Task,
    objective: Objective,
    methods: Sequence[str] = DEFAULT_METHODS,
    evaluations: int = 2_000,
    tasks: Sequence[str] = ("placement", "schedule"),
    seed: int = 0,
    log: Log | None = None,
    progress: Progress = no_progress,
) -> dict[str, Planned]:
    """Return the plan of each baseline, then the best plan of each method, by name.

    Args:
        methods: some of `gst.placement.methods.METHODS`.
        evaluations: plans that each method may ask about; 0 = baselines alone.
        tasks: the decisions to make; without 'schedule' operations run in program order.
        log: file of results of methods; methods with a result in it do not run again.

    Raises:
        ValueError: a method is unknown, or the log is of another task.

    Examples:
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
        >>> plans = plan_all(task, SimulatedObjective(task), ["annealing"], evaluations=100)
        >>> plans["annealing"].expected_ms <= plans["heft"].expected_ms
        True
    """
    check_names(methods, tasks)
    settings = {
        "task": task.key, "devices": list(task.names), "seed": seed, "most_evaluations": evaluations,
        "tasks": list(tasks), "memory_limits": task.memories,
    }  # fmt: skip
    logged = {
        name: each if each.plan is None else replace(each, expected_ms=float(objective([each.plan])[0]))
        for name, each in _read_log(log, settings).items()  # costs of the machine may have changed since
    }
    results: dict[str, Planned] = {}
    started = time.perf_counter()
    baselines = {name: restrict(plan, tasks) for name, plan in portfolio(task).items()}
    each_s = (time.perf_counter() - started) / max(len(baselines), 1)
    for (name, plan), runtime_ms in zip(baselines.items(), objective(list(baselines.values())), strict=True):
        results[name] = Planned(plan, float(runtime_ms), each_s, 1)
    for name in methods if evaluations > 0 else ():
        if name not in logged:
            logged[name] = _search(name, task, objective, evaluations, tasks, seed, progress)
            if log is not None:
                log.append({"method": name, **settings, **logged[name].to_dict()})
        results[name] = logged[name]
    return results


def plans_by_name(planned: Mapping[str, Planned]) -> dict[str, Plan]:
    """Return the plans by name, without those of methods that have none."""
    return {name: each.plan for name, each in planned.items() if each.plan is not None}


def plan_by(settings: Settings, task: Task, objective: Objective, log: Path, progress: Progress) -> dict[str, Planned]:
    """Call `plan_all` with settings; without a budget the baselines alone."""
    evaluations = settings.evaluations if settings.budget > 0 else 0
    return plan_all(task, objective, settings.methods, evaluations, settings.tasks, settings.seed, Log(log), progress)


def place_simulated(
    task: Task, out: Path, settings: Settings = DEFAULT_SETTINGS, progress: Progress = no_progress
) -> PlacementResult:
    """Return the fastest plan of all baselines and methods by the simulator, without measurements.

    Args:
        out: directory of `searches.jsonl`, from which the same call goes on.

    Raises:
        ValueError: no plan fits the memories (the message says the least that would do), or `out` is of another task.

    Examples:
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
        >>> result = place_simulated(task, Path("out"), Settings(methods=("annealing",), evaluations=100)).result
        >>> result["lower_bound"] <= result["objective"]
        True
    """
    planned = plan_by(settings, task, SimulatedObjective(task), out / "searches.jsonl", progress)
    check_fits(task, planned)
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
    result = placed_result(task, settings, "simulated", best, ran[best], plans)
    return PlacementResult(task, chosen, result)


def _search(
    name: str, task: Task, objective: Objective, evaluations: int, tasks: Sequence[str], seed: int, progress: Progress
) -> Planned:
    budgeted = SearchReward(objective if "schedule" in tasks else InProgramOrder(objective), evaluations)

    def report(*_: object) -> None:
        progress(f"planning by {name}", budgeted.num_asked, evaluations)

    started = time.perf_counter()
    report()
    METHODS[name].make(task, seed, tasks)(task, budgeted, (), report)
    seconds = time.perf_counter() - started
    plan = None if budgeted.best is None else restrict(budgeted.best, tasks)
    expected = budgeted.best_ms if plan is not None else float("nan")
    return Planned(plan, expected, seconds, budgeted.num_asked, tuple(budgeted.curve))


def _read_log(log: Log | None, settings: Mapping[str, Any]) -> dict[str, Planned]:
    records = [] if log is None else log.read()
    for record in records:
        assert log is not None
        check_same(log.path, record, settings)
    return {record["method"]: Planned.from_dict(record) for record in records}


def check_fits(task: Task, planned: dict[str, Planned]) -> None:
    """Raises:
    ValueError: no plan fits; the message says the least memory that would do for one of those that can run.
    """
    if any(np.isfinite(each.expected_ms) for each in planned.values()):
        return
    limits = {name: limit for name, limit in task.memories.items() if limit is not None}
    can_run = [each.plan for each in planned.values() if each.plan is not None and task.can_run(each.plan)]
    if not limits or not can_run:
        raise ValueError(
            f"no plan of {task.name} that was found can run on {', '.join(task.names)}: each places an operation where "
            "it cannot run; add another device (--devices)"
        )
    least_bytes = min(max(task.memory_use(task.simulator.run(plan))[name] for name in limits) for plan in can_run)
    limits_text = ", ".join(f"{name} {limit / 2**20:.1f} MiB" for name, limit in limits.items())
    raise ValueError(
        f"no plan of {task.name} fits ({limits_text}); the least that would do for a plan found is "
        f"{least_bytes / 2**20:.1f} MiB"
    )


def placed_result(
    task: Task, settings: Settings, runtime: str, best: str, objective: float, plans: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the entries that all results have: `program`, `num_nodes`, `devices`, `runtime` ('measured' or
    'simulated'), `objective` and `lower_bound` (ms), `best`, `plans`, `words` (on what makes each), `methods` that
    searched, and `machine`.

    Where costs were measured there is `profile_load`, the share of the cores that other processes took meanwhile.
    Measured results add `cost_model` and the `figures` of `gst.placement.measured.Finals`, above all `winner`, which
    need not be a plan.

    Args:
        best: name of the fastest plan; `objective` is its time.
        plans: by name `feasible`, `reason`, `seconds_to_plan`, `measurements`; of measured ones `median_ms`, `low_ms`,
            `high_ms`, `runs`, `simulated_ms`, and of the fastest the same three of a second set of runs,
            `again_median_ms` and so on; of others `latency` (ms) and `evaluations`.
    """
    profiled = {} if task.costs.load is None else {"profile_load": task.costs.load}
    return {
        "program": task.name, "num_nodes": task.num_nodes, "devices": list(task.names), "runtime": runtime,
        "objective": objective, "lower_bound": lower_bound_us(task) / 1e3, "best": best, "plans": plans,
        "words": {name: told for name in plans if (told := words_of(name))},
        "methods": list(settings.methods), "machine": machine_record(), **profiled,
    }  # fmt: skip
