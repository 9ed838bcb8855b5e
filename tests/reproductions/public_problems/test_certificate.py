"""No plan beats a certificate's bound, and on graphs so small that all plans can be tried it says what the least is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.reproductions.public_problems.certificate import branched_bound_us, certify, certify_published, words
from experiments.reproductions.public_problems.cost_graphs import read_cost_graph
from experiments.reproductions.public_problems.exact.tasks import optimum
from experiments.reproductions.public_problems.published import search_published
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import portfolio, single
from gst.placement.machines import machine
from gst.placement.task import Task
from tests.placement.placement_graphs import FIXTURE
from tests.placement.random_tasks import MANY, NO_OVERHEAD, apart, core_sets, made_up, random_task
from tests.programs.small import small_program
from tests.reproductions.public_problems.brute_force import least_us
from tests.reproductions.public_problems.test_exact import best_of_all_us

pytest.importorskip("ortools", reason="needs OR-tools: pip install graph-segment-training[experiments]")
ROUNDING = 1 + 1e-9
NANOSECOND = 1e-3


def tiny(seed: int) -> Task:
    """2 to 8 operations on 2 or 3 devices, one in three with memory for half of them, one in five on sets of cores."""
    nodes, count = 2 + seed % 7, 2 + seed % 2
    if seed % 5 == 0:
        generator = np.random.default_rng(seed)
        alone = generator.lognormal(2, 1, nodes)
        times = np.stack([alone, alone, alone / generator.uniform(1.0, 2.0, nodes)])
        return made_up(random_task(seed, nodes).costs.edges, times, core_sets())
    limit = MANY * (nodes + 1) // 2 if seed % 3 == 0 else None
    task = random_task(seed, nodes, apart(count, limit), grouped=seed % 2 == 0)
    if seed % 4 == 0:  # devices that may be exchanged for each other
        task = replace(task, costs=replace(task.costs, times_us=task.times_us[[0]].repeat(count, 0)))
    return replace(task, contention=NO_OVERHEAD)


def check_bounds(seed: int, exact: bool = True) -> None:
    """What is true of the bounds of one graph, beside brute force; CP-SAT's take .1 s."""
    task = tiny(seed)
    least, chains = least_us(task), lower_bound_us(task)
    branched = [branched_bound_us(task, 0.0, most, 100.0) for most in (np.inf, least)]
    assert all(each.complete for each in branched), seed
    assert max(chains, branched[0].bound, branched[1].bound) <= least * ROUNDING, seed
    assert branched[1].bound >= branched[0].bound / ROUNDING, "told of a plan, it proves no less"
    if not exact:
        return
    if np.isinf(least):
        with pytest.raises(ValueError, match="no placement of random fits"):
            optimum(task, 10.0)
        return
    solved = optimum(task, 10.0)
    assert solved.proved and abs(1e3 * solved.bound_ms - least) <= NANOSECOND * 3 * task.num_nodes, seed
    assert solved.plan is not None
    certificate = certify(task, solved.plan, seconds=10.0)
    assert certificate.bound <= 1e-3 * least * ROUNDING, seed
    assert certificate.bound >= 1e-3 * (least - NANOSECOND * 3 * task.num_nodes), seed


@pytest.mark.parametrize("seed", range(7))
def test_brute_force_is_right(seed: int) -> None:
    """All permutations of priorities, one after the other."""
    task = random_task(seed, 4, apart(2), grouped=seed % 2 == 0)
    task = replace(task, costs=replace(task.costs, times_us=task.times_us[[0]].repeat(2, 0)), contention=NO_OVERHEAD)
    assert least_us(task) == pytest.approx(best_of_all_us(task))


def test_bounds_of_a_program_hold_for_plans_that_take_its_colocation_groups_apart() -> None:
    """Here all operations are one group, and the best plan has them on two devices."""
    whole = machine("cores:2").task(small_program("inception"))
    task = replace(whole, colocation=np.zeros(whole.num_nodes, np.int64), contention=NO_OVERHEAD)
    plans = portfolio(task)
    times = {name: task.simulator.run(plan).makespan_us for name, plan in plans.items()}
    best = min(times, key=times.__getitem__)
    assert len(set(plans[best].placement[task.costs.computed].tolist())) > 1, "else it says nothing"
    bounds = [lower_bound_us(task), branched_bound_us(task, 0.0, np.inf, 2.0).bound]
    bounds.append(1e3 * optimum(task, 5.0, plans[best], most_us=times[best]).bound_ms)
    assert max(bounds) <= times[best] * ROUNDING


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_bounds_of_tiny_graphs_are_below_the_least_of_all_plans(first: int) -> None:
    for seed in range(first, first + 10):
        check_bounds(seed)


@pytest.mark.slow
def test_bounds_of_hundreds_of_tiny_graphs_are_below_the_least_of_all_plans() -> None:
    for seed in range(300):
        check_bounds(seed, exact=seed % 20 == 1)


def test_a_certificate_counts_transfers_memory_and_delays() -> None:
    """Two producers of 5 that a third reads, 2 us of transfer: together 11, apart 5 + 2 + 1; memory for two of them."""
    edges, times = np.array([[0, 1], [2, 2]]), np.array([[5.0, 5.0, 1.0]] * 2)
    task = made_up(edges, times, apart(2), latency_us=2.0)
    apart_plan = task.plan(np.array([0, 1, 0]))
    assert certify(task, apart_plan).to_dict() | {"seconds": 0} == {
        "lower_bound": 8e-3, "bound_by": "chains and work", "plan": 8e-3, "unit": "ms", "gap": 0.0, "proved": True,
        "seconds": 0, "peak_bytes": {"cuda:0": 0, "cuda:1": 0}, "limit_bytes": {"cuda:0": None, "cuda:1": None},
        "memory_by": "simulator", "is_fused": False,
    }  # fmt: skip
    assert certify(task, replace(apart_plan, fusion=np.array([0, -1, 0]))).is_fused
    assert not certify(task, replace(apart_plan, fusion=np.full(3, -1))).is_fused
    alone = certify(task, single(task, 0), peak_bytes={"cuda:0": 7})
    assert alone.gap == pytest.approx(11 / 8 - 1) and not alone.proved and alone.memory_by == "checker"
    delayed = replace(task, contention=NO_OVERHEAD._replace(switch_us=0.5, hand_over_us=1.0, wake_us=9.0))
    assert certify(delayed, apart_plan).bound == pytest.approx(8e-3 + 2 * 0.5e-3)
    full = made_up(
        np.array([[0, 1, 2], [1, 2, 3]]), np.ones((2, 4)), apart(2, 3 * MANY), latency_us=50.0,
        resident_bytes=np.full(4, MANY),
    )  # fmt: skip
    crossing = certify(full, full.plan(np.array([0, 0, 0, 1])), seconds=1.0)
    assert crossing.proved and crossing.bound == pytest.approx(54e-3), "four do not fit, so that one value moves"
    overfull = certify(full, full.plan(np.zeros(4, np.int64)), seconds=1.0)
    assert overfull.bound == pytest.approx(4e-3) and overfull.bound_by == "chains and work"


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_of_a_larger_graph_beats_the_certificate(seed: int) -> None:
    task = random_task(seed, nodes=60)
    generator, able = np.random.default_rng(seed), np.isfinite(task.times_us)
    plans = [task.plan(np.array([generator.choice(np.flatnonzero(column)) for column in able.T])) for _ in range(30)]
    bound = certify(task, plans[0], seconds=0.5).bound
    assert lower_bound_us(task) / ROUNDING <= 1e3 * bound
    assert 1e3 * bound <= task.simulator.makespans(plans).min() * ROUNDING


def test_a_certificate_by_the_published_latency_knows_transfers_and_memory() -> None:
    graph = read_cost_graph(FIXTURE)
    plan = search_published(graph, steps=20_000)
    path, exact = (certify_published(graph, plan, seconds) for seconds in (0.0, 20.0))
    assert (path.bound_by, exact.bound_by) == ("longest path", "CP-SAT") and exact.bound > 1.05 * path.bound
    assert exact.bound <= exact.plan_time and max(exact.peak_bytes.values()) <= graph.memory_limit
    assert exact.memory_by == "file" and "accelerator" in words(exact.to_dict())
