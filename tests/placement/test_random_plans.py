"""Random plans are distinct, repeat by seed, begin with the baselines, and spread."""

from __future__ import annotations

from itertools import islice

import numpy as np

from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio, rank_us
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task


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


def test_groups_stay_together(moldable: Task) -> None:
    for kind, plan in drawn(moldable, 60):
        if kind == "groups":
            for group in range(moldable.program.num_groups):
                assert len(set(plan.placement[moldable.program.colocation == group])) == 1
