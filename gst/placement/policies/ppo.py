"""Decisions of a policy as plans, and proximal policy optimisation for plans of graphs of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from gst.lowering.fusion import legalise
from gst.lowering.plan import Plan
from gst.placement.objectives import Objective
from gst.placement.policies.inputs import PolicyInputs
from gst.placement.task import Task

CLIP = 0.2  # of the ratio of probabilities of one decision (Schulman et al. 2017, equation 7)
KL_LIMIT = 0.05  # nats a decision, mean over decisions, that a policy may move in one step
FAILED = -10.0  # reward of a plan that failed (Zhou et al. 2020)
MEMORY = 0.9  # of the running mean of rewards
MAX_GRADIENT = 1.0  # norm


LEVELS = 8
"""Levels of priority, one of which a schedule decides for each group; the greatest runs first."""

LogProbabilities = Mapping[str, Float[Tensor, "units actions"]]
"""Log probabilities of the actions of each task: `placement`, the devices of groups; `schedule`, the levels of groups;
`fusion`, 1 for each node that is fused with its first producer."""

Decisions = Mapping[str, Int64[Tensor, "plans units"]]
"""Actions of each task."""


def draw(log_probabilities: LogProbabilities, count: int, generator: torch.Generator) -> Decisions:
    """Draw the decisions of `count` plans, every unit by itself."""
    return {
        name: torch.multinomial(each.detach().exp(), count, replacement=True, generator=generator).T
        for name, each in log_probabilities.items()
    }


def plans_of(task: Task, inputs: PolicyInputs, decisions: Decisions) -> list[Plan]:
    """Turn decisions into plans.

    Every node goes where its group goes. Operations of a greater level run first, those of one level, and all of them
    without a schedule, by upward rank, as in HEFT. A node is fused with its first producer if both are on one device;
    groups of fusion are then made legal (`gst.lowering.fusion.legalise`).

    Raises:
        ValueError: fusion was decided, but there is no program whose operations could be fused.
    """
    group, longest_first = inputs.group.numpy(), np.argsort(np.argsort(inputs.upward_rank, kind="stable"))
    arrays = {name: each.numpy() for name, each in decisions.items()}
    plans = []
    for number in range(len(arrays["placement"])):
        placement = arrays["placement"][number][group]
        level = arrays["schedule"][number][group] if "schedule" in arrays else 0
        fusion = _fusion(task, inputs, placement, arrays["fusion"][number]) if "fusion" in arrays else None
        plans.append(Plan(task.names, placement, level * len(group) + longest_first, fusion))
    return plans


def _fusion(
    task: Task, inputs: PolicyInputs, placement: Int64[np.ndarray, " nodes"], fuse: Int64[np.ndarray, " nodes"]
) -> Int64[np.ndarray, " nodes"]:
    if task.program is None:
        raise ValueError(f"task {task.name!r} has no program whose operations could be fused; leave fusion out")
    producer, nodes = inputs.producer.numpy(), np.arange(task.num_nodes)
    joined = (fuse == 1) & (producer >= 0) & (placement[producer] == placement)
    root = np.where(joined, producer, nodes)
    while (root != root[root]).any():
        root = root[root]
    return legalise(task.program, root, placement)


@dataclass(eq=False)
class Lesson:
    """A graph of the training.

    Args:
        objective: gives the runtimes of plans.
        reference_ms: the unit of its rewards; the median of its first batch if NaN.
        mean_reward: running mean over its batches; NaN before the first.
    """

    task: Task
    inputs: PolicyInputs
    objective: Objective
    reference_ms: float = float("nan")
    mean_reward: float = float("nan")


class PPO:
    """Training by the clipped objective of Schulman et al., "Proximal Policy Optimization Algorithms" (2017, eq. 7).

    A plan is one step: all its decisions are taken at once, and its reward is -sqrt(runtime), in units of the graph's
    first batch; a plan that failed gets `FAILED`. The ratio of probabilities is clipped for each decision by itself:
    the joint ratio of thousands of decisions would always be clipped. A batch of one plan is compared with the graph's
    running mean, as in GO, larger ones with the mean of the other plans (leave one out: Kool, van Hoof and Welling,
    "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019).

    Args:
        policy: `PolicyInputs` -> log probabilities.
        epochs: steps on one batch; fewer once the policy has moved by `KL_LIMIT`.
        entropy: weight of a nat of entropy, at the beginning and at the end; geometric between them.
    """

    def __init__(
        self, policy: nn.Module, learning_rate: float = 1e-3, epochs: int = 4,
        entropy: tuple[float, float] = (5e-2, 5e-4), seed: int = 0,
    ) -> None:  # fmt: skip
        self.policy, self.epochs, self.entropy = policy, epochs, entropy
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, lesson: Lesson, samples: int, done: float = 0.0) -> None:
        """Draw `samples` plans for a graph, ask how long they take, and learn from the answers.

        Args:
            done: share of the training that is over, 0 to 1.
        """
        with torch.no_grad():
            before = self.policy(lesson.inputs)
        decisions = draw(before, samples, self.generator)
        runtimes = lesson.objective(plans_of(lesson.task, lesson.inputs, decisions))
        drawn = before, decisions, advantages(lesson, runtimes)
        first, last = self.entropy
        for _ in range(self.epochs):
            self.optimizer.zero_grad()
            if self._accumulate(lesson.inputs, *drawn, first * (last / first) ** done) > KL_LIMIT:
                break
            nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRADIENT)
            self.optimizer.step()

    def _accumulate(
        self, inputs: PolicyInputs, chances: LogProbabilities, decisions: Decisions,
        advantages: Float[Tensor, " plans"], entropy: float,
    ) -> float:  # fmt: skip
        """Compute the gradient of a batch; return how far the policy has moved from the one that drew it."""
        now = self.policy(inputs)
        loss, moved = torch.zeros(()), 0.0
        for name, before in chances.items():
            loss = loss - clipped_gain(before, now[name], decisions[name], advantages)
            loss = loss + entropy * (now[name].exp() * now[name]).sum(1).mean()
            moved += float((before.exp() * (before - now[name].detach())).sum(1).mean()) / len(chances)
        loss.backward()
        return moved


def clipped_gain(
    before: Float[Tensor, "units actions"], now: Float[Tensor, "units actions"], taken: Tensor, advantages: Tensor
) -> Float[Tensor, ""]:
    """Return min(r A, clip(r) A) of Schulman et al. (2017, equation 7), mean over decisions and plans."""
    ratio = (now.gather(1, taken.T) - before.gather(1, taken.T)).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()


def advantages(lesson: Lesson, runtimes_ms: Float64[np.ndarray, " plans"]) -> Float[Tensor, " plans"]:
    """Return rewards less the baseline, in standard deviations of the batch; update the lesson's means."""
    if np.isnan(lesson.reference_ms) and np.isfinite(runtimes_ms).any():
        lesson.reference_ms = float(np.nanmedian(runtimes_ms))
    rewards = np.where(np.isnan(runtimes_ms), FAILED, -np.sqrt(runtimes_ms / lesson.reference_ms))
    mean, count = float(rewards.mean()), len(rewards)
    last = lesson.mean_reward
    expected = (rewards.sum() - rewards) / (count - 1) if count > 1 else np.array([mean if np.isnan(last) else last])
    lesson.mean_reward = mean if np.isnan(last) else MEMORY * last + (1 - MEMORY) * mean
    above = rewards - expected
    scale = above.std() if count > 1 else 1.0
    return torch.from_numpy(above / (scale + 1e-6)).float()
