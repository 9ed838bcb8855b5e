"""Laws of annealing and of what it is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from placement_graphs import made_task

from experiments.random_tasks import generated_task
from gst.machine.devices import Device
from gst.placement.baselines.portfolio import heft, portfolio, single
from gst.placement.methods import GIANT, Annealing
from gst.placement.objectives import Budgeted, SearchReward, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.placement.search.neighbourhoods import Neighbourhood
from gst.placement.task import Task
from gst.simulation.copies import BUSY, CROSSING, copies_of, critical_path
from gst.util.progress import no_progress


def annealed(task: Task, budget: int, seed: int = 0, **settings: object) -> Budgeted:
    budgeted = Budgeted(SimulatedObjective(task), budget)
    anneal(task, budgeted, seed, **settings)  # type: ignore[arg-type]
    return budgeted


@pytest.mark.parametrize("budget", [0, 1, 7, 300])
def test_the_budget_is_spent_to_the_last(task: Task, budget: int) -> None:
    budgeted = annealed(task, budget)
    assert budgeted.num_asked == budget and budgeted.left == 0
    assert (budgeted.best is None) == (budget == 0)


def test_the_same_seed_gives_the_same_curve_and_another_does_not(task: Task) -> None:
    first, again, other = (annealed(task, 250, seed) for seed in (3, 3, 4))
    assert first.curve == again.curve and first.curve != other.curve
    assert first.best is not None and again.best is not None and first.best.key == again.best.key


def test_it_is_never_worse_than_its_start_and_far_better_than_one_device(task: Task) -> None:
    runtime, start = SimulatedObjective(task), single(task, 0)
    least = np.nanmin(runtime(list(portfolio(task).values())))
    assert annealed(task, 100).best_ms <= least
    assert annealed(task, 30, start=[start]).best_ms <= runtime([start])[0]
    assert annealed(task, 2_000, start=[start]).best_ms <= min(0.62 * runtime([start])[0], 1.1 * least)


def test_it_comes_close_to_the_bound_of_independent_operations() -> None:
    """Forty operations that wait for nothing, on two devices: the work can be halved."""
    task = made_task(40, 0)
    times = np.stack([task.times_us[0]] * 2)
    task = replace(task, costs=replace(task.costs, edges=np.zeros((2, 0), np.int64), times_us=times))
    best = annealed(task, 2_000, start=[single(task, 0)]).best_ms
    assert best <= 1.01 * times[0].sum() / 2 / 1e3


def test_memory_limits_are_kept_also_when_no_start_fits(task: Task) -> None:
    free = task.memory_use(task.simulator.run(single(task, 0)))
    tight = int(0.75 * max(free.values()))
    apart = tuple(replace(each, memory=each.name, memory_limit=tight) for each in task.devices)
    costs = replace(
        task.costs, devices=apart, latency_us=5.0 * (1 - np.eye(2)), bytes_per_us=np.where(np.eye(2), np.inf, 1e3)
    )
    limited = replace(task, costs=costs)
    runtime = SimulatedObjective(limited)
    start = [single(limited, 0), single(limited, 1)]
    assert np.isnan(runtime(start)).all()
    budgeted = annealed(limited, 400, start=start)
    assert budgeted.best is not None and runtime.excess(budgeted.best) == 0
    assert max(limited.memory_use(limited.simulator.run(budgeted.best)).values()) <= tight


def test_one_device_and_one_group_are_no_trouble() -> None:
    for task in (made_task(6, 0, devices=1), replace(made_task(6, 0), colocation=np.zeros(6, np.int64))):
        budgeted = annealed(task, 50)
        assert budgeted.left == 0 and budgeted.best is not None
        assert len(set(budgeted.best.placement.tolist())) == 1


def test_every_step_keeps_groups_and_devices_that_can_run_them() -> None:
    task = made_task(20, 2, devices=3)
    times = task.times_us.copy()
    times[2, 4] = np.inf
    groups = np.repeat(np.arange(10), 2)
    task = replace(task, colocation=groups, costs=replace(task.costs, times_us=times))
    around = Neighbourhood(task, np.random.default_rng(0))
    state = around.state(task.plan(np.arange(20) % 3), by_tail=True)
    for _ in range(30):
        for kind, move in around.moves.items():
            state = move(state)
            plan = around.plan(state)
            assert np.isfinite(times[plan.placement, np.arange(20)]).all(), kind
            assert (plan.placement[::2] == plan.placement[1::2]).all(), kind
        around.look(plan)


def test_half_of_the_draws_take_any_group_and_half_take_one_by_its_time() -> None:
    task = made_task(20, 0)
    group_us = np.bincount(task.colocation, np.where(np.isfinite(task.times_us), task.times_us, np.inf).min(0))
    chances = np.diff(Neighbourhood(task, np.random.default_rng(0))._group_sums, prepend=0.0)
    assert np.ptp(group_us) > 0
    np.testing.assert_allclose(chances, 0.5 / len(group_us) + 0.5 * group_us / group_us.sum(), atol=1e-9)


def test_a_group_of_the_busiest_device_goes_to_the_idlest_and_an_order_changes_within_the_program() -> None:
    task = replace(made_task(20, 0), colocation=np.arange(20))
    around = Neighbourhood(task, np.random.default_rng(0))
    state = around.state(task.plan(np.zeros(20, np.int64)), by_tail=True)
    moved = [around.moves["unload"](state).placement for _ in range(20)]
    assert all(1 <= np.count_nonzero(each) < 20 for each in moved)
    longest = task.times_us[np.isfinite(task.times_us)].sum()
    offsets = np.concatenate([around.moves["order"](state).offset_us for _ in range(50)])
    assert 0 < np.abs(offsets).max() < 2 * longest


def test_priorities_that_cease_to_follow_the_placement_give_the_same_plan() -> None:
    task = made_task(30, 1)
    around = Neighbourhood(task, np.random.default_rng(0))
    state = around.state(task.plan(np.arange(30) % 2), by_tail=True)
    changed = [each for each in (around.moves["order"](state) for _ in range(200)) if not each.by_tail]
    assert changed and all(around.plan(each).key == around.plan(state).key for each in changed)


@pytest.mark.parametrize("queue", [False, True])
def test_the_chain_of_waits_explains_the_makespan(queue: bool) -> None:
    """Each operation of the chain began when the next in it let it: at its end, or when its copy arrived."""
    task = made_task(30, 4)
    if queue:
        task = replace(task, costs=replace(task.costs, copies_queue=True, output_bytes=20 * task.costs.output_bytes))
    generator, kinds, queued = np.random.default_rng(0), set(), 0
    for _ in range(20):
        run = task.simulator.run(task.plan(generator.integers(2, size=30), generator.permutation(30)))
        copies = copies_of(task.costs, run)
        arrival = {(node, there): end for node, there, _, end in zip(*copies, strict=True)}
        waits = critical_path(task.costs, run, copies)
        assert run.end_us[waits.nodes[0]] == run.makespan_us and run.begin_us[waits.nodes[-1]] == 0
        for late, early, cause in zip(waits.nodes, waits.nodes[1:], waits.cause, strict=False):
            since = arrival[early, run.device[late]] if cause == CROSSING else run.end_us[early]
            assert run.begin_us[late] == pytest.approx(since)
            alone_us = 22.0 if queue else 3.0  # 2 us of latency, and the bytes at 100 a microsecond
            assert cause != CROSSING or since >= run.end_us[early] + alone_us - 1e-9
            queued += cause == CROSSING and since > run.end_us[early] + alone_us + 1e-9
            kinds.add(int(cause))
    assert {CROSSING, BUSY} <= kinds and bool(queued) == queue


def test_single_operations_become_narrow_where_all_cores_together_waste_time(task: Task) -> None:
    """Both cores together take 0.6 of the time of one: one alone is slower there, two side by side are quicker."""
    assert task.program is not None
    cores = {"cpu:0": (0,), "cpu:1": (1,), "cpu:0-1": (0, 1)}
    devices = tuple(Device(name, "cpu", each, len(each), "host", "test") for name, each in cores.items())
    alone = 500.0 * task.costs.computed
    overlapping = Task.of_profile(task.program, devices, np.stack([alone, alone, 0.6 * alone]))
    wide = single(overlapping, 2)
    budgeted = annealed(overlapping, 2_000, start=[wide])
    assert budgeted.best is not None and len(set(budgeted.best.placement.tolist())) == 3
    assert budgeted.best_ms < 0.99 * SimulatedObjective(overlapping)([wide])[0]


@pytest.mark.parametrize("nodes", [1_000, GIANT])
def test_in_the_loop_giant_tasks_are_annealed_from_a_list_schedule_too(nodes: int) -> None:
    task = generated_task(0, num_nodes=nodes, num_devices=2)
    reward = SearchReward(SimulatedObjective(task), 2)
    plans = Annealing(0)(task, reward, [single(task, 0)], no_progress)
    listed = heft(task)
    assert listed is not None and (listed.key in {plan.key for plan in plans}) == (nodes >= GIANT)
