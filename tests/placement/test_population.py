"""Laws of the cross-entropy method and of the evolutionary search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from placement_graphs import made_task

from gst.placement.baselines.portfolio import portfolio, single
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.population import cross_entropy, evolve
from gst.placement.task import Task

Search = Callable[..., None]
both = pytest.mark.parametrize("search", [cross_entropy, evolve])


def searched(search: Search, task: Task, budget: int, seed: int = 0, **settings: object) -> Budgeted:
    budgeted = Budgeted(SimulatedObjective(task), budget)
    search(task, budgeted, seed, **settings)
    return budgeted


@both
@pytest.mark.parametrize("budget", [0, 1, 130])
def test_the_budget_is_spent_to_the_last(search: Search, task: Task, budget: int) -> None:
    budgeted = searched(search, task, budget)
    assert budgeted.num_asked == budget and (budgeted.best is None) == (budget == 0)


@both
def test_the_same_seed_gives_the_same_curve_and_another_does_not(search: Search, task: Task) -> None:
    start = [single(task, 0)]
    first, again, other = (searched(search, task, 250, seed, start=start) for seed in (3, 3, 4))
    assert first.curve == again.curve and first.curve != other.curve


@both
def test_it_is_never_worse_than_its_start_and_improves_it(search: Search, task: Task) -> None:
    runtime, start = SimulatedObjective(task), single(task, 0)
    assert searched(search, task, 1_000, start=[start]).best_ms < 0.95 * runtime([start])[0]
    assert searched(search, task, 60).best_ms <= np.nanmin(runtime(list(portfolio(task).values())))


@both
def test_groups_of_costs_without_a_program_stay_together(search: Search) -> None:
    task = replace(made_task(12, 0), colocation=np.repeat(np.arange(4), 3))
    best = searched(search, task, 200).best
    assert best is not None and (best.placement.reshape(4, 3) == best.placement[::3, None]).all()


@both
def test_nodes_that_cannot_run_somewhere_do_not_keep_it_from_finding_a_plan(search: Search) -> None:
    task = made_task(6, 0)
    times = task.times_us.copy()
    times[0, 3] = np.inf
    task = replace(task, costs=replace(task.costs, times_us=times))
    best = searched(search, task, 200, start=[single(task, 1)]).best
    assert best is not None and best.placement[3] == 1


@both
def test_one_device_is_no_trouble(search: Search) -> None:
    assert searched(search, made_task(6, 0, devices=1), 50).left == 0


def test_the_distribution_moves_to_where_the_time_is_least() -> None:
    """Independent operations that are quicker on one device, one after the other: all go there."""
    task = made_task(12, 0, devices=2)
    fast = np.arange(12) % 2
    times = np.where(np.arange(2)[:, None] == fast, 1.0, 50.0)
    task = replace(task, costs=replace(task.costs, edges=np.zeros((2, 0), np.int64), times_us=times))
    best = searched(cross_entropy, task, 4_000, start=[single(task, 0)], trust=0.5).best
    assert best is not None and (best.placement == fast).all()
