"""Objectives of plans (measured or simulated runtime, with a budget), their answers, and protocols of plan runners."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float64

from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Measurement
from gst.lowering.costs import Costs
from gst.lowering.plan import Plan, RunsInTurns, Timeline
from gst.machine.devices import Device
from gst.machine.load import LoadGate
from gst.placement.task import Task


class Objective(Protocol):
    """Runtimes of plans in milliseconds; NaN for a plan that fails."""

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]: ...


Batches = Sequence[Sequence[Plan]]
TASKS = ("placement", "schedule", "fusion")  # decisions of a plan
NUM_LAST = 32  # plans that a proposer hands back: each the best so far of those that were not measured


class PlanRunner(Protocol):
    """Runs plans of one program in other processes: a child, or hosts of one kind (`FleetWorkers`). A context manager.

    Raises:
        ExecutionError: (`timelines` and `groups`) a plan fails; the runner can be used again.
        ValueError: the program does not run, or a plan is not for it and these devices.
    """

    devices: tuple[Device, ...]

    def costs(self, repetitions: int = 5) -> Costs:
        """Measure the costs of each operation alone on each device."""

    def timelines(self, plans: Sequence[Plan], repetitions: int = 3) -> RunsInTurns:
        """Record when each operation begins and ends in each run of each plan; empty where that is not recorded."""

    def groups(self, plan: Plan) -> dict[int, float]:
        """Return by the first node of each fused group its time compiled / the time of its operations."""


class Measurer(Protocol):
    """Times batches of plans for a search: in a child process, or on other hosts.

    The plans of a batch run alternately. `measure_batches` yields (position of the batch, its measurements) as each
    batch ends, in any order.
    """

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]: ...


class MeasuredObjective:
    """Runs plans alternately on the devices, on quiet cores.

    Args:
        executor: entered; it survives plans that crash or hang.
        repetitions: timed runs of each plan, after one that is not timed.
        gate: waits for quiet cores before every round.
    """

    def __init__(self, executor: IsolatedExecutor, repetitions: int = 7, gate: LoadGate | None = None) -> None:
        self.executor, self.repetitions, self.gate = executor, repetitions, gate

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([measurement.median_ms for measurement in self.measure(plans)])

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]:
        """Measure one batch after the other, lazily."""
        return enumerate(map(self.measure, batches))

    def measure(self, plans: Sequence[Plan]) -> list[Measurement]:
        """Run plans alternately; a call returns the `median_ms` of each measurement."""
        return measure_plans(self.executor, plans, self.repetitions, gate=self.gate)


class SimulatedObjective:
    """Simulates plans of a task; a plan that exceeds a memory limit fails.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> from gst.placement.machines import example_task
        >>> task = example_task()
        >>> bool(SimulatedObjective(task)([single(task, 0)])[0] > 0)
        True
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._is_limited = task.is_limited  # otherwise no peak is asked for, which takes as long as a run

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([self._one(plan) for plan in plans], np.float64)

    def excess(self, plan: Plan) -> float:
        """Return the largest excess of a plan over a memory limit, as a share of the limit; infinite if it cannot
        run.
        """
        return self._excess(self.task.simulator.run(plan)) if self.task.can_run(plan) else float("inf")

    def _one(self, plan: Plan) -> float:
        if not self.task.can_run(plan):
            return float("nan")
        run = self.task.simulator.run(plan)
        return float("nan") if self._is_limited and self._excess(run) > 0 else run.makespan_us / 1e3

    def _excess(self, run: Timeline) -> float:
        peaks, limits = self.task.memory_use(run), self.task.memories
        return max(0.0, *((peaks[name] - limit) / limit for name, limit in limits.items() if limit is not None), 0.0)


class Budgeted:
    """An objective with a budget, which counts the plans that are asked about and remembers the best one.

    Plans beyond the budget get NaN. `curve` has (plans asked, best runtime in ms so far) of each improvement.

    Examples:
        >>> budgeted = Budgeted(lambda plans: np.arange(len(plans), 0.0, -1.0), budget=3)
        >>> budgeted([Plan(("cpu:0",), np.zeros(2, np.int64))] * 5)
        array([ 3.,  2.,  1., nan, nan])
        >>> budgeted.best_ms, budgeted.left
        (1.0, 0)
    """

    def __init__(self, objective: Objective, budget: int) -> None:
        self.objective, self.budget, self.num_asked = objective, budget, 0
        self.best: Plan | None = None
        self.best_ms = float("inf")
        self.curve: list[tuple[int, float]] = []

    @property
    def left(self) -> int:
        return self.budget - self.num_asked

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        within = plans[: self.left]
        answers = np.full(len(plans), np.nan)
        if within:
            answers[: len(within)] = self.objective(within)
        for plan, runtime_ms in zip(within, answers, strict=False):
            self.num_asked += 1
            if runtime_ms < self.best_ms:
                self.best, self.best_ms = plan, float(runtime_ms)
                self.curve.append((self.num_asked, self.best_ms))
        return answers


class SearchReward(Budgeted):
    """A reward with a budget that remembers the plans to hand back.

    Args:
        measured: keys of plans that were measured.

    Attributes:
        proposals: plans that were not measured, each the best of these when it was asked about.
    """

    def __init__(self, objective: Objective, budget: int, measured: Collection[str] = ()) -> None:
        super().__init__(objective, budget)
        self.measured = measured
        self.proposals: list[Plan] = []
        self._least_ms = math.inf

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        answers = super().__call__(plans)
        for plan, runtime_ms in zip(plans, answers.tolist(), strict=True):
            if runtime_ms < self._least_ms and plan.key not in self.measured:
                self._least_ms = runtime_ms
                self.proposals = [*self.proposals[1 - NUM_LAST :], plan]
        return answers


class InProgramOrder:
    """An objective that ignores the priorities of plans: operations run in program order."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        if (excess := getattr(objective, "excess", None)) is not None:
            self.excess: Callable[[Plan], float] = excess

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return self.objective([replace(plan, priority=None) for plan in plans])


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


def restrict(plan: Plan, tasks: Sequence[str]) -> Plan:
    """Return the plan without priorities or fusion where these are not among the tasks."""
    return replace(
        plan, priority=plan.priority if "schedule" in tasks else None, fusion=plan.fusion if "fusion" in tasks else None
    )


def check_tasks(tasks: Sequence[str]) -> None:
    """Raises:
    ValueError: one of the decisions is unknown, or placement is not among them.
    """
    if wrong := [name for name in tasks if name not in TASKS]:
        raise ValueError(f"there is no task {wrong[0]!r}; there are {', '.join(TASKS)}")
    if "placement" not in tasks:
        raise ValueError(f"the tasks are {', '.join(tasks) or 'none'}; placement must be among them")
