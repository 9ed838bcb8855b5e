"""The constructive policy on tasks of programs: its plans, and weights fine-tuned on one task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gst.lowering.plan import ranks
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.constructive.fine_tuning import MOST_STEPS, PAIRS, FineTuning, TaskRollouts
from gst.placement.policies.constructive.network import shipped_weights
from gst.placement.policies.generated_tasks import generated_task
from gst.placement.proposers import MAKERS, Asked
from gst.placement.task import Task
from gst.util.progress import no_progress

CORE_SETS = 6  # a seed whose machine is cores and the set of all of them
SLOW = 1  # a seed of a program that the policy does not place well at first


@pytest.fixture(scope="module")
def task() -> Task:
    made = generated_task(CORE_SETS)
    assert made.devices[-1].threads > 1
    return made


@pytest.mark.parametrize("seed", range(6))
def test_plans_place_everything_in_an_order_that_the_edges_allow(seed: int) -> None:
    made = generated_task(seed, num_nodes=120)
    plan = TaskRollouts(made)(shipped_weights())
    assert plan is not None and plan.priority is not None
    assert np.isfinite(SimulatedObjective(made)([plan])[0])
    order, (producers, consumers) = ranks(plan), made.costs.edges
    assert (order[producers] < order[consumers]).all()
    for group in range(made.num_groups):
        assert len(np.unique(plan.placement[made.colocation == group])) == 1


def test_fine_tuning_finds_plans_faster_than_the_policys_own() -> None:
    task = generated_task(SLOW, num_nodes=150, num_devices=3)
    simulated = SimulatedObjective(task)
    own = TaskRollouts(task)(shipped_weights())
    assert own is not None
    objective = Budgeted(simulated, 400)
    FineTuning(task, seed=1).run(objective)
    assert objective.best_ms < 0.99 * simulated([own])[0]
    again = Budgeted(simulated, 400)
    FineTuning(task, seed=1).run(again)
    assert again.curve == objective.curve


def test_fine_tuning_keeps_to_its_budget_and_to_its_steps(task: Task) -> None:
    for budget in (0, 1, 5, 2 * PAIRS + 1):
        objective = Budgeted(SimulatedObjective(task), budget)
        FineTuning(task).run(objective)
        assert objective.num_asked <= budget
    objective = Budgeted(SimulatedObjective(task), 10_000)
    FineTuning(task).run(objective)
    assert objective.num_asked == 2 * PAIRS * MOST_STEPS + 2  # with the plans of the weights before and after


def test_fine_tuning_goes_on_from_the_weights_it_has(task: Task) -> None:
    tuning, simulated = FineTuning(task), SimulatedObjective(task)
    first, second = Budgeted(simulated, 300), Budgeted(simulated, 1)
    tuning.run(first)
    tuning.run(second)
    own = TaskRollouts(task)(shipped_weights())
    assert own is not None and second.best is not None and second.best.key != own.key


def test_in_the_loop_it_builds_plans_by_the_costs_as_far_as_they_are_known(task: Task) -> None:
    slower = np.linspace(1, 9, len(task.devices))[:, None]
    corrected = replace(task, costs=replace(task.costs, times_us=slower * task.costs.times_us))
    reward = Asked(SimulatedObjective(corrected), 1)
    (plan,) = MAKERS["policy"](task, 0, ())(corrected, reward, (), no_progress)
    by_corrected, by_believed = (TaskRollouts(each)(shipped_weights()) for each in (corrected, task))
    assert by_corrected is not None and by_believed is not None
    assert plan.key == by_corrected.key != by_believed.key


def test_where_the_memories_hold_nothing_there_is_no_plan() -> None:
    made = generated_task(1, num_nodes=60, num_devices=2)
    full = replace(made.costs, devices=tuple(replace(each, memory_limit=1) for each in made.devices))
    objective = Budgeted(SimulatedObjective(replace(made, costs=full)), 50)
    FineTuning(replace(made, costs=full)).run(objective)
    assert objective.best is None and objective.num_asked == 0
