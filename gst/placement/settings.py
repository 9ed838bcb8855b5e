"""Settings of a placement, the plan that each method proposes, and the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gst.lowering.plan import Plan
from gst.placement.task import Task

METHODS = ("annealing", "colocrl", "hdp", "go", "policy", "guided_search")
"""Methods beyond the baselines; `gst.placement.planning.SEARCHES` has their functions."""

DEFAULT_METHODS = ("annealing", "guided_search")
TASKS = ("placement", "schedule", "fusion")

COST_MODELS = ("sums", "network")
"""Linear regression on sums over a plan, and the GST cost model; see `gst.placement.search.surrogates`."""

BUDGET = 16
"""Plans measured by default. On the cores of this machine a search of 50 ended 3 % behind annealing on the simulator,
which measures none (`experiments.bench.search_loop`); it is ahead where costs differ from the profile."""


def check_names(methods: Sequence[str], tasks: Sequence[str], known: Sequence[str] = METHODS) -> None:
    """Raises:
    ValueError: a method is not among those known, a task is unknown, or placement is not among the tasks.
    """
    for names, choices, what in ((methods, known, "method"), (tasks, TASKS, "task")):
        if wrong := [name for name in names if name not in choices]:
            raise ValueError(f"there is no {what} {wrong[0]!r}; there are {', '.join(choices)}")
    if "placement" not in tasks:
        raise ValueError(f"the tasks are {', '.join(tasks) or 'none'}; placement must be among them")


@dataclass(frozen=True)
class Settings:
    """Settings of a search for a plan.

    Args:
        budget: plans that `guided_search` may measure; 0 = none, the baselines alone are measured.
        evaluations: simulated plans that each method may ask about.
        methods: some of `METHODS`.
        tasks: the decisions to make, some of `TASKS`.
        repetitions: runs of each plan at the end.
        seed: of all random draws.
        patience_s: seconds to wait for quiet cores.
        workers: processes that measure for the search.
        cost_model: one of `COST_MODELS`; it learns from measurements by how much the simulator errs.
        compile_step: also measure the step compiled and frozen, on all cores and on one; each takes up to a minute to
            compile.
        compile_s: no such variant is begun after half of these seconds, and none is compiled beyond them.
        finals_s: seconds of each set of runs at the end, see `gst.execution.measure.measure`.
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
        plan: None if the method has none that runs.
        expected_ms: runtime by the objective; NaN without a plan.
        seconds: planning time.
        evaluations: number of plans that the objective was asked about.
        curve: (plans asked, best runtime in ms so far).
    """

    plan: Plan | None
    expected_ms: float
    seconds: float
    evaluations: int
    curve: tuple[tuple[int, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON; NaN becomes None."""
        return {
            "plan": None if self.plan is None else self.plan.to_dict(),
            "seconds": self.seconds,
            "expected_ms": None if np.isnan(self.expected_ms) else self.expected_ms,
            "evaluations": self.evaluations,
            "curve": [list(point) for point in self.curve],
        }

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Planned:
        """Read what `to_dict` returns."""
        return Planned(
            None if record["plan"] is None else Plan.from_dict(record["plan"]),
            float("nan") if record["expected_ms"] is None else record["expected_ms"],
            record["seconds"],
            record["evaluations"],
            tuple((count, best) for count, best in record["curve"]),
        )


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """The fastest plan of a search, with its comparison to the other plans.

    Args:
        task: the problem.
        plan: the fastest plan.
        result: for programs, see `gst.placement.planning.placed_result`.
        drawing: more data for the report, see `gst.placement.api.drawing`.
    """

    task: Task
    plan: Plan
    result: dict[str, Any]
    drawing: dict[str, Any] = field(default_factory=dict)


def restrict(plan: Plan, tasks: Sequence[str]) -> Plan:
    """Return the plan without priorities or fusion where these are not among the tasks.

    Examples:
        >>> restrict(Plan(("cpu:0",), np.zeros(2, np.int64), np.array([1, 0])), ["placement"]).priority is None
        True
    """
    return replace(
        plan, priority=plan.priority if "schedule" in tasks else None, fusion=plan.fusion if "fusion" in tasks else None
    )
