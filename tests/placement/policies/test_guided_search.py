"""The project's method: never worse than the portfolio, exact budgets, and proposals that change something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Float64

from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.generated_tasks import generated_task
from gst.placement.policies.go import GO
from gst.placement.policies.guided_search import Guide, guided_search
from gst.placement.policies.inputs import policy_inputs
from gst.placement.search.annealing import anneal
from gst.placement.search.neighbourhoods import Neighbourhood, State
from gst.placement.task import Task


def searched(task: Task, budget: int, seed: int = 0) -> Budgeted:
    budgeted = Budgeted(SimulatedObjective(task), budget)
    guided_search(task, budgeted, seed)
    return budgeted


def test_it_is_never_worse_than_the_portfolio_and_repeats_by_seed() -> None:
    task = generated_task(5, num_nodes=120, num_devices=3)
    floor = np.nanmin(SimulatedObjective(task)(list(portfolio(task).values())))
    first, second = searched(task, 120), searched(task, 120)
    assert first.num_asked == 120 and first.best_ms < floor
    assert first.curve == second.curve


@pytest.mark.parametrize("budget", [1, 5, 40])
def test_budgets_are_kept(budget: int) -> None:
    assert searched(generated_task(1, num_nodes=60), budget).num_asked == budget


def test_one_device_and_one_group() -> None:
    task = generated_task(0, num_nodes=50, num_devices=1)
    assert searched(task, 30).best is not None
    task = generated_task(0, num_nodes=50, num_devices=3)
    assert searched(replace(task, colocation=np.zeros(task.num_nodes, np.int64)), 30).best is not None


def test_memory_limits_are_respected() -> None:
    task = generated_task(3, num_nodes=80, num_devices=3)
    run = task.simulator.run(portfolio(task)["single:gpu:0"])
    limit = int(0.6 * task.memory_use(run)["gpu:0"])
    devices = tuple(replace(device, memory_limit=limit) for device in task.devices)
    task = replace(task, costs=replace(task.costs, devices=devices))
    found = searched(task, 200)
    assert found.best is not None
    use = task.memory_use(task.simulator.run(found.best))
    assert max(use.values()) <= limit


def guide(task: Task) -> tuple[Guide, State]:
    start = portfolio(task)["single:gpu:0"]
    state = Neighbourhood(task, np.random.default_rng(0)).state(start, by_tail=False)
    return Guide(GO(channels=16), policy_inputs(task), batch=8), state


def test_steps_of_the_policy_move_whole_groups_to_what_it_finds_likely() -> None:
    task = generated_task(5, num_nodes=120, num_devices=3)
    task = replace(task, colocation=np.arange(task.num_nodes) // 2)
    guided, state = guide(task)
    guided._chances = np.tile(np.float32([0.5, 0.0, 0.5]), (task.num_groups, 1))
    moved = []
    for _ in range(200):
        trial = guided.step(state)
        assert set(trial.placement) <= {0, 2}
        for group in np.unique(task.colocation):
            assert len(set(trial.placement[task.colocation == group])) == 1
        moved.append(int((trial.placement != state.placement).sum()) // 2)
    assert 1 <= np.mean(moved) <= task.num_groups / 16 and np.mean(np.array(moved) > 0) > 0.7


def test_the_policy_learns_from_the_groups_that_moved() -> None:
    task = generated_task(5, num_nodes=60, num_devices=2)
    guided, state = guide(task)
    with torch.no_grad():
        before = guided.policy(guided.inputs)["placement"].exp()
    for node in (7, 9) * 4:
        placement = state.placement.copy()
        placement[node] = 1
        guided.tell(state, replace(state, placement=placement), 0.1 if node == 7 else -0.1)
    with torch.no_grad():
        change = guided.policy(guided.inputs)["placement"].exp() - before
    position = [int(guided.inputs.group[node]) for node in (7, 9)]
    assert change[position[0], 1] > change[position[1], 1]


def test_annealing_takes_steps_of_a_policy_and_tells_it_the_outcomes() -> None:
    task = generated_task(5, num_nodes=40, num_devices=2)
    keys, told = [], []

    def runtime(plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        keys.extend(plan.key for plan in plans)
        return SimulatedObjective(task)(plans)

    guided, _ = guide(task)
    learn = guided.tell
    guided.tell = lambda state, trial, gain: (told.append(gain), learn(state, trial, gain))[1]  # type: ignore[method-assign]
    budgeted, start = Budgeted(runtime, 400), portfolio(task)["heft"]
    anneal(task, budgeted, start=[start], proposer=guided)
    assert budgeted.num_asked == 400 and len(set(keys)) > 0.8 * 400
    assert budgeted.best_ms < SimulatedObjective(task)([start])[0]
    assert len(told) == 400 - 3 and max(told) > 0 > min(told), "all but the start, as it is and with two orders"
    by_itself = Budgeted(runtime, 400)
    anneal(task, by_itself, start=[start])
    assert by_itself.curve != budgeted.curve
