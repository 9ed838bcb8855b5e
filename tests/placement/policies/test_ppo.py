"""PPO finds known optima, avoids what fails, and its formulas agree with tables worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from jaxtyping import Float64

from experiments.random_tasks import generated_task
from gst.lowering.plan import Plan
from gst.placement.objectives import Objective
from gst.placement.policies.go import GO
from gst.placement.policies.ppo import FAILED, PPO, Lesson, advantages, clipped_gain, draw, plans_of, policy_inputs
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


def test_the_clipped_gain_agrees_with_a_table() -> None:
    before = torch.log(torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
    now = torch.log(torch.tensor([[0.75, 0.25], [0.22, 0.78]])).requires_grad_()
    taken, worth = torch.tensor([[0, 0], [1, 0]]), torch.tensor([2.0, -1.0])  # plans x units
    # ratios: unit 0: 1.5, 0.5; unit 1: 1.1, 1.1. Of plan 0: 1.2 * 2 (clipped), 1.1 * 2; of plan 1: -0.8 (clipped), -1.1
    gain = clipped_gain(before, now, taken, worth)
    assert gain.item() == pytest.approx((2.4 + 2.2 - 0.8 - 1.1) / 4, abs=1e-6)
    gain.backward()
    assert now.grad is not None and (now.grad[0] == 0).all() and now.grad[1, 0] != 0
