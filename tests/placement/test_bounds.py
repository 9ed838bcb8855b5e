"""Nothing beats a lower bound, and where the least is known it is that."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from random_tasks import apart, core_sets, made_up, random_task

from gst.machine.devices import Device
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import moldable
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


def test_the_bound_is_below_the_optimum_on_core_sets() -> None:
    generator = np.random.default_rng(0)
    alone = generator.lognormal(2, 1, 4)
    times = np.stack([alone, alone, alone / generator.uniform(1.0, 2.0, 4)])
    task = made_up(np.array([[0, 0, 1], [1, 2, 3]]), times, core_sets())
    bound, best = lower_bound_us(task), optimum(task)
    assert 0.5 * best < bound <= best * ROUNDING


CHAIN = [[0, 1], [1, 2]]


@pytest.mark.parametrize(("edges", "times", "latency", "least"), [
    # 3 + 2 + 5 on the fastest devices would pay for two transfers; 3 + 4 + 5 and 4 + 2 + 6 pay for none.
    *((CHAIN, [[3.0, 4.0, 5.0], [4.0, 2.0, 6.0]], *each) for each in ((0.0, 10.0), (0.5, 11.0), (2.0, 12.0))),
    # Three operations of 4, then one of 1 on one of their devices: 4 + transfer + 1, unless all stay there.
    *(([[0, 1, 2], [3, 3, 3]], [[4.0, 4.0, 4.0, 1.0]] * 3, *each) for each in ((2.0, 7.0), (6.0, 11.0), (9.0, 13.0))),
])  # fmt: skip
def test_operations_stay_or_pay_for_transfers(
    edges: list[list[int]], times: list[list[float]], latency: float, least: float
) -> None:
    task = made_up(np.array(edges), np.array(times), apart(len(times)), latency_us=latency)
    assert lower_bound_us(task) == pytest.approx(least) == pytest.approx(optimum(task))


ONE, MIDDLE = (Device("cpu:0", "cpu", (0,), 1, "host", "test"),), np.arange(1, 11)
FORK = np.hstack([np.stack([np.zeros(10, np.int64), MIDDLE]), np.stack([MIDDLE, np.full(10, 11)])])


@pytest.mark.parametrize(("edges", "times", "devices", "least"), [
    (NO_EDGES, [[6.0] * 10] * 4, apart(4), 15.0),  # shared out evenly
    (NO_EDGES, [[1.0] * 4 + [10.0] * 4, [10.0] * 4 + [1.0] * 4], apart(2), 4.0),  # each takes what it is best at
    (NO_EDGES, [[1.0] * 8, [3.0] * 8], apart(2), 6.0),  # six and two
    (NO_EDGES, [[1.0] * 8, [np.inf] * 6 + [1.0] * 2], apart(2), 6.0),  # six can run on the first device alone
    # On core sets the least core time counts: four gain nothing from two cores, four more than twice (caches).
    (NO_EDGES, [[6.0] * 8] * 2 + [[6.0] * 4 + [2.0] * 4], core_sets(), (4 * 6 + 4 * 4) / 2),
    (FORK, [[20.0] + [4.0] * 10 + [30.0]] * 2, apart(2), 20 + 20 + 30),  # work counts between a head and a tail
    (NO_EDGES, [[1.0, 2.0, 3.0, 4.0, 5.0]], ONE, 15.0),
])  # fmt: skip
def test_work_is_shared_out(
    edges: np.ndarray, times: list[list[float]], devices: tuple[Device, ...], least: float
) -> None:
    assert lower_bound_us(made_up(edges, np.array(times), devices)) == pytest.approx(least)


def test_moldable_reaches_the_bound_where_everything_scales() -> None:
    generator = np.random.default_rng(0)
    alone = generator.lognormal(2, 1, 30)
    task = made_up(NO_EDGES, np.stack([alone, alone, alone / 2]), core_sets())
    makespan = task.simulator.run(moldable(task)).makespan_us
    assert lower_bound_us(task) <= makespan * ROUNDING <= 1.001 * ROUNDING * lower_bound_us(task)
