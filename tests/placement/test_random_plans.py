"""Random plans are distinct, repeat by seed, begin with the baselines, and spread."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.baselines.list_schedules import heft, rank_us
from gst.placement.baselines.portfolio import portfolio, single
from gst.placement.search.random_plans import random_plans
from gst.placement.task import Task

HAND_OVER_US = 20.0


@pytest.fixture(scope="session")
def moldable(task: Task) -> Task:
    """Two cores, each alone or both together, which makes every operation 1.6 times as fast."""
    one, other = (Device(f"cpu:{core}", "cpu", (core,), 1, "host", "test") for core in (0, 1))
    both = Device("cpu:0-1", "cpu", (0, 1), 2, "host", "test")
    times = np.vstack([task.times_us, task.times_us[:1] / 1.6])
    return Task.of_profile(task.program, (one, other, both), times)


def drawn(task: Task, count: int, seed: int = 0) -> list[tuple[str, Plan]]:
    return list(islice(random_plans(task, seed), count))


def test_they_are_distinct_repeat_by_seed_and_more_of_them_begin_alike(moldable: Task) -> None:
    keys = [plan.key for _, plan in drawn(moldable, 100)]
    assert len(set(keys)) == 100
    assert keys[:60] == [plan.key for _, plan in drawn(moldable, 60)]
    baselines = list(dict.fromkeys(plan.key for plan in portfolio(moldable).values()))
    assert keys[: len(baselines)] == baselines
    assert len(set(keys) & {plan.key for _, plan in drawn(moldable, 100, seed=1)}) < 15


def test_every_kind_and_every_priority_occurs(moldable: Task) -> None:
    found = drawn(moldable, 200)
    kinds = [kind for kind, _ in found]
    assert all(kinds.count(kind) >= 50 for kind in ("groups", "chunks", "mutation"))
    longest_first = np.argsort(np.argsort(rank_us(moldable), kind="stable"))
    orders = [
        "program" if plan.priority is None else "longest" if np.array_equal(plan.priority, longest_first) else "random"
        for _, plan in found
    ]
    assert 80 <= orders.count("program") <= 130
    assert min(orders.count("longest"), orders.count("random")) >= 30


def test_the_share_of_a_device_goes_from_nothing_to_everything(moldable: Task) -> None:
    for kind in ("groups", "chunks"):
        shares = [(plan.placement == 2).mean() for found, plan in drawn(moldable, 400) if found == kind]
        assert min(shares) < 0.05 and max(shares) > 0.85 and 0.2 < np.std(shares) < 0.45


def test_groups_stay_together(moldable: Task) -> None:
    for kind, plan in drawn(moldable, 60):
        if kind == "groups":
            for group in range(moldable.program.num_groups):
                assert len(set(plan.placement[moldable.program.colocation == group])) == 1


def test_one_device_has_plans_that_differ_in_priorities_alone(task: Task) -> None:
    alone = Task.of_profile(task.program, task.devices[:1], task.times_us[:1])
    plans = drawn(alone, 20)
    assert len({plan.key for _, plan in plans}) == 20
    assert all((plan.placement == 0).all() for _, plan in plans)


def makespan(task: Task, plan: Plan) -> float:
    """Slow twin of a run, microseconds: the longest way first, each core does one thing at a time."""
    finish, free = np.zeros(task.program.num_nodes), np.zeros(2)
    for node in np.argsort(-rank_us(task), kind="stable"):
        device = plan.placement[node]
        if time := task.times_us[device, node]:
            cores = list(task.devices[device].cores)
            producers = task.program.operations[node].producers
            ready = max((finish[p] + HAND_OVER_US * (plan.placement[p] != device) for p in producers), default=0.0)
            free[cores] = finish[node] = max(ready, free[cores].max()) + time
    return float(finish.max())


def test_heft_knows_that_the_wide_device_takes_both_cores(moldable: Task) -> None:
    plans = portfolio(moldable)
    one, _, both = (makespan(moldable, single(moldable, device)) for device in range(3))
    assert makespan(moldable, plans["heft"]) < 1.01 * both, "with the wide device as a third core it would be slower"
    assert set(plans["heft:narrow"].placement) == {0, 1} and makespan(moldable, plans["heft:narrow"]) < 0.8 * one
    times = np.vstack([moldable.times_us[:2], moldable.times_us[:1] * 1.01])
    no_gain = Task.of_profile(moldable.program, moldable.devices, times)
    computed = moldable.times_us[0] > 0
    assert (heft(no_gain).placement[computed] != 2).mean() > 0.9, "two cores for no gain are left alone"
