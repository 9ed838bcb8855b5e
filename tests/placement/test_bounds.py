"""Nothing beats a lower bound, and where the least is known it is that."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from random_tasks import apart, core_sets, made_up, random_task

from gst.machine.devices import Device
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.list_schedules import moldable
from gst.placement.task import Task

NO_EDGES = np.zeros((2, 0), np.int64)
ROUNDING = 1 + 1e-9


def optimum(task: Task) -> float:
    """The least makespan of all placements and priorities."""
    best = np.inf
    for placement in product(range(len(task.devices)), repeat=task.num_nodes):
        if np.isfinite(task.times_us[placement, range(task.num_nodes)]).all():
            for order in permutations(range(task.num_nodes)):
                best = min(best, task.simulator.run(task.plan(np.array(placement), np.array(order))).makespan_us)
    return best


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_below_the_optimum_of_tiny_graphs(seed: int) -> None:
    task = random_task(seed, nodes=5, devices=apart(2), grouped=False)
    bound, best = lower_bound_us(task), optimum(task)
    assert 0.3 * best < bound <= best * ROUNDING


@pytest.mark.parametrize("seed", range(2))
def test_the_bound_is_below_the_optimum_on_core_sets(seed: int) -> None:
    generator = np.random.default_rng(seed)
    alone = generator.lognormal(2, 1, 5)
    times = np.stack([alone, alone, alone / generator.uniform(1.0, 2.0, 5)])
    task = made_up(np.array([[0, 0, 1], [1, 2, 3]]), times, core_sets())
    bound, best = lower_bound_us(task), optimum(task)
    assert 0.5 * best < bound <= best * ROUNDING


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_of_a_larger_graph_beats_the_bound(seed: int) -> None:
    task = random_task(seed, nodes=60)
    generator, bound = np.random.default_rng(seed), lower_bound_us(task)
    able = np.isfinite(task.times_us)
    for _ in range(50):
        placement = np.array([generator.choice(np.flatnonzero(column)) for column in able.T])
        plan = task.plan(placement, generator.permutation(task.num_nodes))
        assert bound <= task.simulator.run(plan).makespan_us * ROUNDING


def test_a_chain_stays_or_pays_for_transfers() -> None:
    """3 + 2 + 5 on the fastest devices would pay for two transfers; 3 + 4 + 5 and 4 + 2 + 6 pay for none."""
    chain, times = np.array([[0, 1], [1, 2]]), np.array([[3.0, 4.0, 5.0], [4.0, 2.0, 6.0]])
    for latency, least in ((0.0, 10.0), (0.5, 11.0), (2.0, 12.0)):
        task = made_up(chain, times, apart(2), latency_us=latency)
        assert lower_bound_us(task) == pytest.approx(least) == pytest.approx(optimum(task))


def test_producers_share_a_device_or_pay_for_transfers() -> None:
    """Three operations of 4, then one of 1 on one of their devices: 4 + transfer + 1, unless all stay there."""
    edges, times = np.array([[0, 1, 2], [3, 3, 3]]), np.array([[4.0, 4.0, 4.0, 1.0]] * 3)
    for latency, least in ((2.0, 7.0), (6.0, 11.0), (9.0, 13.0)):
        task = made_up(edges, times, apart(3), latency_us=latency)
        assert lower_bound_us(task) == pytest.approx(least) == pytest.approx(optimum(task))


def test_devices_that_are_alike_are_looked_at_once() -> None:
    task = random_task(0, nodes=40, devices=apart(2), grouped=False)
    times = task.times_us[[0]].repeat(8, 0)
    bounds = [lower_bound_us(made_up(task.costs.edges, times[:count], apart(count))) for count in (2, 8)]
    assert bounds[1] <= bounds[0]


def test_what_depends_on_nothing_is_shared_out_evenly() -> None:
    assert lower_bound_us(made_up(NO_EDGES, np.full((4, 10), 6.0), apart(4))) == pytest.approx(15.0)


def test_of_two_kinds_of_devices_each_takes_what_it_is_best_at() -> None:
    """Four operations take 1 and 10, four 10 and 1: each device runs four. Where all take 1 and 3, six and two."""
    best = made_up(NO_EDGES, np.array([[1.0] * 4 + [10.0] * 4, [10.0] * 4 + [1.0] * 4]), apart(2))
    assert lower_bound_us(best) == pytest.approx(4.0)
    slower = made_up(NO_EDGES, np.array([[1.0] * 8, [3.0] * 8]), apart(2))
    assert lower_bound_us(slower) == pytest.approx(6.0)


def test_an_operation_that_only_one_device_can_run_counts_there() -> None:
    times = np.array([[1.0] * 8, [np.inf] * 6 + [1.0] * 2])
    assert lower_bound_us(made_up(NO_EDGES, times, apart(2))) == pytest.approx(6.0)


def test_on_core_sets_the_least_core_time_counts() -> None:
    """Four operations that gain nothing from two cores, and four that gain more than twice (caches)."""
    times = np.array([[6.0] * 8] * 2 + [[6.0] * 4 + [2.0] * 4])
    assert lower_bound_us(made_up(NO_EDGES, times, core_sets())) == pytest.approx((4 * 6 + 4 * 4) / 2)


def test_work_counts_between_a_head_and_a_tail() -> None:
    """A long operation, then ten side by side, then a long one."""
    middle = np.arange(1, 11)
    edges = np.hstack([np.stack([np.zeros(10, np.int64), middle]), np.stack([middle, np.full(10, 11)])])
    times = np.array([[20.0] + [4.0] * 10 + [30.0]] * 2)
    assert lower_bound_us(made_up(edges, times, apart(2))) == pytest.approx(20 + 20 + 30)


def test_moldable_reaches_the_bound_where_everything_scales() -> None:
    generator = np.random.default_rng(0)
    alone = generator.lognormal(2, 1, 30)
    task = made_up(NO_EDGES, np.stack([alone, alone, alone / 2]), core_sets())
    makespan = task.simulator.run(moldable(task)).makespan_us
    assert lower_bound_us(task) <= makespan * ROUNDING <= 1.001 * ROUNDING * lower_bound_us(task)


def test_a_single_device_takes_the_sum() -> None:
    one = (Device("cpu:0", "cpu", (0,), 1, "host", "test"),)
    assert lower_bound_us(made_up(NO_EDGES, np.arange(1.0, 6.0)[None], one)) == pytest.approx(15.0)
