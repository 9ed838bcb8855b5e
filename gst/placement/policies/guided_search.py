"""Guided search: the portfolio of baselines, then annealing to which a learning policy adds steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted
from gst.placement.policies.decisions import decisions_of
from gst.placement.policies.go import GO
from gst.placement.policies.imitation import Example, imitate
from gst.placement.policies.inputs import PolicyInputs, policy_inputs
from gst.placement.policies.ppo import CLIP, KL_LIMIT, MAX_GRADIENT
from gst.placement.search.annealing import anneal
from gst.placement.search.neighbourhoods import State
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

LEAST_WEIGHT = 0.05  # of a group of which the policy is certain, among at most log(devices)
EPOCHS = 3
BATCH = 32  # outcomes, at least, that the policy learns from at once
NODE_STEPS = 300_000  # nodes times batches that the policy learns from, so that large graphs take no longer
IMITATION_STEPS = 30
IMITATION_NODES = 100_000  # nodes times steps, at most, of a warm start
TRIES = 8  # draws of a step, at most, before one that changes nothing is returned


def guided_search(task: Task, objective: Budgeted, seed: int = 0, progress: Progress = no_progress) -> None:
    """Improve the best plan of the portfolio; the result is never worse than the portfolio within the budget.

    The objective is asked about the portfolio first. A policy (`GO`) then imitates the best of it (the warm start of
    DOPPLER, ICLR 2026) and proposes steps to simulated annealing, from whose outcomes it goes on learning (a policy
    that guides a search, as in REGAL, Paliwal et al., ICLR 2020). Where no plan runs or there is one device, annealing
    goes on alone.
    """
    objective(list({plan.key: plan for plan in portfolio(task).values()}.values()))
    best = objective.best
    if best is None or len(task.devices) < 2 or not objective.left:
        if objective.left:
            anneal(task, objective, seed, progress)
        return
    inputs = policy_inputs(task)
    learner = GO(channels=32, encoder_layers=2, seed=seed)
    example = Example.of(inputs, decisions_of(task, inputs, best))
    imitate(learner, [example], min(IMITATION_STEPS, IMITATION_NODES // task.num_nodes), seed=seed)
    guide = Guide(learner, inputs, max(BATCH, objective.left * task.num_nodes // NODE_STEPS), seed)
    anneal(task, objective, seed, progress, [best], guide)


class Guide:
    """A policy that proposes steps of a search, and learns from the outcomes of all steps, `batch` of them at once: PPO
    in which a step is credited only to the groups that it moved."""

    def __init__(self, policy: nn.Module, inputs: PolicyInputs, batch: int, seed: int = 0) -> None:
        self.policy, self.inputs, self.batch = policy, inputs, batch
        self.generator = np.random.default_rng(seed)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
        self._group = inputs.group.numpy()
        self._first = np.unique(self._group, return_index=True)[1]
        self._steps: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._refresh()

    def step(self, state: State) -> State:
        """Draw devices from the policy for some groups: neighbours in topological order, or groups of which the policy
        is least certain or that are on the critical path."""
        for _ in range(TRIES):
            trial = self._draw(state)
            if (trial.placement != state.placement).any():
                break
        return trial

    def _draw(self, state: State) -> State:
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
        """Add the gain of a step, in any unit; the policy is updated after each `batch` of them."""
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
