"""What a search for a plan is asked, and what it ends with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gst.devices import Plan, machine_record
from gst.placement.planning import USUAL, Planned, check_names
from gst.placement.task import Task

COST_MODELS = ("sums", "network")
"""Linear regression on sums over the operations of a plan, and the GST cost model (`gst.placement.screening`)."""


@dataclass(frozen=True)
class Settings:
    """How long to look for a plan, and how.

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
        compile_step: whether `torch.compile` of the step, which takes a minute, is among what is measured at the end.
    """

    budget: int = 50
    evaluations: int = 2_000
    methods: tuple[str, ...] = USUAL
    tasks: tuple[str, ...] = ("placement", "schedule")
    repetitions: int = 25
    seed: int = 0
    patience_s: float = 20.0
    workers: int = 1
    cost_model: str = "sums"
    compile_step: bool = True

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


AS_USUAL = Settings()


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """What a search for a plan ends with.

    Args:
        task: what was placed.
        plan: the fastest.
        result: for programs, see `placed_result`.
        drawn: what the report shows beyond it.
    """

    task: Task
    plan: Plan
    result: dict[str, Any]
    drawn: dict[str, Any] = field(default_factory=dict)


def evaluations(settings: Settings) -> int:
    """Plans that each method may ask about; none without a budget."""
    return settings.evaluations if settings.budget > 0 else 0


def curves(planned: dict[str, Planned]) -> dict[str, list[list[float]]]:
    """What the report draws of each search."""
    return {name: [list(point) for point in each.curve] for name, each in planned.items() if each.curve}


def check_fits(task: Task, planned: dict[str, Planned]) -> None:
    """Raises:
    ValueError: no plan fits; the message says the least memory that would do for one of those found.
    """
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


def placed_result(
    task: Task, runtime: str, best: str, objective: float, bound_ms: float, plans: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What all results say: `program`, `num_nodes`, `devices`, `runtime`, `objective` and `lower_bound` (ms), `best`,
    `plans`, `machine`. Measured ones add `cost_model` and what `gst.placement.finals.Finals.figures` says: above all
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
    return {
        "program": task.name, "num_nodes": task.num_nodes, "devices": list(task.names), "runtime": runtime,
        "objective": objective, "lower_bound": bound_ms, "best": best, "plans": plans, "machine": machine_record(),
    }  # fmt: skip
