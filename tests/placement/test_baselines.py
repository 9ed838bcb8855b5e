"""Laws of plans that need no learning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gst.devices import Plan
from gst.placement.baselines import HAND_OVER_US, Task, chunks, crossover, heft, mutate, portfolio, single


def makespan(task: Task, plan: Plan) -> float:
    """Slow twin of a run, microseconds: program order on each device, a hand-over where a value crosses."""
    finish = np.zeros(task.program.num_nodes)
    free = np.zeros(len(task.devices))
    for node, operation in enumerate(task.program.operations):
        device = plan.placement[node]
        ready = max(
            (finish[p] + HAND_OVER_US * (plan.placement[p] != device) for p in operation.producers), default=0.0
        )
        finish[node] = max(ready, free[device] if task.times_us[device, node] else 0.0) + task.times_us[device, node]
        if task.times_us[device, node]:
            free[device] = finish[node]
    return float(finish.max())


def test_the_portfolio_always_holds_every_baseline(task: Task) -> None:
    assert set(portfolio(task)) == {"single:cpu:0", "single:cpu:1", "chunks", "metis", "heft"}
    alone = replace(task, devices=task.devices[:1], times_us=task.times_us[:1])
    assert set(portfolio(alone)) == {"single:cpu:0"}
    for plan in portfolio(task).values():
        assert plan.placement.shape == (task.program.num_nodes,) and plan.devices == ("cpu:0", "cpu:1")


def test_chunks_follow_program_order_and_share_the_time(task: Task) -> None:
    placement = chunks(task).placement
    assert (np.diff(placement) >= 0).all()
    share = task.times_us[0][placement == 0].sum() / task.times_us[0].sum()
    assert abs(share - 0.5) <= task.times_us[0].max() / task.times_us[0].sum()


def test_heft_beats_one_device_and_chunks_under_its_own_assumptions(task: Task) -> None:
    assert makespan(task, heft(task)) < 0.9 * makespan(task, single(task, 0))
    assert makespan(task, heft(task)) < makespan(task, chunks(task))


def test_heft_leaves_a_slow_device_alone(task: Task) -> None:
    lame = replace(task, times_us=np.stack([task.times_us[0], 1e6 * (task.times_us[0] > 0)]))
    placement = heft(lame).placement
    assert (placement[task.times_us[0] > 0] == 0).all()


def test_neighbours_differ_and_mixtures_come_from_their_parents(task: Task) -> None:
    generator = np.random.default_rng(0)
    plan = heft(task)
    assert len({mutate(task, plan, generator).key for _ in range(50)}) > 30
    parents = [single(task, 0), plan]
    for _ in range(20):
        child = crossover(task, parents, generator).placement
        assert all((child[i] == parents[0].placement[i]) or (child[i] == plan.placement[i]) for i in range(len(child)))
