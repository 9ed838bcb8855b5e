"""Plans of a task by every baseline and search method, on costs alone; settings of a placement, and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from experiments.reproductions.public_problems.cost_graphs import CostGraph
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted, Objective, SimulatedObjective
from gst.placement.policies.colocrl import colocrl
from gst.placement.policies.constructive.fine_tuning import fine_tune
from gst.placement.policies.go import go
from gst.placement.policies.guided_search import guided_search
from gst.placement.policies.hdp import hdp
from gst.placement.search.annealing import anneal
from gst.placement.search.population import cross_entropy, evolve
from gst.placement.task import Task, check_same
from gst.util.progress import Progress, no_progress

Method = Callable[..., None]
RENAMED = {"ours": "guided_search"}  # methods by the names that earlier versions wrote
JOINT = ("go",)  # methods that decide fusion too, and are told the tasks
METHODS: dict[str, Method] = {
    "annealing": anneal, "cross_entropy": cross_entropy, "evolution": evolve, "colocrl": colocrl, "hdp": hdp,
    "go": go, "policy": fine_tune, "guided_search": guided_search,
}  # fmt: skip
DEFAULT_METHODS = ("annealing", "guided_search")
TASKS = ("placement", "schedule", "fusion")

COST_MODELS = ("sums", "network")
"""Linear regression on sums over the operations of a plan, and the GST cost model (`gst.placement.search.surrogates`)."""


def check_names(methods: Sequence[str], tasks: Sequence[str]) -> None:
    """Raises:
    ValueError: there is no such method or no such task, or placement is not among the tasks.
    """
    for names, choices, what in ((methods, METHODS, "method"), (tasks, TASKS, "task")):
        if wrong := [name for name in names if name not in choices]:
            raise ValueError(f"there is no {what} {wrong[0]!r}; there are {', '.join(choices)}")
    if "placement" not in tasks:
        raise ValueError(f"the tasks are {', '.join(tasks) or 'none'}; placement must be among them")


BUDGET = 16
"""Plans that are measured by default. On the cores of this machine a search of 50 ended 3 % behind annealing on the
simulator, which measures none (`experiments.bench.search_loop`); it is ahead where costs are not as profiled."""


@dataclass(frozen=True)
class Settings:
    """Settings of a search: how long to look for a plan, by which methods, and how to measure.

    Args:
        budget: plans that the search for `guided_search` may measure; 0 = none, the portfolio alone is measured.
        evaluations: simulated plans that each method may ask about.
        methods: some of `gst.placement.planning.METHODS`.
        tasks: what is decided: 'placement', 'schedule', 'fusion'.
        repetitions: runs of each plan at the end.
        seed: of everything that is drawn.
        patience_s: how long to wait for quiet cores.
        workers: processes that measure for the search.
        cost_model: one of `COST_MODELS`, which learns from what the search measures how wrong the simulator is.
        compile_step: whether the step compiled and frozen, on all cores and on one, is among what is measured at the
            end; each takes up to a minute to compile.
        compile_s: no such way is begun after half of these seconds, and none is compiled beyond them.
        finals_s: of each set of runs at the end, but for as many as there must be, see `gst.execution.measure.measure`.
    """

    budget: int = BUDGET
    evaluations: int = 2_000
    methods: tuple[str, ...] = DEFAULT_METHODS
    tasks: tuple[str, ...] = ("placement", "schedule")
    repetitions: int = 25
    seed: int = 0
    patience_s: float = 20.0
    workers: int = 1
    cost_model: str = "sums"
    compile_step: bool = True
    compile_s: float = 120.0
    finals_s: float = math.inf

    def __post_init__(self) -> None:
        check_names(self.methods, self.tasks)
        for what in ("budget", "evaluations"):
            if getattr(self, what) < 0:
                raise ValueError(f"{what} is {getattr(self, what)}; 0 = the portfolio alone")
        for what in ("repetitions", "workers"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} is {getattr(self, what)}; want 1 or more")
        if self.cost_model not in COST_MODELS:
            raise ValueError(f"there is no cost model {self.cost_model!r}; there are {', '.join(COST_MODELS)}")


DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True, eq=False)
class Planned:
    """The plan that a baseline or a method proposes.

    Args:
        plan: None if it found none that runs.
        expected_ms: runtime by what it was asked of; NaN without a plan.
        seconds: to find it.
        evaluations: plans that were asked about.
        curve: (plans asked, best runtime in ms so far).
    """

    plan: Plan | None
    expected_ms: float
    seconds: float
    evaluations: int
    curve: tuple[tuple[int, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON; NaN becomes None."""
        return {
            "plan": None if self.plan is None else self.plan.to_dict(),
            "seconds": self.seconds,
            "expected_ms": None if np.isnan(self.expected_ms) else self.expected_ms,
            "evaluations": self.evaluations,
            "curve": [list(point) for point in self.curve],
        }

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Planned:
        """Read what `to_dict` made."""
        return Planned(
            None if record["plan"] is None else Plan.from_dict(record["plan"]),
            float("nan") if record["expected_ms"] is None else record["expected_ms"],
            record["seconds"],
            record["evaluations"],
            tuple((count, best) for count, best in record["curve"]),
        )


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """The fastest plan of a search, and how it compares.

    Args:
        task: what was placed.
        plan: the fastest.
        result: for programs, see `placed_result`.
        drawing: what the report shows beyond it, see `gst.placement.api.drawing`.
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
    """Baselines by name, then the best plan that each method finds with `evaluations` questions.

    Args:
        objective: who is asked, simulated or published.
        methods: some of `METHODS`.
        tasks: what they decide; without 'schedule' operations run in program order.
        log: where each answer is written before the next is sought; answers of it are taken over.

    Raises:
        ValueError: there is no such method, or the log is of another task.

    Examples:
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> plans = plan_all(task, SimulatedObjective(task), ["annealing"], evaluations=100)
        >>> plans["annealing"].expected_ms <= plans["heft"].expected_ms
        True
    """
    check_names(methods, tasks)
    settings = {
        "task": task.key,
        "devices": list(task.names),
        "seed": seed,
        "most_evaluations": evaluations,
        "tasks": list(tasks),
        "memory_limits": task.memories,
    }
    logged_results = {
        name: each if each.plan is None else replace(each, expected_ms=float(objective([each.plan])[0]))
        for name, each in _read_log(log, settings).items()  # costs of the machine may be others than then
    }
    results: dict[str, Planned] = {}
    started = time.perf_counter()
    baselines = {name: restrict(plan, tasks) for name, plan in portfolio(task).items()}
    each_s = (time.perf_counter() - started) / max(len(baselines), 1)
    for (name, plan), runtime_ms in zip(baselines.items(), objective(list(baselines.values())), strict=True):
        results[name] = Planned(plan, float(runtime_ms), each_s, 1)
    for name in methods if evaluations > 0 else ():
        if name not in logged_results:
            logged_results[name] = _search(name, task, objective, evaluations, tasks, seed, progress)
            if log is not None:
                log.append({"method": name, **settings, **logged_results[name].to_dict()})
        results[name] = logged_results[name]
    return results


def plans_by_name(planned: Mapping[str, Planned]) -> dict[str, Plan]:
    """The plans by name of their baseline or method, without those that have none."""
    return {name: each.plan for name, each in planned.items() if each.plan is not None}


def plan_by(settings: Settings, task: Task, objective: Objective, log: Path, progress: Progress) -> dict[str, Planned]:
    """`plan_all` with settings; without a budget the baselines alone."""
    evaluations = settings.evaluations if settings.budget > 0 else 0
    return plan_all(task, objective, settings.methods, evaluations, settings.tasks, settings.seed, Log(log), progress)


def place_simulated(
    task: Task,
    out: Path,
    settings: Settings = DEFAULT_SETTINGS,
    progress: Progress = no_progress,
    objective: Objective | None = None,
) -> PlacementResult:
    """The fastest plan by the simulator, of all baselines and methods; nothing is measured.

    Args:
        objective: what simulates; `SimulatedObjective(task)` if None. With fusion the lower bound is of operations one
            by one, which fused ones may pass.

    Raises:
        ValueError: no plan fits the memories (the message says the least that would do), or `out` is of another task.

    Examples:
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> result = place_simulated(task, Path("out"), Settings(methods=("annealing",), evaluations=100)).result
        >>> result["lower_bound"] <= result["objective"]
        True
    """
    simulated = SimulatedObjective(task) if objective is None else objective
    return _place_on_costs(task, simulated, "simulated", lower_bound_us(task) / 1e3, out, settings, progress)


def place_graph(
    graph: CostGraph,
    out: Path,
    settings: Settings = DEFAULT_SETTINGS,
    progress: Progress = no_progress,
) -> PlacementResult:
    """Plan a published cost graph, by its published latency; one with a backward pass, by simulation.

    Raises:
        ValueError: as `place_simulated`.
    """
    from experiments.reproductions.public_problems.published import (
        PublishedObjective,
        published_bound,
        search_published,
    )

    task = Task.of_cost_graph(graph)
    if graph.backward.any():
        return place_simulated(task, out, settings, progress)
    return _place_on_costs(
        task, PublishedObjective(graph), "published", published_bound(graph), out, settings, progress,
        lambda: search_published(graph, settings.seed),
    )  # fmt: skip


def _place_on_costs(
    task: Task, objective: Objective, kind: str, bound_ms: float, out: Path, settings: Settings, progress: Progress,
    own_search: Callable[[], Plan] | None = None,
) -> PlacementResult:  # fmt: skip
    """The fastest plan by an objective, of all baselines and methods.

    Args:
        own_search: a method for this objective alone, called `contiguous`; not asked without a budget.
    """
    planned = plan_by(settings, task, objective, out / "searches.jsonl", progress)
    if own_search is not None and settings.budget > 0:
        started = time.perf_counter()
        plan = own_search()
        planned["contiguous"] = Planned(plan, float(objective([plan])[0]), time.perf_counter() - started, 0)
    check_fits(task, planned)
    ran = {name: each.expected_ms for name, each in planned.items() if np.isfinite(each.expected_ms)}
    best = min(ran, key=lambda name: ran[name])
    chosen = planned[best].plan
    assert chosen is not None
    plans = {
        name: {
            "latency": each.expected_ms,
            "feasible": name in ran,
            "seconds_to_plan": each.seconds,
            "measurements": 0,
            "evaluations": each.evaluations,
        }
        for name, each in planned.items()
    }
    return PlacementResult(
        task, chosen, placed_result(task, kind, best, ran[best], bound_ms, plans), {"curves": curves(planned)}
    )


def restrict(plan: Plan, tasks: Sequence[str]) -> Plan:
    """The plan without what was not to be decided."""
    return replace(
        plan, priority=plan.priority if "schedule" in tasks else None, fusion=plan.fusion if "fusion" in tasks else None
    )


def _search(
    name: str, task: Task, objective: Objective, evaluations: int, tasks: Sequence[str], seed: int, progress: Progress
) -> Planned:
    budgeted = Budgeted(objective if "schedule" in tasks else InProgramOrder(objective), evaluations)

    def report(*_: object) -> None:
        progress(f"planning by {name}", budgeted.num_asked, evaluations)

    started = time.perf_counter()
    report()
    METHODS[name](task, budgeted, seed, progress=report, **({"tasks": tasks} if name in JOINT else {}))
    seconds = time.perf_counter() - started
    plan = None if budgeted.best is None else restrict(budgeted.best, tasks)
    expected = budgeted.best_ms if plan is not None else float("nan")
    return Planned(plan, expected, seconds, budgeted.num_asked, tuple(budgeted.curve))


class InProgramOrder:
    """An objective that ignores the priorities of plans: operations run in program order."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        if (excess := getattr(objective, "excess", None)) is not None:
            self.excess: Callable[[Plan], float] = excess

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return self.objective([replace(plan, priority=None) for plan in plans])


def _read_log(log: Log | None, settings: Mapping[str, Any]) -> dict[str, Planned]:
    records = [] if log is None else log.read()
    for record in records:
        assert log is not None
        check_same(log.path, record, settings)
    return {RENAMED.get(record["method"], record["method"]): Planned.from_dict(record) for record in records}


def curves(planned: dict[str, Planned]) -> dict[str, list[list[float]]]:
    """What the report draws of each search."""
    return {name: [list(point) for point in each.curve] for name, each in planned.items() if each.curve}


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
    task: Task, runtime: str, best: str, objective: float, bound_ms: float, plans: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What all results say: `program`, `num_nodes`, `devices`, `runtime`, `objective` and `lower_bound` (ms), `best`,
    `plans`, `machine`, and where costs were measured `profile_load`, the share of the cores that other processes took
    while they were. Measured ones add `cost_model` and what `gst.placement.loop.Finals.figures` says: above all
    the `winner`, which need not be a plan.

    Args:
        runtime: 'measured', 'simulated' or 'published'.
        best: name of the fastest plan.
        objective: its runtime.
        bound_ms: what no plan is faster than.
        plans: what is known of each, by name: `feasible`, `reason`, `seconds_to_plan`, `measurements`, and where it was
            measured `median_ms`, `low_ms`, `high_ms`, `runs` and `simulated_ms`, and of the fastest the same three of a
            second set of runs, `again_median_ms` and so on; else `latency` (ms) and `evaluations`.
    """
    profiled = {} if task.costs.load is None else {"profile_load": task.costs.load}
    return {
        "program": task.name, "num_nodes": task.num_nodes, "devices": list(task.names), "runtime": runtime,
        "objective": objective, "lower_bound": bound_ms, "best": best, "plans": plans, "machine": machine_record(),
        **profiled,
    }  # fmt: skip
