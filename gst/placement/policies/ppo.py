"""Proximal policy optimisation for plans: one step, any number of graphs of any size, decisions clipped one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from gst.lowering.plan import Plan
from gst.placement.objectives import Objective
from gst.placement.policies.decisions import Decisions, LogProbabilities, draw, plans_of
from gst.placement.policies.inputs import PolicyInputs
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

CLIP = 0.2  # of the ratio of probabilities of one decision (Schulman et al. 2017, equation 7)
KL_LIMIT = 0.05  # nats a decision, mean over decisions, that a policy may move in one step
FAILED = -10.0  # reward of a plan that failed (Zhou et al. 2020)
MEMORY = 0.9  # of the running mean of rewards
MAX_GRADIENT = 1.0  # norm


@dataclass(eq=False)
class Lesson:
    """A graph to learn on.

    Args:
        task: what is placed where.
        inputs: of it, as the policy reads them.
        objective: who says how long plans take.
        reference_ms: the unit of its rewards; the median of its first batch if NaN.
        mean_reward: running mean over its batches; NaN before the first.
    """

    task: Task
    inputs: PolicyInputs
    objective: Objective
    reference_ms: float = float("nan")
    mean_reward: float = float("nan")


@dataclass(frozen=True, eq=False)
class Batch:
    """Plans that were drawn for a graph, and how they did.

    Args:
        before: log probabilities that they were drawn by.
        advantages: how much better each did than the others, in standard deviations.
    """

    lesson: Lesson
    before: LogProbabilities
    decisions: Decisions
    plans: list[Plan]
    runtimes_ms: Float64[np.ndarray, " plans"]
    advantages: Float[Tensor, " plans"]


class PPO:
    """Learns by the clipped objective of Schulman et al., "Proximal Policy Optimization Algorithms" (2017, equation 7).

    A plan is one step: all its decisions are taken at once, and its reward is -sqrt(runtime), in units of the graph's
    first batch; a plan that failed gets `FAILED`. The ratio of probabilities is clipped for each decision by itself:
    the joint ratio of thousands of decisions would always be clipped. A batch of one plan is compared with the graph's
    running mean, as in GO, larger ones with the mean of the other plans (leave one out: Kool, van Hoof and Welling,
    "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019).

    Args:
        policy: `PolicyInputs` -> log probabilities.
        learning_rate: of Adam.
        epochs: steps on one batch; fewer once the policy has moved by `KL_LIMIT`.
        entropy: what a nat of entropy is worth, at the beginning and at the end; geometric between them.
        seed: of the plans drawn.
    """

    def __init__(
        self,
        policy: nn.Module,
        learning_rate: float = 1e-3,
        epochs: int = 4,
        entropy: tuple[float, float] = (5e-2, 5e-4),
        seed: int = 0,
    ) -> None:
        self.policy, self.epochs, self.entropy = policy, epochs, entropy
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, lessons: Sequence[Lesson] | Lesson, samples: int, done: float = 0.0) -> list[Batch]:
        """Draw `samples` plans for each graph, ask how long they take, and learn from the answers.

        Args:
            done: share of the training that is over, 0 to 1.
        """
        batches = [self._ask(each, samples) for each in ([lessons] if isinstance(lessons, Lesson) else lessons)]
        first, last = self.entropy
        for _ in range(self.epochs):
            self.optimizer.zero_grad()
            worth = first * (last / first) ** done
            if np.mean([self._accumulate(batch, worth, len(batches)) for batch in batches]) > KL_LIMIT:
                break
            nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRADIENT)
            self.optimizer.step()
        return batches

    def _ask(self, lesson: Lesson, samples: int) -> Batch:
        with torch.no_grad():
            before = self.policy(lesson.inputs)
        decisions = draw(before, samples, self.generator)
        plans = plans_of(lesson.task, lesson.inputs, decisions)
        runtimes = lesson.objective(plans)
        return Batch(lesson, before, decisions, plans, runtimes, advantages(lesson, runtimes))

    def _accumulate(self, batch: Batch, entropy: float, num_batches: int) -> float:
        """Add the gradient of one batch; returns how far the policy has moved from the one that drew it."""
        now = self.policy(batch.lesson.inputs)
        loss, moved = torch.zeros(()), 0.0
        for name, before in batch.before.items():
            loss = loss - clipped_gain(before, now[name], batch.decisions[name], batch.advantages)
            loss = loss + entropy * (now[name].exp() * now[name]).sum(1).mean()
            moved += float((before.exp() * (before - now[name].detach())).sum(1).mean()) / len(batch.before)
        (loss / num_batches).backward()
        return moved


def clipped_gain(
    before: Float[Tensor, "units actions"], now: Float[Tensor, "units actions"], taken: Tensor, advantages: Tensor
) -> Float[Tensor, ""]:
    """min(r A, clip(r) A) of Schulman et al. (2017, equation 7), r for each decision; mean over decisions and plans."""
    ratio = (now.gather(1, taken.T) - before.gather(1, taken.T)).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()


def advantages(lesson: Lesson, runtimes_ms: Float64[np.ndarray, " plans"]) -> Float[Tensor, " plans"]:
    """Rewards less what was to be expected, in standard deviations of the batch; keeps the lesson's means."""
    if np.isnan(lesson.reference_ms) and np.isfinite(runtimes_ms).any():
        lesson.reference_ms = float(np.nanmedian(runtimes_ms))
    rewards = np.where(np.isnan(runtimes_ms), FAILED, -np.sqrt(runtimes_ms / lesson.reference_ms))
    mean, count = float(rewards.mean()), len(rewards)
    known = lesson.mean_reward
    expected = (rewards.sum() - rewards) / (count - 1) if count > 1 else np.array([mean if np.isnan(known) else known])
    lesson.mean_reward = mean if np.isnan(known) else MEMORY * known + (1 - MEMORY) * mean
    above = rewards - expected
    scale = above.std() if count > 1 else 1.0
    return torch.from_numpy(above / (scale + 1e-6)).float()


def train(
    policy: nn.Module, lessons: Sequence[Lesson], iterations: int, samples: int, seed: int = 0, at_once: int = 4,
    learning_rate: float = 1e-3, entropy: tuple[float, float] = (5e-2, 5e-4),
    progress: Progress = no_progress,
) -> list[dict[str, float]]:  # fmt: skip
    """Train a policy on several graphs, a few of them in each iteration, all of them in turn.

    Args:
        lessons: graphs with their runtimes.
        samples: plans of each graph in an iteration.
        at_once: graphs in an iteration.

    Returns:
        For each iteration the mean `reward` and the share of plans that `failed`.
    """
    learner, generator = PPO(policy, learning_rate, entropy=entropy, seed=seed), np.random.default_rng(seed)
    history, waiting = [], list[int]()
    for iteration in range(iterations):
        while len(waiting) < min(at_once, len(lessons)):
            waiting += generator.permutation(len(lessons)).tolist()
        chosen, waiting = waiting[:at_once], waiting[at_once:]
        batches = learner.step([lessons[each] for each in chosen], samples, iteration / iterations)
        runtimes = np.concatenate([batch.runtimes_ms / batch.lesson.reference_ms for batch in batches])
        rewards = np.where(np.isnan(runtimes), FAILED, -np.sqrt(runtimes))
        history.append({"reward": float(rewards.mean()), "failed": float(np.isnan(runtimes).mean())})
        progress("learning to place", iteration + 1, iterations)
    return history
