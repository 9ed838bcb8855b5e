"""Objectives of plans: measured or simulated runtime, with a budget, and the one reward of a search; plan runners."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtr

from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Measurement
from gst.lowering.calls import Costs
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
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
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


LEAST_MEASUREMENTS = 8  # fewer do not correct the simulator
DEFAULT_ERROR = 0.1  # of the simulator alone, in logarithms: 4 to 12 % on the workloads of experiments/bench/simulator
FURTHEST = 2.0  # of a correction, in logarithms: plans unlike all that were measured would be off without bound
MOST_SAMPLED = 64  # plans, the fastest by prediction, that are simulated with each posterior sample
MARGIN = 0.035  # at most, of a limit of memory that was learned: plans as near to it as those that failed fail, too
SAME = 1e-9  # logarithms of ratios that differ by less are equal

Answers = Float64[np.ndarray, " plans"]

Learned = Mapping[str, tuple[float, float]]
"""Means and standard deviations of parameters that all programs of a machine share, by name."""


class Surrogate:
    """A cost model that learns from all plans measured so far. It corrects the costs of the simulator, or predicts
    logarithms of measured / simulated runtimes, or both; this one leaves the simulator as it is.

    Attributes:
        corrects: True if it corrects costs.
        least: number of measurements from which on it counts.
    """

    corrects: bool = False
    least: int = LEAST_MEASUREMENTS

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        """Learn from plans with runtimes simulated by the costs of the profile, and logarithms of measured / these."""
        return

    def corrected(self, task: Task, generator: np.random.Generator | None = None) -> Task:
        """Return the task with the costs that explain the measurements best; as it is, if the model corrects none.

        With a generator, costs are a sample of their posterior."""
        return task

    def learned(self) -> Learned:
        """Return parameters that searches of other programs on this machine may use as a prior."""
        return {}

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        """Return means and standard deviations of logarithms of measured runtimes / those simulated by `corrected`."""
        return np.zeros(len(plans)), np.full(len(plans), DEFAULT_ERROR)

    def means(self, plans: Sequence[Plan], simulated_ms: Answers) -> Answers:
        """Return the means alone, where that takes less time."""
        return self(plans, simulated_ms)[0]


class Reward:
    """An `Objective` that runs nothing: measured runtimes where there are some, others simulated and corrected by a
    surrogate fitted to the measured ones. All proposers of a search are rewarded by it, learned policies too.

    Attributes:
        prior: simulates with the costs of the profile.
        simulated: simulates with the costs, and the limits of memories, that explain the measurements.

    Examples:
        >>> from gst.placement.fitted import FittedSimulator
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
        >>> reward = Reward(task, FittedSimulator(task))
        >>> one, other = (task.plan(np.full(task.num_nodes, device)) for device in (0, 1))
        >>> reward.learn([one], np.array([7.0]))  # one measurement does not correct the simulator
        >>> round(float(reward([one])[0]), 6), reward([other]) == reward.simulated([other])
        (7.0, array([ True]))
    """

    def __init__(self, task: Task, surrogate: Surrogate) -> None:
        self.task, self.surrogate = task, surrogate
        self._measured: dict[str, tuple[Plan, float, float]] = {}  # plan, prior ms, logarithm of the ratio
        self._limits = task.memories
        self.prior, self.simulated = SimulatedObjective(task), SimulatedObjective(self.corrected())

    @property
    def num_measured(self) -> int:
        """Number of measured plans that the surrogate has learned."""
        return len(self._measured)

    @property
    def _counts(self) -> bool:
        """True if the surrogate counts."""
        return self.num_measured >= self.surrogate.least

    def learn(self, plans: Sequence[Plan], measured_ms: Answers, short: Sequence[Plan] = ()) -> None:
        """Add measurements to those of earlier calls, and fit the surrogate to all of them. A plan that failed (NaN) is
        left out; of a plan that comes again the later measurement counts.

        Args:
            short: all plans so far for which memory was short, from which limits of memories are learned (`limits`).

        Raises:
            ValueError: a measurement, perhaps of a changed log, is not positive.
        """
        if (measured_ms <= 0).any():
            raise ValueError(f"a measurement is {np.nanmin(measured_ms)} ms; runtimes are positive, NaN = failed")
        ran = [(plan, ms) for plan, ms in zip(plans, measured_ms, strict=True) if np.isfinite(ms)]
        for (plan, ms), prior_ms in zip(ran, self.prior([plan for plan, _ in ran]).tolist(), strict=True):
            if np.isfinite(prior_ms):
                self._measured[plan.key] = plan, prior_ms, float(np.log(ms / prior_ms))
        if ran and self._counts:
            learned_plans, ms, logs = zip(*self._measured.values(), strict=True)
            self.surrogate.learn(learned_plans, np.array(ms), np.array(logs))
        if short:
            self._limits = limits(self.corrected(), short, [plan for plan, _, _ in self._measured.values()])
        self.simulated = SimulatedObjective(self.corrected())

    def corrected(self, generator: np.random.Generator | None = None) -> Task:
        """Return the task as the measurements have it, see `Surrogate.corrected`."""
        task = self.surrogate.corrected(self.task, generator) if self._counts else self.task
        if self._limits == self.task.memories:
            return task
        devices = tuple(replace(each, memory_limit=self._limits[each.memory]) for each in task.devices)
        return replace(task, costs=replace(task.costs, devices=devices))

    def __call__(self, plans: Sequence[Plan]) -> Answers:
        runtimes = self.means(plans)
        for number, plan in enumerate(plans if self._measured else ()):
            if plan.key in self._measured:
                _, prior_ms, log = self._measured[plan.key]
                runtimes[number] = prior_ms * np.exp(log)
        return runtimes

    def excess(self, plan: Plan) -> float:
        """See `SimulatedObjective.excess`."""
        return self.simulated.excess(plan)

    @property
    def predicted(self) -> Objective:
        """The same without measured runtimes, for searches that compare a plan with its neighbours: the least of many
        measured times is partly luck, and its neighbours, all predicted, would all seem slower."""
        return _Predicted(self)

    def means(self, plans: Sequence[Plan]) -> Answers:
        """Return predictions in milliseconds, measured or not."""
        simulated = np.asarray(self.simulated(plans), np.float64)
        ran = np.flatnonzero(np.isfinite(simulated))
        if len(ran) and self._counts:
            logs = self.surrogate.means([plans[number] for number in ran.tolist()], simulated[ran])
            simulated[ran] *= np.exp(np.clip(logs, -FURTHEST, FURTHEST))
        return simulated

    def expected_improvement(self, plans: Sequence[Plan]) -> Answers:
        """Return by how much each plan is expected to lower the logarithm of the least measured runtime.

        Jones, Schonlau and Welch, Efficient Global Optimization, 1998, equation 15. It is 0 for a plan that fails, or
        that was measured.
        """
        simulated, logs, deviations = self._predicted(plans)
        least = np.nanmin(np.log(simulated), initial=np.inf)
        best = min((np.log(ms) + log for _, ms, log in self._measured.values()), default=least)
        below = best - np.log(simulated) - logs
        score = below / np.maximum(deviations, SAME)
        density = np.exp(-np.square(score) / 2) / np.sqrt(2 * np.pi)
        gains = np.nan_to_num(below * ndtr(score) + deviations * density)
        return np.where([plan.key in self._measured for plan in plans], 0.0, np.maximum(gains, 0.0))

    def chosen(self, plans: Sequence[Plan], count: int, generator: np.random.Generator) -> list[int]:
        """Return the numbers of plans in the order in which to measure them, of which `count` will be: by expected
        improvement, or by Thompson sampling if the model corrects costs.

        Thompson, On the likelihood that one unknown probability exceeds another, 1933: each is the fastest by a
        posterior sample of the costs.
        """
        if not (self.surrogate.corrects and self._counts):
            return np.argsort(-self.expected_improvement(plans), kind="stable").tolist()
        predicted = self.means(plans)
        in_order = np.argsort(predicted, kind="stable").tolist()
        pool = [number for number in in_order[:MOST_SAMPLED] if np.isfinite(predicted[number])]
        simulated = self.simulated([plans[number] for number in pool])
        first: list[int] = []  # positions in the pool
        while len(first) < min(count, len(pool)):
            sample = SimulatedObjective(self.corrected(generator))([plans[number] for number in pool])
            sample = np.where(np.isfinite(sample), sample * predicted[pool] / simulated, np.inf)
            sample[first] = np.inf
            first.append(int(np.argmin(sample)))
        chosen = dict.fromkeys(pool[each] for each in first)
        return [*chosen, *(number for number in in_order if number not in chosen)]

    def _predicted(self, plans: Sequence[Plan]) -> tuple[Answers, Answers, Answers]:
        """Return simulated milliseconds, the logarithms of their corrections, and the standard deviations of these."""
        simulated = np.asarray(self.simulated(plans), np.float64)
        logs, deviations = np.zeros(len(plans)), np.full(len(plans), DEFAULT_ERROR)
        ran = np.flatnonzero(np.isfinite(simulated))
        if len(ran) and self._counts:
            logs[ran], deviations[ran] = self.surrogate([plans[number] for number in ran.tolist()], simulated[ran])
        return simulated, np.clip(logs, -FURTHEST, FURTHEST), np.minimum(deviations, FURTHEST)


def limits(task: Task, short: Sequence[Plan], ran: Sequence[Plan]) -> dict[str, int | None]:
    """Return limits of memories that tell plans for which memory was short from those that ran.

    Errors are least, where a plan that would not run counts twice; of two limits as good the lower is taken. The limit
    is lower by `MARGIN`, or by half of the way to the most that ran. A plan is short of the memory whose limit it comes
    nearest to, or exceeds most."""
    learned = dict(task.memories)
    known = {name: limit for name, limit in learned.items() if limit}
    uses = [[task.memory_use(task.simulator.run(plan)) for plan in plans] for plans in (short, ran)]
    nearest = [max(known, key=lambda name: use[name] / known[name], default=None) for use in uses[0]]
    for name, limit in known.items():
        failed = np.array([use[name] for use, each in zip(uses[0], nearest, strict=True) if each == name], np.int64)
        held = np.array([use[name] for use in uses[1]], np.int64)
        candidates = sorted({min(limit, int(use) - 1) for use in failed} | {limit})
        errors = [2 * int((failed <= each).sum()) + int((held > each).sum()) for each in candidates]
        least = candidates[int(np.argmin(errors))]
        most = int(held[held <= least].max(initial=0))
        learned[name] = least if least == limit else least - min(int(MARGIN * least), (least - most) // 2)
    return learned


class _Predicted:
    def __init__(self, reward: Reward) -> None:
        self._reward, self.excess = reward, reward.excess

    def __call__(self, plans: Sequence[Plan]) -> Answers:
        return self._reward.means(plans)
