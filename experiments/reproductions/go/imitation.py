"""Imitation: a policy learns to make the plans of examples likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.lowering.plan import Plan, ranks
from gst.placement.policies.ppo import LEVELS, Decisions, LogProbabilities, PolicyInputs
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

AT_ONCE = 4  # examples in a step
SMOOTHING = 0.05  # share of the target that is spread over all actions, so that the policy goes on exploring


@dataclass(frozen=True, eq=False)
class Example:
    """Decisions of one plan for one graph.

    Args:
        weights: of each group, mean 1: large operations matter more, but all do.
    """

    inputs: PolicyInputs
    decisions: Decisions
    weights: Float[Tensor, " groups"]

    @staticmethod
    def of(inputs: PolicyInputs, decisions: Decisions) -> Example:
        weights = inputs.groups[:, 0] + 0.1  # the logarithm of the share of time
        return Example(inputs, decisions, weights / weights.mean())


def decisions_of(task: Task, inputs: PolicyInputs, plan: Plan) -> Decisions:
    """Return the placement and the schedule nearest to a plan: the device with most of the time of each group, and the
    level of the mean rank of its operations."""
    group = inputs.group.numpy()
    times = np.where(np.isfinite(task.times_us), task.times_us, 0.0)
    taken = times[plan.placement, np.arange(task.num_nodes)] + 1e-3
    votes = np.zeros((inputs.num_groups, inputs.num_devices))
    np.add.at(votes, (group, plan.placement), taken)
    first_runs_highest = task.num_nodes - 1 - ranks(plan)
    share = np.bincount(group, first_runs_highest / task.num_nodes, inputs.num_groups)
    level = (share / np.maximum(inputs.sizes.numpy(), 1) * LEVELS).astype(np.int64)
    return {"placement": torch.from_numpy(votes.argmax(1))[None], "schedule": torch.from_numpy(level)[None]}


def imitate(
    policy: nn.Module, examples: Sequence[Example], steps: int, learning_rate: float = 2e-3, seed: int = 0,
    progress: Progress = no_progress,
) -> list[float]:  # fmt: skip
    """Train a policy on examples, and return the loss of each step: cross-entropy with smoothed labels (Szegedy et al.,
    "Rethinking the Inception Architecture", CVPR 2016, section 7), of the tasks that both policy and example decide.
    The learning rate falls to zero as a cosine; a step takes `AT_ONCE` examples, all of them alternately.
    """
    if not examples:
        return []
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    generator, waiting, losses = np.random.default_rng(seed), list[int](), []
    for step in range(steps):
        while len(waiting) < min(AT_ONCE, len(examples)):
            waiting += generator.permutation(len(examples)).tolist()
        chosen, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        optimizer.zero_grad()
        loss = 0.0
        for each in chosen:
            part = distance(policy(examples[each].inputs), examples[each]) / len(chosen)
            part.backward()
            loss += part.item()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
        progress("imitating", step + 1, steps)
    return losses


def distance(log_probabilities: LogProbabilities, example: Example) -> Tensor:
    """Return the cross-entropy from an example to a policy, in nats a group."""
    loss = torch.zeros(())
    for name in [each for each in log_probabilities if each in example.decisions]:
        now, wanted = log_probabilities[name], example.decisions[name].T
        possible = now > -1e8
        spread = (now.masked_fill(~possible, 0.0)).sum(1) / possible.sum(1)
        hit = now.gather(1, wanted)[:, 0].clamp(min=-20.0)
        loss = loss - (example.weights * ((1 - SMOOTHING) * hit + SMOOTHING * spread)).mean()
    return loss
