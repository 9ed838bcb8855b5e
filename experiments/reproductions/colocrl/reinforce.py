"""REINFORCE: training of a policy by the runtimes of the plans that it draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from gst.lowering.plan import Plan
from gst.placement.objectives import Budgeted
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

FAILED = 100.0  # times the operations one after the other: what a plan that failed counts as
DECAY = 0.9  # of the moving averages, for each batch
LONGEST_GRADIENT = 1.0
BATCH = 16  # plans for each update
ENTROPY = 1e-2  # weight of the entropy of the decisions, which keeps the policy drawing different ones


class DrawsPlans(Protocol):
    """A distribution over plans."""

    def sample(self, count: int, generator: torch.Generator) -> Int64[Tensor, "plans decisions"]:
        """Draw the decisions of each plan."""
        ...

    def score(self, decisions: Int64[Tensor, "plans decisions"]) -> tuple[Tensor, Tensor]:
        """Return the log probability of each plan, and the sum of the entropies of its decisions, in nats."""
        ...

    def plans(self, decisions: Int64[Tensor, "plans decisions"]) -> list[Plan]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class MovingBaseline:
    """Moving average of rewards, and of their distance from it. As in ColocRL (Williams, Simple Statistical
    Gradient-Following Algorithms, Machine Learning 8, 1992), but in units that suit any program."""

    def __init__(self) -> None:
        self.mean: float | None = None
        self.spread = 0.0

    def advantages(self, rewards: Float[Tensor, " plans"]) -> Float[Tensor, " plans"]:
        """Return rewards less the average before them, in spreads, then update the averages. The first rewards are
        compared with their own average."""
        if self.mean is None:
            self.mean = rewards.mean().item()
            self.spread = (rewards - self.mean).square().mean().sqrt().item()
        advantages = (rewards - self.mean) / max(self.spread, 1e-6)
        distance = (rewards - self.mean).square().mean().sqrt().item()
        self.mean = DECAY * self.mean + (1 - DECAY) * rewards.mean().item()
        self.spread = DECAY * self.spread + (1 - DECAY) * distance
        return advantages


class Reinforce:
    """Training of a policy on one task, which goes on with each call of `run`, by whatever objective.

    Args:
        name: of the method, for the progress.
        policy: draws plans of `task`.
        seed: of the draws.
    """

    def __init__(self, name: str, policy: DrawsPlans, task: Task, seed: int, learning_rate: float) -> None:
        self.name, self.policy, self.task = name, policy, task
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
        self._baseline, self._unit_ms = MovingBaseline(), sequential_ms(task)

    def run(self, objective: Budgeted, progress: Progress = no_progress) -> None:
        """Train until the budget is spent: draw a batch of plans, ask for their runtimes, and make those that were
        faster than usual more likely, by Adam with clipped gradients. On one device the one plan is asked about once.
        """
        if len(self.task.devices) == 1:
            objective([self.task.plan(np.zeros(self.task.num_nodes, np.int64))])
            return
        while objective.left > 0:
            decisions = self.policy.sample(min(BATCH, objective.left), self._generator)
            rewards = rewards_of(objective(self.policy.plans(decisions)), self._unit_ms)
            progress(self.name, objective.num_asked, objective.budget)
            if objective.left > 0:
                loss = surrogate(*self.policy.score(decisions), self._baseline.advantages(rewards), ENTROPY)
                self._optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), LONGEST_GRADIENT)
                self._optimizer.step()


def surrogate(
    log_probabilities: Float[Tensor, " plans"], entropies: Float[Tensor, " plans"],
    advantages: Float[Tensor, " plans"], entropy: float,
) -> Float[Tensor, ""]:  # fmt: skip
    """Return the loss of REINFORCE: its expected gradient is minus that of the expected reward, less `entropy` times
    that of the mean entropy."""
    return -(advantages * log_probabilities).mean() - entropy * entropies.mean()


def rewards_of(runtimes_ms: Float64[np.ndarray, " plans"], unit_ms: float) -> Float[Tensor, " plans"]:
    """Return minus the square root of the runtime (ColocRL), in units of `unit_ms`, `FAILED` of them at most and for a
    plan that fails."""
    took = np.where(np.isnan(runtimes_ms), FAILED, runtimes_ms / unit_ms)
    return torch.from_numpy(-np.sqrt(np.minimum(took, FAILED))).float()


def sequential_ms(task: Task) -> float:
    """Return the time of all operations one after the other, each on its fastest device."""
    fastest = task.times_us.min(0)
    return max(float(fastest[np.isfinite(fastest)].sum()), 1e-3) / 1e3
