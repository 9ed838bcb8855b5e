"""Guided search: the portfolio of baselines, then annealing to which a learning policy adds steps."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted
from gst.placement.policies.decisions import decisions_of
from gst.placement.policies.go import GO
from gst.placement.policies.inputs import PolicyInputs, policy_inputs
from gst.placement.policies.ppo import CLIP, KL_LIMIT, MAX_GRADIENT
from gst.placement.policies.pretraining import Example, imitate, load_policy, zero_shot
from gst.placement.search.annealing import anneal
from gst.placement.search.neighbourhoods import Neighbourhood, State
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

LEAST_WEIGHT = 0.05  # of a group of which the policy is certain, among at most log(devices)
EPOCHS = 3
BATCH = 32  # answers, at least, that the policy learns from at once
NODE_STEPS = 300_000  # nodes times batches that the policy learns from, so that large graphs take no longer
HOT, COLD = 0.02, 0.0005  # first and last temperature, as shares of what a step uphill costs in the middle
WARM_UP = 200  # answers, at most, from which the temperature is learned; steps uphill are not taken meanwhile
LOOK_EVERY = 15  # steps between two looks at what the plan waits for
PATIENCE = 0.15  # share of the budget without a better plan until the search goes back to the best
STREAK = 100  # steps in a row whose answers are known, until one of them is taken whatever it costs
IMITATION_STEPS = 30
IMITATION_NODES = 100_000  # nodes times steps, at most, of a warm start
NUM_ZERO_SHOT = 2  # plans of a pretrained policy to start from


def guided_search(
    task: Task,
    objective: Budgeted,
    seed: int = 0,
    progress: Progress = no_progress,
    *,
    pretrained: GO | Path | str | None = None,
) -> None:
    """Improve the best plan of the portfolio: never worse than the portfolio as far as the budget reaches.

    The portfolio is asked about first, with the plans of a pretrained policy if there is one. The policy (`GO`) then
    imitates the best of them (the warm start of DOPPLER, ICLR 2026) and proposes steps to simulated annealing, from
    whose outcomes it goes on learning (see `guided_annealing`; a policy that guides a search, as in REGAL, Paliwal et
    al., ICLR 2020). Where no plan runs or there is one device, annealing goes on alone.

    Args:
        task: what is placed where.
        objective: who is asked.
        seed: of everything that is drawn.
        pretrained: a policy, which is left as it is, or the file of one.
    """
    policy = load_policy(pretrained) if isinstance(pretrained, Path | str) else pretrained
    starts = list(portfolio(task).values())
    if policy is not None:
        starts += zero_shot(policy, task, seed=seed).plans[:NUM_ZERO_SHOT]
    objective(list({plan.key: plan for plan in starts}.values()))
    best = objective.best
    if best is not None and objective.left and len(task.devices) > 1:
        inputs = policy_inputs(task)
        learner = GO(channels=32, encoder_layers=2, seed=seed) if policy is None else copy.deepcopy(policy)
        example = Example.of(inputs, decisions_of(task, inputs, best))
        imitate(learner, [example], min(IMITATION_STEPS, IMITATION_NODES // task.num_nodes), seed=seed)
        guided_annealing(learner, inputs, task, objective, best, seed, progress)
    if objective.left:
        anneal(task, objective, seed, progress, start=() if best is None else (objective.best or best,))


class Guide:
    """A policy that proposes steps of a local search, and learns from how steps ended, its own and others: PPO in which
    a step is credited to the groups that it moved alone.

    Args:
        policy: learns.
        inputs: of the task that is searched.
        batch: answers to learn from at once.
        seed: of what is drawn.
    """

    def __init__(self, policy: nn.Module, inputs: PolicyInputs, batch: int, seed: int = 0) -> None:
        self.policy, self.inputs, self.batch = policy, inputs, batch
        self.generator = np.random.default_rng(seed)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
        self._group = inputs.group.numpy()
        self._first = np.unique(self._group, return_index=True)[1]
        self._steps: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._refresh()

    def step(self, state: State) -> State:
        """Some groups go to devices drawn from the policy: neighbours in topological order, or those that the policy
        is least certain of or that are on the critical path."""
        groups = len(self._sums)
        size = int(np.exp(self.generator.uniform(0, np.log(max(groups / 16, 2)))))
        first = int(self._sums.searchsorted(self.generator.random() * self._sums[-1]))
        if self.generator.random() < 0.5:
            chosen = np.arange(first, min(first + size, groups))
        else:
            chosen = self._sums.searchsorted(self.generator.random(size) * self._sums[-1])
        chances = self._chances[chosen]
        if size == 1:
            chances = chances.copy()
            chances[0, state.placement[self._first[chosen[0]]]] = 0.0
        sums = chances.cumsum(1)
        device = (sums < self.generator.random((len(chosen), 1)) * sums[:, -1:]).sum(1).clip(max=chances.shape[1] - 1)
        moved = np.full(groups, -1)
        moved[chosen] = device
        by_node = moved[self._group]
        return replace(state, placement=np.where(by_node >= 0, by_node, state.placement))

    def tell(self, state: State, trial: State, gain: float) -> None:
        """How much better a step made the plan, in any unit."""
        moved = np.flatnonzero(state.placement != trial.placement)
        if len(moved):
            self._steps.append((self._group[moved], trial.placement[moved], gain))
        if len(self._steps) >= self.batch:
            self._learn()
            self._steps.clear()
            self._refresh()

    def _refresh(self) -> None:
        with torch.no_grad():
            self._before: Float[Tensor, "groups devices"] = self.policy(self.inputs)["placement"]
        chances = self._before.exp()
        entropy = -(chances * self._before.clamp(min=-50)).sum(1)
        critical = torch.zeros(len(entropy)).scatter_reduce(0, self.inputs.group, self.inputs.paths[:, 3], "amax")
        self._sums = ((entropy + LEAST_WEIGHT) * (1 + critical)).cumsum(0).numpy()
        self._chances = chances.numpy()

    def _learn(self) -> None:
        gains = np.array([gain for *_, gain in self._steps])
        worth = np.clip(gains / max(float(np.median(np.abs(gains))), 1e-12), -2, 2)
        rows = torch.from_numpy(np.concatenate([group for group, *_ in self._steps]))
        taken = torch.from_numpy(np.concatenate([device for _, device, _ in self._steps]))
        counts = [len(group) for group, *_ in self._steps]
        advantages = torch.from_numpy(np.repeat(worth / counts, counts) / len(counts)).float()
        for _ in range(EPOCHS):
            now = self.policy(self.inputs)["placement"]
            if (self._before.exp() * (self._before - now.detach())).sum(1).mean() > KL_LIMIT:
                return
            ratio = (now[rows, taken] - self._before[rows, taken]).exp()
            gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            self.optimizer.zero_grad()
            (-gain.sum()).backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRADIENT)
            self.optimizer.step()


def guided_annealing(
    policy: nn.Module, inputs: PolicyInputs, task: Task, objective: Budgeted, start: Plan, seed: int = 0,
    progress: Progress = no_progress,
) -> None:  # fmt: skip
    """Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) with the steps of `Neighbourhood` and
    those of a policy (`Guide.step`), which learns from all of them. Kinds of steps that found better plans lately are
    drawn more often, so that a policy that is of no use costs little. What was asked before is not asked again.

    Args:
        policy: proposes steps.
        inputs: of the task, as the policy reads it.
        objective: asked until nothing is left, or nothing new is found.
        start: a plan that runs.
    """
    generator, budget = np.random.default_rng(seed), objective.left
    around, asked = Neighbourhood(task, generator), _Asked(objective)
    guide = Guide(policy, inputs, max(BATCH, budget * task.num_nodes // NODE_STEPS), seed)
    moves, uphill = _Moves([*around.moves.values(), guide.step], generator), list[float]()
    state, now = _begin(around, asked, start)
    best, least, left_at_best, step = state, now, budget, 0
    while objective.left and asked.streak < 10 * STREAK:
        if step % LOOK_EVERY == 0:
            around.look(around.plan(state))
        kind, left = moves.draw(), objective.left
        trial = moves.all[kind](state)
        found = asked(around, trial)
        if objective.left < left:
            moves.learn(kind, found < now)
            guide.tell(state, trial, (now - found) / max(now, 1e-300) if np.isfinite(found) else -1.0)
        spent = budget - objective.left
        if now < found < np.inf and spent <= WARM_UP:
            uphill.append(found - now)
        heat = _temperature(spent, budget, uphill)
        if np.isfinite(found) and (asked.streak >= STREAK or generator.random() < np.exp(min(now - found, 0.0) / heat)):
            state, now = trial, found
        if now < least:
            best, least, left_at_best = state, now, objective.left
        elif left_at_best - objective.left > max(PATIENCE * budget, 50):
            state, now, left_at_best = best, least, objective.left
        step += 1
        if step % 100 == 0:
            progress("guided annealing", spent, budget)


def _begin(around: Neighbourhood, asked: _Asked, start: Plan) -> tuple[State, float]:
    """The plan with its own priorities or with those that follow the placement, whichever is faster."""
    own, following = around.state(start, by_tail=False), around.state(start, by_tail=True)
    took = asked(around, own), asked(around, following)
    return (own, took[0]) if took[0] <= took[1] else (following, took[1])


def _temperature(spent: int, budget: int, uphill: list[float]) -> float:
    """Falls geometrically; almost nothing until it is known what steps uphill cost."""
    if not uphill or spent <= min(WARM_UP, budget // 5):
        return 1e-300
    return max(float(np.median(uphill)) * HOT * (COLD / HOT) ** (spent / budget), 1e-300)


class _Moves:
    """Kinds of steps, drawn in proportion to how often they led to something better lately."""

    def __init__(self, moves: Sequence[Callable[[State], State]], generator: np.random.Generator) -> None:
        self.all, self._generator = moves, generator
        self._tries, self._gains = np.zeros(len(moves)), np.zeros(len(moves))

    def draw(self) -> int:
        share = (self._gains + 1) / (self._tries + 10)
        weight = share / share.sum() + 0.03
        return int(self._generator.choice(len(weight), p=weight / weight.sum()))

    def learn(self, kind: int, better: bool) -> None:
        self._tries[kind] = 0.998 * self._tries[kind] + 1
        self._gains[kind] = 0.998 * self._gains[kind] + better


class _Asked:
    """Asks the runtime about states, each once.

    Attributes:
        streak: states in a row that were known.
    """

    def __init__(self, objective: Budgeted) -> None:
        self.objective, self.known, self.streak = objective, dict[bytes, float](), 0

    def __call__(self, around: Neighbourhood, state: State) -> float:
        """Milliseconds; infinite for what fails."""
        content = state.placement.tobytes() + state.offset_us.tobytes() + bytes([state.by_tail])
        key = hashlib.blake2b(content, digest_size=16).digest()
        self.streak += 1
        if key not in self.known and self.objective.left:
            self.streak = 0
            took = float(self.objective([around.plan(state)])[0])
            self.known[key] = float("inf") if np.isnan(took) else took
        return self.known.get(key, float("inf"))
