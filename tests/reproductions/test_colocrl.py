"""ColocRL: its probabilities, its gradient, what it learns, and what it is not troubled by."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.reproductions.colocrl.method import ColocRL, colocrl_training
from experiments.reproductions.colocrl.reinforce import FAILED, rewards_of, sequential_ms, surrogate
from gst.placement.objectives import Budgeted
from tests.placement.policies.toy import (
    Asked,
    check_budget_and_seeds,
    every,
    frequencies,
    gradient,
    mismatches,
    noted,
    toy,
)


def sharp(nodes: int, devices: int) -> ColocRL:
    """A policy in double precision whose probabilities are far from even."""
    policy = ColocRL(toy(nodes, devices), seed=0, hidden=8).double()
    with torch.no_grad():
        policy.placer.logits.weight.mul_(20)
        policy.placer.device.weight.mul_(3)
    policy.embed._told = policy.embed._told.double()
    return policy


def test_a_plan_has_the_product_of_the_probabilities_of_its_steps() -> None:
    policy = sharp(5, 3)
    decisions = policy.sample(7, torch.Generator().manual_seed(0))
    total = torch.zeros(7, dtype=torch.float64)
    for step in range(5):
        shortened = decisions.clone()
        shortened[:, step:] = 0  # what comes later says nothing about what came before
        of_devices = policy.placer(policy._embedded(), shortened)[:, step]
        assert torch.allclose(of_devices.exp().sum(1), torch.ones(7, dtype=torch.float64))
        total += of_devices.gather(1, decisions[:, step : step + 1])[:, 0]
    assert torch.allclose(policy.score(decisions)[0], total, rtol=1e-10)


def test_plans_are_drawn_as_often_as_they_are_likely() -> None:
    policy = sharp(4, 2)
    pairs = list(frequencies(policy, every([2] * 4), 20_000))
    assert abs(sum(probability for _, probability in pairs) - 1) < 1e-9
    assert max(probability for _, probability in pairs) > 0.15
    for frequency, probability in pairs:
        assert abs(frequency - probability) < 5 * np.sqrt(probability / 20_000) + 1e-4


def test_the_gradient_expected_is_that_of_the_expected_reward() -> None:
    policy = sharp(4, 2)
    plans = every([2] * 4)
    rewards = torch.randn(len(plans), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probabilities = policy.score(plans)[0].exp()
    wanted = -gradient(policy, (probabilities * rewards).sum())
    assert wanted.norm() > 1e-3
    for baseline in (0.0, 0.7):  # any baseline that does not know the plan
        expected = torch.zeros_like(wanted)
        for number, probability in enumerate(probabilities.detach()):
            log_probability, entropy = policy.score(plans[number : number + 1])
            loss = surrogate(log_probability, entropy, rewards[number : number + 1] - baseline, entropy=0.0)
            expected += probability * gradient(policy, loss)
        assert torch.allclose(expected, wanted, rtol=1e-8, atol=1e-12)


def test_rewards_are_roots_and_failures_the_worst_of_them() -> None:
    rewards = rewards_of(np.array([4.0, 1.0, np.nan, 1e9]), unit_ms=1.0)
    assert torch.allclose(rewards, torch.tensor([-2.0, -1.0, -(FAILED**0.5), -(FAILED**0.5)]))
    task = toy(3, 2)
    assert sequential_ms(task) == pytest.approx(task.times_us.min(0).sum() / 1e3)


def test_it_learns_where_operations_belong() -> None:
    task, target, asked = toy(12, 2), np.random.default_rng(0).integers(0, 2, 12), Asked()
    runtime = Budgeted(noted(mismatches(target), asked), 960)
    colocrl_training(task, learning_rate=1e-2, hidden=16).run(runtime)
    answers = np.concatenate([answers for _, answers in asked])
    assert runtime.best_ms == 1.0
    assert answers[:96].mean() > 5.5 and answers[-96:].mean() < 3.0


@pytest.mark.parametrize("budget", [0, 17])
def test_the_budget_is_spent_and_seeds_repeat(budget: int) -> None:
    check_budget_and_seeds(colocrl_training, toy(9, 3), budget)
