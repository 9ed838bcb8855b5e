"""The one reward of a search: what a plan takes as measured, else by the cost model, else by the simulator.

The cost model predicts the logarithm of measured / simulated runtime: before it has learned, the reward is the
simulated runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtr

from gst.lowering.plan import Plan
from gst.placement.objectives import Objective, SimulatedObjective
from gst.placement.task import Task

LEAST_MEASUREMENTS = 8  # fewer do not correct the simulator
DEFAULT_ERROR = 0.1  # of the simulator alone, in logarithms: 4 to 12 % on the workloads of experiments/bench/simulator
FURTHEST = 2.0  # of a correction, in logarithms: plans unlike all that were measured would be off without bound
MOST_SAMPLED = 64  # plans, the fastest by prediction, that are simulated with each posterior sample
MARGIN = 0.035  # at most, of a limit of memory that was learned: plans as near to it as those that failed fail, too
SAME = 1e-9  # logarithms of ratios that differ by less are equal

Answers = Float64[np.ndarray, " plans"]

Learned = Mapping[str, tuple[float, float]]
"""Means and standard deviations of parameters that all programs of a machine share, by name."""


class Surrogate(Protocol):
    """A cost model that learns from all plans measured so far. It corrects the costs of the simulator, or predicts
    logarithms of measured / simulated runtimes, or both.

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
        >>> from gst.placement.machines import example_task
        >>> task = example_task()
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
            ValueError: there are not as many measurements as plans, or one is not positive.
        """
        if len(plans) != len(measured_ms):
            raise ValueError(f"{len(measured_ms)} measurements of {len(plans)} plans; give one for each")
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
