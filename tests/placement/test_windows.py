"""Laws of annealing windows of a schedule."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxtyping import Int64

from experiments.reproductions.public_problems.baselines import baselines, topological
from experiments.reproductions.public_problems.generated import generated_problem
from experiments.reproductions.public_problems.placing import MANY, place_public
from experiments.reproductions.public_problems.problem import Problem
from gst.placement.baselines.arrays import edge_lists
from gst.placement.search import windows
from experiments.reproductions.public_problems.schedules import Schedule
from gst.placement.search.windows import MOVES, SIZE, Border, cut_out, refine, run_window, sweep, tails

SHAPES = ("layers", "inception", "transformer", "chains", "stencil")


def problems(number: int, nodes: int = 400, **wanted: bool) -> list[Problem]:
    """The first so many generated problems that have colocation groups or limits of memory, as wanted."""
    kept: list[Problem] = []
    for seed in range(500):
        problem = generated_problem(seed, nodes, 4, SHAPES[seed % len(SHAPES)])
        has_groups, has_limits = len(problem.arrays.sizes) < nodes, bool(np.isfinite(problem.arrays.limits).any())
        has = {"groups": has_groups, "limits": has_limits, "first_come": problem.graph.first_come}
        if all(has[name] == want for name, want in ({"first_come": False} | wanted).items()):
            kept.append(problem)
        if len(kept) == number:
            return kept
    raise AssertionError("no such problems")


def start_of(problem: Problem) -> Schedule:
    plans = [plan for plan in baselines(problem).values() if not plan.reason]
    return sorted(plans, key=lambda plan: plan.makespan)[len(plans) // 2]


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("limits", [True, False])
def test_a_plan_is_admitted_and_far_better_than_what_it_begins_with(groups: bool, limits: bool) -> None:
    ratios = []
    for problem in problems(4, groups=groups, limits=limits):
        start = start_of(problem)
        plan, count = refine(problem, start, steps=40_000)
        assert not plan.reason and sorted(plan.order) == list(range(problem.num_nodes)) and 30_000 < count <= 40_000
        place = np.argsort(plan.order)
        assert (place[problem.graph.edges[0]] < place[problem.graph.edges[1]]).all()
        ratios.append(plan.makespan / start.makespan)
    assert max(ratios) <= 1 and np.mean(ratios) < 0.93


@pytest.mark.parametrize("steps", [0, 1, 300])
@pytest.mark.parametrize("nodes", [40, 400])
def test_few_steps_are_no_harm(nodes: int, steps: int) -> None:
    for problem in problems(3, nodes):
        start = start_of(problem)
        plan, count = refine(problem, start, steps=steps)
        assert plan.makespan <= start.makespan and count <= steps


def test_no_time_is_no_harm() -> None:
    [problem] = problems(1)
    start = start_of(problem)
    assert refine(problem, start, seconds=1e-6)[0].makespan <= start.makespan
    for seconds in (0.0, -1.0):
        assert refine(problem, start, seconds=seconds) == (start, 0)


@pytest.mark.parametrize("seconds", [0.5, 1.5, 20.0])  # a whole sweep takes one second
def test_descents_cool_in_their_time_and_say_how_far_they_are(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    [problem] = problems(1)
    start = start_of(problem)
    now, temperatures, shares = [0.0], [], []

    def slow_sweep(*arguments: Any) -> int:
        steps, temperature = arguments[5:7]
        now[0] += steps / (MOVES * SIZE)
        temperatures.append(temperature)
        return int(steps * problem.num_nodes // SIZE)

    monkeypatch.setattr(windows, "sweep", slow_sweep)
    monkeypatch.setattr(windows, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    refine(problem, start, seconds, progress=lambda _, done, whole: shares.append(done / whole))
    assert now[0] <= 1.2 * seconds
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1, abs=0.15)
    assert temperatures[-1] < 0.6 * temperatures[0]
    if seconds == 20:
        assert temperatures[-1] < 0.05 * temperatures[0] and len({*shares}) > 10


def test_steps_and_seed_decide_the_plan() -> None:
    [problem] = problems(1, groups=True, limits=True)
    start = start_of(problem)
    first, again, other = (refine(problem, start, steps=20_000, seed=seed)[0] for seed in (3, 3, 4))
    assert (first.home == again.home).all() and (first.order == again.order).all()
    assert (first.order != other.order).any()


@pytest.mark.parametrize("offset", [1, 17, SIZE])
def test_a_sweep_knows_when_everything_runs(offset: int) -> None:
    for problem in problems(6):
        start = start_of(problem)
        home, order, begin, end = start.home.copy(), start.order.copy(), start.begin.copy(), start.end.copy()
        temperature, state = 0.5 * problem.mean_times.mean(), np.array([1], np.uint64)
        assert sweep(home, order, begin, end, offset, 200, temperature, state, problem.arrays) > 0
        plan = Schedule(problem, home, order)
        assert not plan.reason and (home != start.home).any()
        np.testing.assert_array_equal(begin, plan.begin)
        np.testing.assert_array_equal(end, plan.end)


def test_the_longest_way_through_a_window_is_the_makespan_of_the_whole() -> None:
    """A way that passes by a window stays as it was. So where a change makes the longest way through the window as long
    as the schedule was, or longer, that way is the makespan."""
    generator, compared = np.random.default_rng(0), 0
    for problem in problems(12, 150, groups=False, limits=False):
        start, arrays, scale = start_of(problem), problem.arrays, problem.graph.scale
        tail, rests = tails(start.home, start.order, 40, arrays)
        np.testing.assert_allclose((start.begin + tail).max(), start.makespan * scale)
        span = start.order[40 : 40 + SIZE]
        scratch = np.full(150, -1), np.full(len(arrays.sizes), -1)
        window, arrival, way = cut_out(span, start.home, start.end, tail, *scratch, arrays)
        assert all((each == -1).all() for each in scratch)
        free = np.zeros(len(problem.devices))
        np.maximum.at(free, start.home[start.order[:40]], start.end[start.order[:40]])
        for _ in range(20):
            changed = start.home.copy()
            changed[generator.choice(span, 3)] = generator.integers(len(problem.devices))
            new = np.argsort(generator.random(SIZE)) if generator.random() < 0.2 else np.arange(SIZE)
            inside = topological_of(window.producer_indptr, window.producers, new)
            buffers = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE, np.int64), np.zeros(SIZE)
            longest, last = run_window(
                changed[span], inside, 0, np.inf, *buffers, window, Border(free, arrival, rests[1], way)
            )
            order = start.order.copy()
            order[40 : 40 + SIZE] = span[inside]
            makespan = Schedule(problem, changed, order).makespan * scale
            assert last == SIZE and longest <= makespan * (1 + 1e-9)
            if longest >= start.makespan * scale:
                compared += 1
                np.testing.assert_allclose(longest, makespan)
    assert compared > 50


def topological_of(
    indptr: Int64[np.ndarray, " nodes_plus_one"],
    producers: Int64[np.ndarray, " edges"],
    wish: Int64[np.ndarray, " nodes"],
) -> Int64[np.ndarray, " nodes"]:
    """Nodes in the order of a wish, producers before their consumers."""
    placed: dict[int, None] = {}

    def place(node: int) -> None:
        if node in placed:
            return
        for producer in producers[indptr[node] : indptr[node + 1]].tolist():
            place(producer)
        placed[node] = None

    for node in wish.tolist():
        place(node)
    return np.array(list(placed), np.int64)


def test_the_numbers_of_operations_do_not_matter() -> None:
    for problem in problems(3, 300):
        times = np.rint(64 * problem.arrays.times) + 1  # sums of whole numbers are exact in any order
        problem = replace(problem, arrays=problem.arrays._replace(times=times))
        start = Schedule(problem, start_of(problem).home, start_of(problem).order)
        order = topological(problem, np.random.default_rng(5).random(300))  # new number -> old number
        number = np.argsort(order)
        arrays, edges = problem.arrays, number[problem.graph.edges]
        other = replace(
            problem,
            graph=replace(problem.graph, edges=edges, groups=problem.graph.groups[order]),
            arrays=arrays._replace(
                **edge_lists(edges, 300)._asdict(), times=np.ascontiguousarray(times[:, order]),
                groups=arrays.groups[order], members=number[arrays.members],
            ),
        )  # fmt: skip
        renumbered = Schedule(other, start.home[order], number[start.order])
        assert renumbered.makespan == start.makespan
        plan, again = refine(problem, start, steps=20_000)[0], refine(other, renumbered, steps=20_000)[0]
        np.testing.assert_array_equal(again.order, number[plan.order])
        assert again.makespan == plan.makespan < start.makespan


def test_gst_place_refines_windows_of_large_problems_that_have_an_order() -> None:
    small, large = problems(1, MANY - 1)[0], problems(1, MANY)[0]
    [served] = problems(1, MANY, first_come=True)
    results = [place_public(problem, seconds=1.0)[0] for problem in (small, large, served)]
    assert ["windows" in result["plans"] for result in results] == [False, True, False]
    plans = results[1]["plans"]
    before = min(
        plan["makespan"] for name, plan in plans.items() if plan["makespan"] and name not in ("windows", "annealing")
    )
    assert results[1]["objective"] <= plans["annealing"]["makespan"] <= plans["windows"]["makespan"] < before
    with pytest.raises(ValueError, match="first come first served"):
        refine(served, Schedule(served, np.zeros(MANY, np.int64)))
