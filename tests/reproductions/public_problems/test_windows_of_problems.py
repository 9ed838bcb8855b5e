"""Annealing of windows of published and generated problems."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from experiments.reproductions.public_problems.annealing import refine
from experiments.reproductions.public_problems.baselines import baselines, topological
from experiments.reproductions.public_problems.generated import generated_problem
from experiments.reproductions.public_problems.placing import MANY, place_public
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.schedules import Schedule
from gst.placement.baselines.arrays import edge_lists

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


def test_no_time_is_no_harm() -> None:
    [problem] = problems(1)
    start = start_of(problem)
    assert refine(problem, start, seconds=1e-6)[0].makespan <= start.makespan
    for seconds in (0.0, -1.0):
        assert refine(problem, start, seconds=seconds) == (start, 0)


def test_seconds_are_kept_about() -> None:
    [problem] = problems(1, 2_000)
    refine(problem, start_of(problem), steps=5_000)  # compiles
    begun = time.process_time()
    plan, count = refine(problem, start_of(problem), seconds=0.5)
    assert count > 2_000 and plan.makespan < start_of(problem).makespan and time.process_time() - begun < 2.0


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
