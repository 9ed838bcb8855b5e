"""HDP: its probabilities, its gradient, what it tells of groups, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.reproductions.hdp.method import HDP, hdp_training
from gst.placement.objectives import Budgeted
from tests.placement.policies.toy import Asked, check_budget_and_seeds, every, frequencies, mismatches, noted, toy


def sharp(nodes: int) -> HDP:
    """A policy on two devices whose probabilities are far from even."""
    policy = HDP(toy(nodes, 2), seed=0, groups=64, hidden=8)
    with torch.no_grad():
        policy.grouper.weight.mul_(8)
        policy.placer.logits.weight.mul_(20)
        policy.placer.device.weight.mul_(3)
    return policy


def test_plans_are_drawn_as_often_as_they_are_likely() -> None:
    policy = sharp(2)
    pairs = list(frequencies(policy, every([2] * 4), 8_000))
    assert abs(sum(probability for _, probability in pairs) - 1) < 1e-5
    assert max(probability for _, probability in pairs) > 0.12
    for frequency, probability in pairs:
        assert abs(frequency - probability) < 5 * np.sqrt(probability / 8_000) + 1e-4


def test_groups_and_devices_each_have_their_probability() -> None:
    policy = sharp(6)
    decisions = policy.sample(5, torch.Generator().manual_seed(0))
    log_probability, entropy = policy.score(decisions)
    for row, said, left in zip(decisions, log_probability, entropy, strict=True):
        grouping, devices = row[None, :6], row[None, 6:]
        of_units = policy._grouper()
        of_groups = policy.placer(policy._embedded(grouping), devices)[0]
        total = sum(of_units[unit, group] for unit, group in enumerate(grouping[0]))
        total = total + sum(of_groups[group, device] for group, device in enumerate(devices[0]))
        assert torch.allclose(said, total, atol=1e-4)
        assert torch.allclose(left, -(of_units.exp() * of_units).sum() - (of_groups.exp() * of_groups).sum(), atol=1e-4)


def test_it_learns_where_operations_belong() -> None:
    target, asked = np.repeat([0, 1], 5), Asked()
    runtime = Budgeted(noted(mismatches(target), asked), 1600)
    hdp_training(toy(10, 2), learning_rate=2e-2, hidden=16).run(runtime)
    answers = np.concatenate([answers for _, answers in asked])
    assert runtime.best_ms == 1.0
    assert answers[:96].mean() > 5.0 and answers[-96:].mean() < 3.5


@pytest.mark.parametrize("budget", [0, 17])
def test_the_budget_is_spent_and_seeds_repeat(budget: int) -> None:
    check_budget_and_seeds(hdp_training, toy(9, 3), budget)
