"""The policy learns what it is rewarded for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64

from gst.devices import Plan
from gst.placement.baselines import Task, chunks
from gst.placement.policy import PlacementPolicy


def on_the_second(plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
    """A runtime that only cares how much stands on the first device."""
    return np.array([1.0 + 10.0 * (plan.placement == 0).mean() for plan in plans])


def mean_runtime(policy: PlacementPolicy) -> float:
    return float(on_the_second(policy.plans(policy.sample(64))).mean())


def test_ppo_moves_to_the_better_device(task: Task) -> None:
    policy = PlacementPolicy(task, channels=16)
    before = mean_runtime(policy)
    plans, runtimes = policy.learn(on_the_second, iterations=60, batch=32, learning_rate=3e-3)
    assert len(plans) == len(runtimes) == 60 * 32
    assert mean_runtime(policy) < 1 + 0.5 * (before - 1)


def test_failed_plans_are_avoided(task: Task) -> None:
    def fails(plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        crowded = np.array([(plan.placement == 0).mean() > 0.5 for plan in plans])
        return np.where(crowded, np.nan, 5.0)

    policy = PlacementPolicy(task, channels=16)
    before = np.isnan(fails(policy.plans(policy.sample(128)))).mean()
    policy.learn(fails, iterations=40, batch=32, learning_rate=3e-3)
    assert np.isnan(fails(policy.plans(policy.sample(128)))).mean() < max(0.5 * before, 0.05)


def test_imitation_makes_a_plan_likely(task: Task) -> None:
    policy, plan = PlacementPolicy(task, channels=32), chunks(task)
    agreement = lambda: np.mean([(p.placement == plan.placement).mean() for p in policy.plans(policy.sample(32))])  # noqa: E731
    before = agreement()
    policy.imitate(plan)
    assert agreement() > max(before, 0.75)


def test_groups_are_placed_as_one_and_seeds_repeat(task: Task) -> None:
    first, second = (PlacementPolicy(task, channels=16, seed=5) for _ in range(2))
    assert torch.equal(first.sample(4), second.sample(4))
    for plan in first.plans(first.sample(4)):
        for group in range(task.program.num_groups):
            assert len(set(plan.placement[task.program.colocation == group])) == 1
