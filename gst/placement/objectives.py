"""Objectives that plans are judged by, runtimes measured or simulated; budgets; and protocols of what runs plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from typing import Protocol

import numpy as np
from jaxtyping import Float64

from gst.execution.costs import Costs
from gst.execution.executor import AnyExecutor
from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Measurement, measure
from gst.lowering.plan import Plan, RunsInTurns, Timeline
from gst.machine.devices import Device
from gst.machine.load import LoadGate
from gst.placement.task import Task


class Objective(Protocol):
    """What a plan is judged by: its runtime in milliseconds, NaN if it fails."""

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]: ...


Batches = Sequence[Sequence[Plan]]


class PlanRunner(Protocol):
    """Runs plans of one program outside of this process: in a child (`gst.execution.isolated.IsolatedExecutor`), or on hosts of
    one kind (`gst.placement.fleet.workers.FleetWorkers`). Use it as a context manager.

    Args:
        devices: those plans may name.

    Raises:
        ExecutionError: (`timelines` and `groups`) a plan fails; what runs plans can be used again.
        ValueError: the program does not run, or a plan is not for it and these devices.
    """

    devices: tuple[Device, ...]

    def costs(self, repetitions: int = 5) -> Costs:
        """What each operation costs alone on each device."""
        ...

    def timelines(self, plans: Sequence[Plan], repetitions: int = 3) -> RunsInTurns:
        """When each operation began and ended in each run of each plan; empty where that is not recorded."""
        ...

    def groups(self, plan: Plan) -> dict[int, float]:
        """By the first node of each group that a plan fuses: its time compiled / the time of its operations."""
        ...


class Measurer(Protocol):
    """Times batches of plans for a search: in this process, in a child, in several, or on other hosts.

    The plans of a batch are timed in turns. `measure_batches` yields (position of the batch, its measurements)
    as each batch ends; with several workers the order is arbitrary.
    """

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]: ...


def as_completed_batches(
    submit: Callable[[Sequence[Plan]], Future[list[Measurement]]], batches: Batches
) -> Iterator[tuple[int, list[Measurement]]]:
    """Give all batches to workers at once; `Measurer.measure_batches` for whatever answers by futures."""
    positions = {submit(plans): position for position, plans in enumerate(batches)}
    for future in as_completed(positions):
        yield positions[future], future.result()


class MeasuredObjective:
    """Runs plans on the devices, in turns, on quiet cores.

    Args:
        executor: entered; an `IsolatedExecutor` survives plans that crash or hang.
        repetitions: timed runs of each plan, after one that is not timed.
        gate: asked before every round.
    """

    def __init__(
        self, executor: AnyExecutor | IsolatedExecutor, repetitions: int = 7, gate: LoadGate | None = None
    ) -> None:
        self.executor, self.repetitions, self.gate = executor, repetitions, gate

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([measurement.median_ms for measurement in self.measure(plans)])

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]:
        """Measure one batch after the other, each when it is asked for."""
        return enumerate(map(self.measure, batches))

    def measure(self, plans: Sequence[Plan]) -> list[Measurement]:
        """Run plans in turns; the `median_ms` of each measurement is what a call returns."""
        if isinstance(self.executor, IsolatedExecutor):
            return measure_plans(self.executor, plans, self.repetitions, gate=self.gate)
        labels = [f"{i}:{plan.key}" for i, plan in enumerate(plans)]
        runs: dict[str, Callable[[], object]] = {
            label: partial(self.executor.run, plan) for label, plan in zip(labels, plans, strict=True)
        }
        keys = {label: plan.key for label, plan in zip(labels, plans, strict=True)}
        measurements = measure(runs, self.repetitions, 1, self.gate, plan_keys=keys)
        return [measurements[label] for label in labels]


class SimulatedObjective:
    """Simulates plans of a task; a plan that takes more of a memory than its limit fails.

    Args:
        task: what is placed where.
        check_memory: whether limits count. To work out what a plan takes costs about as much as to simulate it.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> bool(SimulatedObjective(task)([single(task, 0)])[0] > 0)
        True
    """

    def __init__(self, task: Task, check_memory: bool | None = None) -> None:
        self.task = task
        limited = any(limit is not None for limit in task.memories.values())
        self.check_memory = limited if check_memory is None else check_memory

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([self._one(plan) for plan in plans], np.float64)

    def excess(self, plan: Plan) -> float:
        """The largest excess of a plan over a memory limit, as a share of the limit; 0 if it fits, infinite if an
        operation cannot run on its device."""
        return self._excess(self.task.simulator.run(plan)) if self.task.can_run(plan) else float("inf")

    def _one(self, plan: Plan) -> float:
        if not self.task.can_run(plan):
            return float("nan")
        run = self.task.simulator.run(plan)
        return float("nan") if self.check_memory and self._excess(run) > 0 else run.makespan_us / 1e3

    def _excess(self, run: Timeline) -> float:
        peaks, limits = self.task.memory_use(run), self.task.memories
        return max(0.0, *((peaks[name] - limit) / limit for name, limit in limits.items() if limit is not None), 0.0)


class Budgeted:
    """An objective with a budget: counts the plans that are asked about, and remembers the best one.

        Examples:
            >>> budgeted = Budgeted(lambda plans: np.arange(len(plans), 0.0, -1.0), budget=3)
            >>> budgeted([Plan(("cpu:0",), np.zeros(2, np.int64))] * 5)
            array([ 3.,  2.,  1., nan, nan])
            >>> budgeted.best_ms, budgeted.left
            (1.0, 0)

    Args:
        objective: who answers.
        budget: plans that may be asked about; further ones are not, and get NaN. Repeats count again.

    Attributes:
        best: the plan of least runtime so far; None before any ran.
        best_ms: its runtime; infinite before any ran.
        curve: (plans asked, best runtime in ms so far), an entry for each improvement.
        improvements: the plan of each entry of the curve.
    """

    def __init__(self, objective: Objective, budget: int) -> None:
        self.objective, self.budget, self.num_asked = objective, budget, 0
        self.best: Plan | None = None
        self.best_ms = float("inf")
        self.curve: list[tuple[int, float]] = []
        self.improvements: list[Plan] = []

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
                self.improvements.append(plan)
        return answers
