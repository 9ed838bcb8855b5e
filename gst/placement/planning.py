"""Plans of one task by every baseline and every search method, each with the same budget of evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from gst.devices import Log, Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.local_search.annealing import anneal
from gst.placement.local_search.population import cross_entropy, evolve
from gst.placement.objective import Budgeted, Objective
from gst.placement.policies.colocrl import colocrl
from gst.placement.policies.go import go
from gst.placement.policies.guided_search import guided_search
from gst.placement.policies.hdp import hdp
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress

Method = Callable[..., None]
RENAMED = {"ours": "guided_search"}  # methods by the names that earlier versions wrote
JOINT = ("go",)  # methods that decide fusion too, and are told the tasks
METHODS: dict[str, Method] = {
    "annealing": anneal, "cross_entropy": cross_entropy, "evolution": evolve, "colocrl": colocrl, "hdp": hdp,
    "go": go, "guided_search": guided_search,
}  # fmt: skip
USUAL = ("annealing", "guided_search")
TASKS = ("placement", "schedule", "fusion")


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
            "plan": None if self.plan is None else self.plan.to_dict(), "seconds": self.seconds,
            "expected_ms": None if np.isnan(self.expected_ms) else self.expected_ms, "evaluations": self.evaluations,
            "curve": [list(point) for point in self.curve],
        }  # fmt: skip

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Planned:
        """Read what `to_dict` made."""
        return Planned(
            None if record["plan"] is None else Plan.from_dict(record["plan"]),
            float("nan") if record["expected_ms"] is None else record["expected_ms"], record["seconds"],
            record["evaluations"], tuple((count, best) for count, best in record["curve"]),
        )  # fmt: skip


def plan_all(
    task: Task,
    objective: Objective,
    methods: Sequence[str] = USUAL,
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
    """
    check_names(methods, tasks)
    settings = {
        "task": task.key, "devices": list(task.names), "seed": seed, "evaluations": evaluations, "tasks": list(tasks),
        "memory_limits": task.memories,
    }  # fmt: skip
    known = {
        name: each if each.plan is None else replace(each, expected_ms=float(objective([each.plan])[0]))
        for name, each in _logged(log, settings).items()  # costs of the machine may be others than then
    }
    found: dict[str, Planned] = {}
    started = time.perf_counter()
    baselines = {name: restrict(plan, tasks) for name, plan in portfolio(task).items()}
    each_s = (time.perf_counter() - started) / max(len(baselines), 1)
    for (name, plan), took in zip(baselines.items(), objective(list(baselines.values())), strict=True):
        found[name] = Planned(plan, float(took), each_s, 1)
    for name in methods if evaluations > 0 else ():
        if name not in known:
            known[name] = _search(name, task, objective, evaluations, tasks, seed, progress)
            if log is not None:
                log.append({"method": name, **settings, **known[name].to_dict()})
        found[name] = known[name]
    return found


def plans_found(planned: Mapping[str, Planned]) -> dict[str, Plan]:
    """The plans by name, of those that came up with one."""
    return {name: each.plan for name, each in planned.items() if each.plan is not None}


def check_names(methods: Sequence[str], tasks: Sequence[str]) -> None:
    """Raises:
    ValueError: there is no such method or no such task, or placement is not among the tasks.
    """
    for asked, known, what in ((methods, METHODS, "method"), (tasks, TASKS, "task")):
        if wrong := [name for name in asked if name not in known]:
            raise ValueError(f"there is no {what} {wrong[0]!r}; there are {', '.join(known)}")
    if "placement" not in tasks:
        raise ValueError(f"the tasks are {', '.join(tasks) or 'none'}; placement must be among them")


def restrict(plan: Plan, tasks: Sequence[str]) -> Plan:
    """The plan without what was not to be decided."""
    return replace(
        plan, priority=plan.priority if "schedule" in tasks else None, fusion=plan.fusion if "fusion" in tasks else None
    )


def _search(
    name: str, task: Task, objective: Objective, evaluations: int, tasks: Sequence[str], seed: int, progress: Progress
) -> Planned:
    budgeted = Budgeted(objective if "schedule" in tasks else _Unscheduled(objective), evaluations)

    def told(*_: object) -> None:
        progress(f"planning by {name}", budgeted.num_asked, evaluations)

    started = time.perf_counter()
    told()
    METHODS[name](task, budgeted, seed, progress=told, **({"tasks": tasks} if name in JOINT else {}))
    seconds = time.perf_counter() - started
    plan = None if budgeted.best is None else restrict(budgeted.best, tasks)
    expected = budgeted.best_ms if plan is not None else float("nan")
    return Planned(plan, expected, seconds, budgeted.num_asked, tuple(budgeted.curve))


class _Unscheduled:
    """A runtime of plans in program order."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return self.objective([replace(plan, priority=None) for plan in plans])


def _logged(log: Log | None, settings: Mapping[str, Any]) -> dict[str, Planned]:
    records = [] if log is None else log.read()
    for record in records:
        for what, value in settings.items():
            if record.get(what, value) != value:  # earlier versions did not write all of them
                assert log is not None
                raise ValueError(f"{log.path} was made with {what} {record[what]}, not {value}; give another --out")
    return {RENAMED.get(record["method"], record["method"]): Planned.from_dict(record) for record in records}
