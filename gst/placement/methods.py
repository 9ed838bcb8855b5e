"""Methods of placement by name: one record of each, for searches, help texts, results and reports; their proposers.

A proposer asks one reward about plans, and hands back those to be measured. A help text is made of this module, so that
searches are imported when they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gst.util.imports import imported
from gst.util.progress import Progress

if TYPE_CHECKING:
    from gst.lowering.plan import Plan
    from gst.placement.objectives import Budgeted, Reward, SearchReward
    from gst.placement.task import Task

NUM_MUTATED = 256  # plans in each round
GIANT = 5_000  # operations


@dataclass(frozen=True)
class Method:
    """A method that proposes plans beyond the baselines.

    Args:
        make: makes its proposer for a task, a seed and the decisions (`placement`, `schedule`).
        words: a description for `gst place --help`.
        is_local: True if it compares a plan with its neighbours. Such a method is rewarded by predictions alone, also
            for plans that were measured.
        cost: plans that other methods ask about in the time of one of its plans; it gets so many times fewer.
    """

    make: Callable[[Task, int, Sequence[str]], Proposer]
    words: str
    is_local: bool = False
    cost: int = 1


class Proposer(Protocol):
    """Proposes plans. It keeps what it learned from call to call, as rewards change with measurements."""

    def __call__(self, task: Task, reward: SearchReward, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
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

    def __call__(self, task: Task, reward: SearchReward, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        from gst.placement.baselines.portfolio import heft
        from gst.placement.search.annealing import anneal

        listed = heft(task) if fastest and task.num_nodes >= GIANT else None
        anneal(task, reward, next(self._seeds), progress, [*fastest, listed] if listed else fastest)
        return reward.proposals


class Anew:
    """A search, `function(task, objective, seed, progress)`, that begins anew in each call."""

    def __init__(self, function: Callable[[Task, Budgeted, int, Progress], None], seed: int) -> None:
        self._function, self._seeds = function, count(seed)

    def __call__(self, task: Task, reward: SearchReward, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        self._function(task, reward, next(self._seeds), progress)
        return reward.proposals


class InPosteriorSample:
    """Another proposer, by costs that are a sample of their posterior: errors of the most likely costs do not mislead
    it. It is rewarded by the simulator with these costs."""

    def __init__(self, proposer: Proposer, reward: Reward, seed: int) -> None:
        self._proposer, self._reward, self._generator = proposer, reward, np.random.default_rng(seed)

    def __call__(self, task: Task, reward: SearchReward, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        from gst.placement.objectives import SearchReward, SimulatedObjective

        sample = self._reward.corrected(self._generator)
        simulated = SearchReward(SimulatedObjective(sample), reward.left, reward.measured)
        plans = self._proposer(sample, simulated, fastest[:1], progress)
        reward.num_asked += simulated.num_asked
        return plans


class Learned:
    """A policy that is trained by the reward, and goes on with each call."""

    def __init__(self, policy: Trained) -> None:
        self.policy = policy

    def __call__(self, task: Task, reward: SearchReward, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        self.policy.run(reward, progress)
        return reward.proposals


class Mutation:
    """Random changes and crossovers of the fastest plans; it asks no reward."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._generator = task, np.random.default_rng(seed)

    def __call__(self, task: Task, reward: SearchReward, fastest: Sequence[Plan], progress: Progress) -> Sequence[Plan]:
        return [self._neighbour(fastest) for _ in range(NUM_MUTATED)] if fastest else []

    def _neighbour(self, plans: Sequence[Plan]) -> Plan:
        from gst.placement.search.neighbourhoods import crossover, mutate

        if self._generator.random() < 0.3:
            return crossover(self._task, plans, self._generator)
        return mutate(self._task, plans[int(self._generator.integers(len(plans)))], self._generator)


def _go(task: Task, seed: int, tasks: Sequence[str]) -> Proposer:
    from gst.placement.policies.go import GoTraining

    return Learned(GoTraining(task, seed, tasks))


METHODS: dict[str, Method] = {
    "annealing": Method(
        lambda task, seed, tasks: Annealing(seed), "small changes of fast plans, Kirkpatrick et al. 1983", is_local=True
    ),
    "go": Method(_go, "a policy that learns by PPO, Zhou et al. 2020"),
}
"""All methods. Add one by `METHODS["mine"] = Method(...)`, before it is named."""


def words_of(name: str) -> str:
    """Return the words of `METHODS`, or of a docstring, on what makes the plan of a name; empty for other variants.

    Examples:
        >>> words_of("single:cpu:0-1"), words_of("pytorch")
        ('Place everything on one device.', '')
    """
    from gst.placement.baselines import portfolio

    kind = name.partition(":")[0]
    if kind in METHODS:
        return METHODS[kind].words
    paragraph = (getattr(getattr(portfolio, kind, None), "__doc__", None) or "").partition("\n\n")[0]
    return " ".join(paragraph.replace("`", "").split())


def registered(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of methods; of `MODULE:NAME` the module is imported, which registers `NAME`.

    Raises:
        ValueError: the module cannot be imported, or does not register this method.

    Examples:
        >>> registered(["annealing", "gst.placement.methods:go"])
        ('annealing', 'go')
    """
    result = []
    for each in names:
        module, colon, name = each.rpartition(":")
        if colon:
            imported(module, f"the method {each!r}")
            if name not in METHODS:
                raise ValueError(
                    f"module {module!r} registers no method {name!r}, as by METHODS[{name!r}] = Method(...)"
                )
        result.append(name)
    return tuple(result)


def proposers(
    methods: Sequence[str], task: Task, seed: int, tasks: Sequence[str], reward: Reward
) -> list[tuple[str, Proposer]]:
    """Return the proposers of some methods, then mutation, by name. Annealing is there twice: by the reward, and in a
    posterior sample of the costs."""
    makers = [(name, METHODS[name].make(task, seed, tasks)) for name in methods]
    if "annealing" in methods:
        makers.append(("annealing", InPosteriorSample(Annealing(seed + 500), reward, seed)))
    return [*makers, ("mutation", Mutation(task, seed))]
