"""Laws of annealing windows of a schedule, and of the annealing of giant tasks by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jaxtyping import Int64

from gst.lowering.plan import Plan
from gst.placement.baselines.arrays import Scheduled, moved
from gst.placement.baselines.list_schedules import etf, heft
from gst.placement.machines import generated_task, machine
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search import annealing, windows
from gst.placement.search.annealing import ComputedOperations, anneal
from gst.placement.search.windows import SIZE, Border, Run, Schedule, refine, run_window, schedule, sweep, tails
from gst.placement.task import Task
from gst.programs import traced
from tests.choices import with_rest

CORE_SETS = (9, 10, 18)  # seeds of 200 or more nodes on cores and the set of all of them


def made(seed: int, nodes: int = 400, groups: bool = False, limits: bool = False) -> Task:
    """A generated task on three accelerators, or on core sets."""
    task = generated_task(seed, nodes, None if seed in CORE_SETS else 3)
    if groups:
        task = replace(task, colocation=np.arange(task.num_nodes) // 3)
    if limits:
        most = int(
            0.5 * sum(task.memory_use(task.simulator.run(task.plan(np.zeros(task.num_nodes, np.int64)))).values())
        )
        devices = tuple(replace(device, memory_limit=most) for device in task.devices)
        task = replace(task, costs=replace(task.costs, devices=devices))
    return task


def begun(task: Task) -> tuple[ComputedOperations, Schedule]:
    """The computed operations of a task, and the schedule of HEFT."""
    operations, plan = ComputedOperations(task), heft(task)
    assert plan is not None
    number = np.full(task.num_nodes, -1)
    number[operations.nodes] = np.arange(len(operations.nodes))
    order = number[task.simulator.run(plan).order]
    return operations, schedule(operations.what, plan.placement[operations.nodes], order[order >= 0])


def edges_of(what: Scheduled) -> list[tuple[int, int, int]]:
    """Producer, consumer and number of what moves, of each edge."""
    arrays = what.arrays
    return [
        (int(arrays.producers[where]), node, int(arrays.in_edges[where]))
        for node in range(len(what.computed))
        for where in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1])
    ]


def slow_schedule(
    what: Scheduled, home: Int64[np.ndarray, " nodes"], order: Int64[np.ndarray, " nodes"]
) -> list[float]:
    """End of each operation, by dictionaries."""
    free = dict.fromkeys(range(what.use.shape[1]), 0.0)
    end: dict[int, float] = {}
    read: dict[int, list[tuple[int, int]]] = {}
    for producer, consumer, edge in edges_of(what):
        read.setdefault(consumer, []).append((producer, edge))
    for node in order.tolist():
        cores = np.flatnonzero(what.use[home[node]]).tolist()
        there = [end[p] + moved(edge, home[p], home[node], what.arrays) for p, edge in read.get(node, [])]
        end[node] = max([*there, *(free[core] for core in cores)]) + float(what.arrays.times[home[node], node])
        free |= dict.fromkeys(cores, end[node])
    return [end[node] for node in range(len(home))]


def check_admitted(what: Scheduled, plan: Schedule) -> None:
    arrays, place = what.arrays, np.argsort(plan.order)
    assert sorted(plan.order.tolist()) == list(range(len(plan.home)))
    assert all(place[producer] < place[consumer] for producer, consumer, _ in edges_of(what))
    assert np.isfinite(arrays.times[plan.home, np.arange(len(plan.home))]).all()
    leader = np.unique(arrays.groups, return_index=True)[1]
    assert (plan.home == plan.home[leader][arrays.groups]).all()
    used = np.bincount(arrays.memory[plan.home[leader]], arrays.sizes, len(arrays.limits))
    assert (used <= arrays.limits * (1 + 1e-9)).all()
    np.testing.assert_array_equal(plan.end, slow_schedule(what, plan.home, plan.order))


@pytest.mark.parametrize(
    ("groups", "limits"),
    with_rest([(True, True), (False, False), (True, False), (False, True)], [(True, True), (False, False)]),
)
def test_a_schedule_is_admitted_and_better_than_the_one_it_begins_with(groups: bool, limits: bool) -> None:
    ratios = []
    for seed in (1, 2, 4):
        operations, start = begun(made(seed, groups=groups, limits=limits))
        plan, count = refine(operations.what, start, 40_000)
        check_admitted(operations.what, plan)
        assert 30_000 < count <= 40_000
        ratios.append(plan.makespan / start.makespan)
    assert max(ratios) <= 1 and np.mean(ratios) < 0.98


@pytest.mark.parametrize("seed", with_rest(CORE_SETS, CORE_SETS[:1]))
def test_devices_that_share_cores_never_run_at_once(seed: int) -> None:
    operations, start = begun(made(seed))
    assert (operations.what.use.sum(1) > 1).any()
    plan, _ = refine(operations.what, start, 40_000)
    check_admitted(operations.what, plan)
    assert plan.makespan <= start.makespan


def test_steps_and_seed_decide_the_schedule() -> None:
    operations, start = begun(made(2, groups=True, limits=True))
    first, again, other = (refine(operations.what, start, 20_000, seed)[0] for seed in (3, 3, 4))
    assert (first.home == again.home).all() and (first.order == again.order).all()
    assert (first.order != other.order).any()


def test_descents_cool_and_report_their_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    operations, start = begun(made(1))
    temperatures, shares = [], []

    def quick_sweep(*arguments: Any) -> int:
        temperatures.append(arguments[6])
        return int(arguments[5] * len(start.home) // SIZE)

    monkeypatch.setattr(windows, "sweep", quick_sweep)
    _, count = refine(operations.what, start, 50_000, progress=lambda _, done, whole: shares.append(done / whole))
    assert count <= 50_000 and shares == sorted(shares) and shares[-1] == pytest.approx(1, abs=0.05)
    assert temperatures[-1] < 0.05 * max(temperatures) and len({*shares}) > 10


@pytest.mark.parametrize("offset", [1, SIZE])
def test_a_sweep_knows_when_everything_runs(offset: int) -> None:
    for seed in (1, *CORE_SETS[:1]):
        operations, start = begun(made(seed))
        what, home, order = operations.what, start.home.copy(), start.order.copy()
        begin, end, state = start.begin.copy(), start.end.copy(), np.array([1], np.uint64)
        assert sweep(home, order, begin, end, offset, 200, 0.5 * what.arrays.times.mean(), state, what) > 0
        plan = schedule(what, home, order)
        assert (order != start.order).any()
        np.testing.assert_array_equal(begin, plan.begin)
        np.testing.assert_array_equal(end, plan.end)


def test_the_longest_path_through_a_window_is_the_makespan_of_the_whole() -> None:
    """A path that passes by a window stays as it was. So where a change makes the longest path through the window as
    long as the schedule was, or longer, that path is the makespan."""
    generator, compared, low, high = np.random.default_rng(0), 0, 40, 40 + SIZE
    for seed in (1, 2, 3, 4, 5, *CORE_SETS):
        operations, start = begun(made(seed, 200))
        what, nodes = operations.what, len(start.home)
        arrays, devices, cores = what.arrays, len(what.use), what.use.shape[1]
        tail, rests = tails(start.home, start.order, low, what)
        np.testing.assert_allclose((start.begin + tail).max(), start.makespan)
        span, place = start.order[low:high], np.argsort(start.order)
        way, free = np.zeros((nodes, devices)), np.zeros(cores)
        for producer, consumer, edge in edges_of(what):
            for device in range(devices if place[producer] < high <= place[consumer] else 0):
                through = moved(edge, device, start.home[consumer], arrays) + tail[consumer]
                way[producer, device] = max(way[producer, device], through)
        for node in start.order[:low].tolist():
            free[what.use[start.home[node]]] = start.end[node]
        for _ in range(20):
            changed = start.home.copy()
            changed[generator.choice(span, 3)] = generator.integers(devices)
            run = Run(start.begin.copy(), start.end.copy(), np.full(nodes, -1), np.zeros(nodes))
            border = Border(free, rests[1], way)
            longest, last = run_window(changed, start.order, low, low, high, np.inf, run, what, border)
            makespan = schedule(what, changed, start.order).makespan
            assert last == high and longest <= makespan * (1 + 1e-9)
            if longest >= start.makespan:
                compared += 1
                np.testing.assert_allclose(longest, makespan)
    assert compared > 30


@pytest.fixture(scope="module")
def giant() -> tuple[Task, list[Plan]]:
    """A task of 4,000 operations, and its list schedules."""
    task = generated_task(1, num_nodes=4_000, num_devices=4)
    plans = [plan for plan in (heft(task), etf(task)) if plan is not None]
    assert task.num_nodes >= 4_000 and len(plans) == 2
    return task, plans


def test_windows_leave_the_plan_alone_where_the_objective_finds_them_slower(giant: tuple[Task, list[Plan]]) -> None:
    """An objective that likes the start alone: no plan of windows takes its place."""
    task, starts = giant
    liked = starts[0].placement

    def dislikes(plans: Sequence[Plan]) -> np.ndarray:
        return np.array([1.0 + float((plan.placement != liked).sum()) for plan in plans])

    objective = Budgeted(dislikes, 60)
    anneal(task, objective, start=starts)
    assert objective.best is not None and (objective.best.placement == liked).all() and objective.best_ms == 1.0


def test_whole_plans_get_what_windows_would_waste_where_links_queue(
    giant: tuple[Task, list[Plan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows know of no queues of links, so their plans are far slower there than they think."""
    queued = machine("gpus:4").task(traced("rnnlm", kind="cuda"))
    assert queued.num_nodes >= annealing.MANY and queued.costs.copies_queue

    def annealed(task: Task, starts: Sequence[Plan] = (), budget: int = 600) -> Budgeted:
        objective = Budgeted(SimulatedObjective(task), budget)
        anneal(task, objective, start=starts)
        return objective

    asked = annealed(queued)
    assert asked.num_asked > 500 and annealed(*giant, budget=100).num_asked < 50, "windows had the rest"
    monkeypatch.setattr(annealing, "MISLED", np.inf)
    assert asked.best_ms < 0.99 * annealed(queued).best_ms


def test_giant_tasks_of_one_device_or_of_tight_memories_are_annealed_too() -> None:
    alone = generated_task(1, num_nodes=1_200, num_devices=1)
    for task, starts in ((alone, []), (made(1, 1_200, limits=True), [heft(made(1, 1_200, limits=True))])):
        objective = Budgeted(SimulatedObjective(task), 40)
        anneal(task, objective, start=[plan for plan in starts if plan is not None])
        assert objective.best is not None and np.isfinite(objective.best_ms)
        assert SimulatedObjective(task).excess(objective.best) == 0
