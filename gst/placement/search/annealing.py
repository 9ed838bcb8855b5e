"""Simulated annealing over plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted
from gst.placement.search.neighbourhoods import Neighbourhood, State
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

FAILED = 1e15
"""Energy of a plan that fails, more than any runtime in ms; a plan that exceeds a memory by more has more."""
HOT, COLD = 0.2, 0.002
"""First and last temperature, as shares of the median cost of a step uphill."""
WARM_UP = 200  # steps, at most, that estimate this cost
LOOK_EVERY = 15  # steps, at least, between two simulations that show the waits of the plan
PATIENCE = 0.15  # share of the budget without a better plan before the search returns to the best


def anneal(
    task: Task, objective: Budgeted, seed: int = 0, progress: Progress = no_progress, start: Sequence[Plan] = ()
) -> None:
    """Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) from the best of some plans.

    Energy is the runtime in ms. A step moves a few operations (see `Neighbourhood`) or changes their order; kinds of
    steps that found better plans lately are drawn more often. The temperature falls geometrically from the cost of the
    first steps uphill; after long without a better plan the search returns to the best. Plans that fail are not
    accepted. Until a plan runs, plans are accepted that exceed the memory by less, if the objective has `excess`.

    Args:
        objective: asked about `start` first, then until nothing is left.
        start: plans to start from; if there are none, the portfolio.

    Examples:
        >>> from gst.placement.objectives import SimulatedObjective
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
        >>> objective = Budgeted(SimulatedObjective(task), budget=100)
        >>> anneal(task, objective)
        >>> objective.num_asked
        100
    """
    if objective.left < 1:
        return
    generator = np.random.default_rng(seed)
    around, energy = Neighbourhood(task, generator), _Energy(objective)
    state, now = _begin(task, objective, around, energy, start)
    chooser, total = _Chooser(tuple(around.moves), generator), objective.left
    cooling = _Cooling(total)
    best, least, improved_at = state, now, 0
    looked, looked_at = None, -LOOK_EVERY
    for step in range(total):
        if looked is not state and step - looked_at >= LOOK_EVERY:
            around.look(around.plan(state))
            looked, looked_at = state, step
        kind = chooser.draw()
        trial = around.moves[kind](state)
        result = energy(around.plan(trial), now)
        temperature = cooling(step, now, result)
        chooser.learn(kind, result < now)
        if result <= now or (result < FAILED and generator.random() < np.exp((now - result) / temperature)):
            state, now = trial, result
        if now < least:
            best, least, improved_at = state, now, step
        elif step - improved_at > max(PATIENCE * total, 50):
            state, now, improved_at = best, least, step
        if step % 100 == 0:
            progress("annealing", step, total)
    progress("annealing", total, total)


def _begin(
    task: Task, objective: Budgeted, around: Neighbourhood, energy: _Energy, start: Sequence[Plan]
) -> tuple[State, float]:
    """Return the best plan to start from, with its own priorities or with those that follow the placement."""
    plans = list(start) or list(portfolio(task).values())
    took = [energy(plan, FAILED) for plan in plans[: objective.left]]
    plan, now = plans[int(np.argmin(took))], min(took)
    state = around.state(plan, by_tail=False)
    for by_tail in (False, True):
        candidate = around.state(plan, by_tail)
        if objective.left > 0 and (result := energy(around.plan(candidate), now)) <= now:
            state, now = candidate, result
    return state, now


class _Cooling:
    """Temperatures: almost none while the cost of steps uphill is estimated, then falling geometrically."""

    def __init__(self, total: int) -> None:
        self._total, self._left = total, min(WARM_UP, total // 5)
        self._begin, self._hot = 0, 0.0
        self._uphill: list[float] = []

    def __call__(self, step: int, now: float, result: float) -> float:
        if now >= FAILED or self._left > 0:
            if now < result < FAILED:
                self._uphill.append(result - now)
            self._left -= now < FAILED
            return 1e-300
        if self._hot == 0.0:
            self._hot = max(float(np.median(self._uphill)) if self._uphill else 1e-3 * now, 1e-300)
            self._begin = step
        share = (step - self._begin) / max(self._total - self._begin, 1)
        return self._hot * HOT * (COLD / HOT) ** share


class _Energy:
    """Asks the objective about one plan."""

    def __init__(self, objective: Budgeted) -> None:
        self._objective = objective
        self._excess = getattr(objective.objective, "excess", None)

    def __call__(self, plan: Plan, now: float) -> float:
        """Return milliseconds, or more than `FAILED` for a plan that fails: by its excess of memory if `now` fails."""
        took = float(self._objective([plan])[0])
        if not np.isnan(took):
            return took
        return FAILED * (1 + self._excess(plan)) if self._excess and now >= FAILED else FAILED * 1e3


class _Chooser:
    """Draws kinds of steps in proportion to the share of them that improved the plan lately."""

    def __init__(self, kinds: tuple[str, ...], generator: np.random.Generator) -> None:
        self._kinds, self._generator = kinds, generator
        self._tries, self._gains = np.zeros(len(kinds)), np.zeros(len(kinds))
        self._sums = np.arange(1, len(kinds) + 1) / len(kinds)  # the last is 1
        self._steps = 0

    def draw(self) -> str:
        return self._kinds[int(self._sums.searchsorted(self._generator.random(), side="right"))]

    def learn(self, kind: str, better: bool) -> None:
        position = self._kinds.index(kind)
        self._tries[position] += 1
        self._gains[position] += better
        self._steps += 1
        if self._steps % 100 == 0:
            share = (self._gains + 1) / (self._tries + 10)
            weight = share / share.sum() + 0.03
            self._sums = np.append(np.cumsum(weight[:-1]) / weight.sum(), 1.0)
            self._tries *= 0.8
            self._gains *= 0.8
