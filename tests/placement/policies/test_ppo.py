"""PPO finds known optima, avoids what fails, and its formulas agree with tables worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from jaxtyping import Float64
from torch import nn

from gst.lowering.plan import Plan
from gst.placement.machines import generated_task
from gst.placement.objectives import Objective
from gst.placement.policies import ppo
from gst.placement.policies.go import GO
from gst.placement.policies.inputs import PolicyInputs, policy_inputs
from gst.placement.policies.ppo import FAILED, PPO, Lesson, advantages, clipped_gain, draw, plans_of
from gst.placement.task import Task


def toy() -> Task:
    return generated_task(2, num_nodes=60, num_devices=2)


def drawn(policy: GO, lesson: Lesson, count: int = 100) -> list[Plan]:
    with torch.no_grad():
        decisions = draw(policy(lesson.inputs), count, torch.Generator().manual_seed(9))
    return plans_of(lesson.task, lesson.inputs, decisions)


def away_from(wanted: np.ndarray) -> Objective:
    """Milliseconds that grow with the share of nodes that are not where they should be: from 1 to 11."""

    def runtime(plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([1.0 + 10.0 * (plan.placement != wanted).mean() for plan in plans])

    return runtime


def test_it_finds_a_plan_that_depends_on_features() -> None:
    task = toy()
    inputs = policy_inputs(task)
    wanted = (inputs.upward_rank < np.median(inputs.upward_rank)).astype(np.int64)
    lesson = Lesson(task, inputs, away_from(wanted))
    policy = GO(channels=16, seed=1)
    before = lesson.objective(drawn(policy, lesson)).mean()
    learner = PPO(policy, learning_rate=3e-3)
    for iteration in range(30):
        learner.step(lesson, 32, iteration / 30)
    after = lesson.objective(drawn(policy, lesson)).mean()
    assert before > 4 and after < 2.5, f"{before:.2f} -> {after:.2f} ms, 1 is best"


def test_failures_are_avoided() -> None:
    task = toy()

    def fails(plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.where([(plan.placement == 0).mean() > 0.5 for plan in plans], np.nan, 5.0)

    lesson, policy = Lesson(task, policy_inputs(task), fails), GO(channels=16, seed=1)
    learner = PPO(policy, learning_rate=3e-3)
    for _ in range(20):
        learner.step(lesson, 32)
    assert np.isnan(fails(drawn(policy, lesson))).mean() < 0.05


def test_one_policy_learns_on_graphs_of_other_sizes_and_machines() -> None:
    tasks = [generated_task(seed, 40 + 20 * seed, devices) for seed, devices in enumerate((2, 3, 5))]
    lessons = [Lesson(task, policy_inputs(task), away_from(np.zeros(task.num_nodes, np.int64))) for task in tasks]
    policy = GO(channels=16)
    before = [lesson.objective(drawn(policy, lesson)).mean() for lesson in lessons]
    learner = PPO(policy, learning_rate=6e-3)
    for iteration in range(12):
        for lesson in lessons:
            learner.step(lesson, 16, iteration / 12)
    for lesson, first in zip(lessons, before, strict=True):
        assert lesson.objective(drawn(policy, lesson)).mean() < 0.75 * first


def test_advantages_leave_each_plan_out_of_its_own_baseline() -> None:
    lesson = Lesson(toy(), policy_inputs(toy()), away_from(np.zeros(60)), reference_ms=4.0)
    found = advantages(lesson, np.array([4.0, 16.0, np.nan]))  # rewards -1, -2, -10
    above = np.array([-1 - (-2 - 10) / 2, -2 - (-1 - 10) / 2, FAILED - (-1 - 2) / 2])
    np.testing.assert_allclose(found.numpy(), above / above.std(), rtol=1e-4)
    assert lesson.mean_reward == pytest.approx(-13 / 3)


def test_a_single_plan_is_compared_with_the_running_mean() -> None:
    lesson = Lesson(toy(), policy_inputs(toy()), away_from(np.zeros(60)))
    assert advantages(lesson, np.array([4.0])).item() == 0 and lesson.reference_ms == 4
    assert advantages(lesson, np.array([1.0])).item() == pytest.approx(0.5, abs=1e-4)
    assert lesson.mean_reward == pytest.approx(0.9 * -1 + 0.1 * -0.5)
    assert advantages(lesson, np.array([16.0])).item() < 0


def test_a_first_batch_of_failures_alone_teaches_nothing() -> None:
    lesson = Lesson(toy(), policy_inputs(toy()), away_from(np.zeros(60)))
    assert (advantages(lesson, np.full(4, np.nan)) == 0).all() and np.isnan(lesson.reference_ms)
    advantages(lesson, np.array([np.nan, 3.0, 5.0]))
    assert lesson.reference_ms == 4


def test_the_clipped_gain_agrees_with_a_table() -> None:
    before = torch.log(torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
    now = torch.log(torch.tensor([[0.75, 0.25], [0.22, 0.78]])).requires_grad_()
    taken, worth = torch.tensor([[0, 0], [1, 0]]), torch.tensor([2.0, -1.0])  # plans x units
    # ratios: unit 0: 1.5, 0.5; unit 1: 1.1, 1.1. Of plan 0: 1.2 * 2 (clipped), 1.1 * 2; of plan 1: -0.8 (clipped), -1.1
    gain = clipped_gain(before, now, taken, worth)
    assert gain.item() == pytest.approx((2.4 + 2.2 - 0.8 - 1.1) / 4, abs=1e-6)
    gain.backward()
    assert now.grad is not None and (now.grad[0] == 0).all() and now.grad[1, 0] != 0


def test_equal_runtimes_and_no_entropy_change_nothing() -> None:
    task = toy()
    policy = GO(channels=16)
    weights = {name: each.clone() for name, each in policy.state_dict().items()}
    lesson = Lesson(task, policy_inputs(task), lambda plans: np.full(len(plans), 3.0))
    PPO(policy, entropy=(1e-30, 1e-30)).step(lesson, 8)
    for name, each in policy.state_dict().items():
        torch.testing.assert_close(each, weights[name], atol=1e-6, rtol=0, msg=name)


class Counted(nn.Module):
    def __init__(self, policy: GO) -> None:
        super().__init__()
        self.policy, self.calls = policy, 0

    def forward(self, inputs: PolicyInputs) -> dict[str, torch.Tensor]:
        self.calls += 1
        return dict(self.policy(inputs))


def test_a_step_ends_once_the_policy_has_moved_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy()
    calls = []
    for limit in (1e9, 1e-3):
        monkeypatch.setattr(ppo, "KL_LIMIT", limit)
        policy = Counted(GO(channels=16))
        lesson = Lesson(task, policy_inputs(task), away_from(np.zeros(task.num_nodes, np.int64)))
        PPO(policy, learning_rate=1e-2, epochs=20).step(lesson, 16)
        calls.append(policy.calls)
    assert calls[0] == 21 and calls[1] < 10
