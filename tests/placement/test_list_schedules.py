"""List schedules agree with slow twins, keep what is given, and are fast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_tasks import MANY, Slow, apart, core_sets, made_up, random_edges, random_task

from gst.placement.baselines.portfolio import etf, heft, moldable, rank_us
from gst.placement.objectives import SimulatedObjective
from gst.placement.task import Task

SEEDS = range(15)


@pytest.mark.parametrize("seed", SEEDS)
def test_list_schedules_agree_with_their_slow_twins(seed: int) -> None:
    task = random_task(seed)
    slow, queued = Slow(task), with_queues(task)
    assert heft(task).placement.tolist() == slow.heft()
    assert etf(task).placement.tolist() == Slow(task).etf()
    np.testing.assert_allclose(rank_us(task), [slow.rank[node] for node in range(task.num_nodes)], rtol=1e-9)
    np.testing.assert_array_equal(np.argsort(-heft(task).priority), slow.order)
    assert heft(queued).placement.tolist() == Slow(queued).heft()


def test_list_schedules_that_know_of_queues_are_faster_where_copies_queue() -> None:
    """By the geometric mean over random tasks whose copies take ten times as long as operations."""
    tasks = [random_task(seed, grouped=False) for seed in SEEDS]
    tasks = [replace(each, costs=replace(each.costs, output_bytes=10 * each.costs.output_bytes)) for each in tasks]
    tasks = [with_queues(each) for each in tasks]
    for method in (heft, etf):
        ratios = [
            task.simulator.run(method(task)).makespan_us
            / task.simulator.run(method(replace(task, costs=replace(task.costs, copies_queue=False)))).makespan_us
            for task in tasks
        ]
        assert np.exp(np.mean(np.log(ratios))) < 0.9


def with_queues(task: Task) -> Task:
    return replace(task, costs=replace(task.costs, copies_queue=True))


@pytest.mark.parametrize("seed", range(5))
def test_both_agree_with_their_slow_twins_where_memory_is_short(seed: int) -> None:
    held = 0
    for share in (0.28, 0.4, 0.6):
        task = random_task(seed, devices=apart(4, limit=int(share * 40) * MANY + MANY // 2))
        for method, twin in ((heft, Slow.heft), (etf, Slow.etf)):
            plan, expected = method(task), twin(Slow(task))
            assert (plan is None) == (expected is None)
            if plan is not None:
                assert plan.placement.tolist() == expected
                held += int(SimulatedObjective(task).excess(plan) == 0)
    assert held >= 4


def test_a_device_that_shares_cores_waits_for_all_of_them() -> None:
    little_gain = np.array([[10.0] * 4, [10.0] * 4, [9.0] * 4])
    task = made_up(np.zeros((2, 0), np.int64), little_gain, core_sets())
    assert task.simulator.run(heft(task)).makespan_us == 36.0, "each of them alone ends first on both cores"
    assert task.simulator.run(heft(task, narrow=True)).makespan_us == 20.0
    no_gain = made_up(np.zeros((2, 0), np.int64), little_gain + np.array([[0.0], [0.0], [2.0]]), core_sets())
    assert set(heft(no_gain).placement) == {0, 1}


def test_a_device_waits_for_the_favourite_child_unless_something_else_can_start_at_once() -> None:
    """2 reads 0 and 1, which begin on different devices, and 3 reads 0 alone: it would start before 2."""
    edges = np.array([[0, 0, 1], [2, 3, 2]])
    times = np.array([[10.0, 9.0, 50.0, 8.0, 1.0]] * 2)
    task = made_up(edges, times, apart(2), output_bytes=np.full(5, 4_000), latency_us=0.0)
    without, with_child = etf(task).placement, etf(task, np.array([2, -1, -1, -1, -1])).placement
    assert without[3] == without[0] != without[2]
    assert with_child[2] == with_child[0] != with_child[3]
    assert with_child[4] == with_child[1], "4 reads nothing: it fills the time"


def core_set_task(seed: int, nodes: int = 120) -> Task:
    """Operations that gain from a second core between nothing and almost twice, on two cores."""
    generator = np.random.default_rng(seed)
    alone = generator.lognormal(4, 1, nodes)
    both = alone / generator.uniform(0.9, 2.0, nodes)
    edges = np.unique(
        np.hstack([random_edges(generator, nodes, 1.0), [np.arange(nodes - 2), np.arange(2, nodes)]]), axis=1
    )
    task = made_up(edges, np.stack([alone, alone, both]), core_sets())
    return replace(task, contention=random_task(0).contention)


def test_moldable_is_never_slower_than_its_parts_and_gains_where_operations_gain_from_two_cores() -> None:
    gains = []
    for seed in range(5):
        task = core_set_task(seed)
        parts = [heft(task), heft(task, narrow=True)]
        alone = [task.plan(np.full(task.num_nodes, device)) for device in range(3)]
        took = task.simulator.makespans([moldable(task)])[0]
        assert took <= task.simulator.makespans([*parts, *alone]).min()
        gains.append(task.simulator.makespans(parts).min() / took)
    assert np.mean(gains) > 1.03


def test_moldable_goes_wide_where_nothing_else_can_run_and_narrow_where_much_can() -> None:
    """A chain of operations that gain 1.5 times, and as many that depend on nothing."""
    times = np.array([[30.0] * 10] * 2 + [[20.0] * 10])
    chain = made_up(np.stack([np.arange(9), np.arange(1, 10)]), times, core_sets())
    assert (moldable(chain).placement == 2).all()
    free = made_up(np.zeros((2, 0), np.int64), times, core_sets())
    assert set(moldable(free).placement) == {0, 1} and free.simulator.run(moldable(free)).makespan_us == 150.0
