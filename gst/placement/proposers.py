"""Proposers of plans: searches and policies that ask one reward about plans, and hand back those to be measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Protocol

import numpy as np
from jaxtyping import Float64

from gst.lowering.plan import Plan
from gst.placement.baselines.list_schedules import heft
from gst.placement.methods import METHODS
from gst.placement.objectives import Budgeted, Objective, SimulatedObjective
from gst.placement.reward import Reward
from gst.placement.search.annealing import anneal
from gst.placement.search.random_plans import crossover, mutate
from gst.placement.task import Task
from gst.util.progress import Progress

NUM_LAST = 32  # plans that a proposer hands back: each the best so far of those that were not measured
NUM_MUTATED = 256
GIANT = 5_000  # operations


class Asked(Budgeted):
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


class Proposer(Protocol):
    """Proposes plans. It keeps what it learned from call to call, as rewards change with measurements."""

    def __call__(self, task: Task, reward: Asked, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        """Ask the reward about plans until its budget is spent or before; return those that might be measured.

        Args:
            task: with its costs as far as they are known.
            fastest: plans measured so far, the fastest first.
        """
        ...


class Trained(Protocol):
    """A policy in training, such as `gst.placement.policies.go.GoTraining`."""

    def run(self, objective: Budgeted, progress: Progress) -> None: ...


class Annealing:
    """Simulated annealing, anew in each call: from the fastest plans, or from the portfolio if there are none; of
    `GIANT` tasks also from HEFT by the costs as far as they are known, since steps change too few operations there."""

    def __init__(self, seed: int) -> None:
        self._seeds = count(seed)

    def __call__(self, task: Task, reward: Asked, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        listed = heft(task) if fastest and task.num_nodes >= GIANT else None
        anneal(task, reward, next(self._seeds), progress, [*fastest, listed] if listed else fastest)
        return reward.proposals


class Anew:
    """A search, `function(task, objective, seed, progress)`, that begins anew in each call."""

    def __init__(self, function: Callable[[Task, Budgeted, int, Progress], None], seed: int) -> None:
        self._function, self._seeds = function, count(seed)

    def __call__(self, task: Task, reward: Asked, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        self._function(task, reward, next(self._seeds), progress)
        return reward.proposals


class InPosteriorSample:
    """Another proposer, by costs that are a sample of their posterior: errors of the most likely costs do not mislead
    it. It is rewarded by the simulator with these costs."""

    def __init__(self, proposer: Proposer, reward: Reward, seed: int) -> None:
        self._proposer, self._reward, self._generator = proposer, reward, np.random.default_rng(seed)

    def __call__(self, task: Task, reward: Asked, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        sample = self._reward.corrected(self._generator)
        simulated = Asked(SimulatedObjective(sample), reward.left, reward.measured)
        plans = self._proposer(sample, simulated, fastest[:1], progress)
        reward.num_asked += simulated.num_asked
        return plans


class Learned:
    """A policy that is trained by the reward, and goes on with each call."""

    def __init__(self, policy: Trained) -> None:
        self.policy = policy

    def __call__(self, task: Task, reward: Asked, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        self.policy.run(reward, progress)
        return reward.proposals


class Mutation:
    """Random changes and crossovers of the fastest plans; it asks no reward."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._generator = task, np.random.default_rng(seed)

    def __call__(self, task: Task, reward: Asked, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        return [self._neighbour(fastest) for _ in range(NUM_MUTATED)] if fastest else []

    def _neighbour(self, plans: Sequence[Plan]) -> Plan:
        if self._generator.random() < 0.3:
            return crossover(self._task, plans, self._generator)
        return mutate(self._task, plans[int(self._generator.integers(len(plans)))], self._generator)


def proposers(
    methods: Sequence[str], task: Task, seed: int, tasks: Sequence[str], reward: Reward
) -> list[tuple[str, Proposer]]:
    """Return the proposers of some methods, then mutation, by name. Annealing is there twice: by the reward, and in a
    posterior sample of the costs."""
    makers = [(name, METHODS[name].make(task, seed, tasks)) for name in methods]
    if "annealing" in methods:
        makers.append(("annealing", InPosteriorSample(Annealing(seed + 500), reward, seed)))
    return [*makers, ("mutation", Mutation(task, seed))]
