"""CP-SAT equals brute force on tiny graphs, and its bounds are bounds."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from experiments.reproductions.public_problems.cost_graphs import CostGraph, read_cost_graph
from experiments.reproductions.public_problems.exact.cost_graphs import published_optimum
from experiments.reproductions.public_problems.exact.tasks import optimum, replayed_us
from experiments.reproductions.public_problems.published import PublishedObjective, published_bound, search_published
from gst.placement.task import Task
from tests.placement.placement_graphs import FIXTURE, cost_graph, made_task

pytest.importorskip("ortools", reason="needs OR-tools: pip install graph-segment-training[experiments]")


def best_of_all_us(task: Task) -> float:
    """Every placement of groups, every order: operations begin as soon as cores and values are there."""
    edges = task.costs.edges.T.tolist()
    orders = [
        order for order in permutations(range(task.num_nodes)) if all(order.index(a) < order.index(b) for a, b in edges)
    ]
    limit = next(iter(task.memories.values()))
    best = float("inf")
    for assignment in product(range(len(task.devices)), repeat=task.num_groups):
        placement = np.array(assignment)[task.colocation]
        taken = np.bincount(placement, task.resident_bytes, len(task.devices))
        if limit is not None and taken.max() > limit:
            continue
        for order in orders:
            priority = np.empty(task.num_nodes, np.int64)
            priority[list(order)] = -np.arange(task.num_nodes)
            best = min(best, replayed_us(task, task.plan(placement, priority)))
    return best


@pytest.mark.parametrize(
    ("devices", "limit", "shared_core", "seed"),
    [(2, None, False, 0), (2, 300, False, 1), (3, None, True, 2), (3, 200, False, 3), (1, None, False, 4)],
)
def test_the_optimum_is_the_best_of_all_plans(devices: int, limit: int | None, shared_core: bool, seed: int) -> None:
    task = made_task(5, seed, devices, limit, shared_core)
    found = optimum(task, time_limit_s=120)
    assert found.proved and found.plan is not None
    assert found.objective_ms == pytest.approx(best_of_all_us(task) / 1e3, abs=1e-5)
    assert found.bound_ms <= found.objective_ms + 1e-9
    assert replayed_us(task, found.plan) / 1e3 == pytest.approx(found.objective_ms)


@pytest.mark.parametrize(("devices", "seed"), [(2, 0), (2, 1), (3, 2), (3, 3)])
def test_copies_that_queue_count_in_the_bound(devices: int, seed: int) -> None:
    """The solver may send values in any order, so that its bound is at most the best plan of the simulator's order."""
    task = made_task(5, seed, devices)
    queueing = replace(task, costs=replace(task.costs, copies_queue=True))
    found, least = optimum(queueing, time_limit_s=120), best_of_all_us(queueing) / 1e3
    assert optimum(task, time_limit_s=120).bound_ms - 1e-5 <= found.bound_ms <= least + 1e-5
    assert found.proved and least <= found.objective_ms + 1e-5
    generator = np.random.default_rng(0)
    plans = [task.plan(generator.integers(devices, size=5), generator.permutation(5)) for _ in range(200)]
    assert queueing.simulator.makespans(plans).min() / 1e3 >= found.bound_ms - 1e-6


def test_groups_stay_together_and_nodes_stay_where_they_can_run() -> None:
    task = made_task(5, 7)
    times = task.times_us.copy()
    times[1, 2] = np.inf
    task = replace(task, colocation=np.array([0, 1, 1, 2, 3]), costs=replace(task.costs, times_us=times))
    found = optimum(task, time_limit_s=120, hint=task.plan(np.zeros(5, np.int64)))
    assert found.proved and found.plan is not None and (found.plan.placement[1:3] == 0).all()
    finite = replace(task, costs=replace(task.costs, times_us=np.where(np.isinf(times), 1e6, times)))
    assert found.objective_ms == pytest.approx(best_of_all_us(finite) / 1e3, abs=1e-5)


def test_no_simulation_is_quicker_than_the_bound() -> None:
    task = made_task(9, 5)
    found = optimum(task, time_limit_s=120)
    generator = np.random.default_rng(0)
    plans = [task.plan(generator.integers(2, size=9), generator.permutation(9)) for _ in range(200)]
    assert found.proved and task.simulator.makespans(plans).min() / 1e3 >= found.bound_ms - 1e-6


def test_what_fits_nowhere_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="no placement of made fits"):
        optimum(made_task(5, 0, limit=150), time_limit_s=120)


def best_home(graph: CostGraph) -> float:
    runtime, devices = PublishedObjective(graph), range(-1, graph.num_accelerators)
    return float(np.nanmin(runtime([runtime.plan(np.array(h)) for h in product(devices, repeat=graph.num_nodes)])))


@pytest.mark.parametrize("seed", range(4))
def test_the_published_optimum_is_bounded_and_at_most_rarely_missed(seed: int) -> None:
    graph = cost_graph(7, seed, accelerators=2, limit=300.0)
    want = best_home(graph)
    found = published_optimum(graph, time_limit_s=120, hint=search_published(graph, steps=5_000))
    assert found.bound_ms <= want + 1e-6 <= found.objective_ms + 2e-6
    contiguous = published_optimum(graph, time_limit_s=120, contiguous=True)
    assert contiguous.proved and contiguous.objective_ms >= want - 1e-6
    if found.proved:
        assert found.objective_ms == pytest.approx(want)


def test_contiguous_plans_of_a_chain_are_proved_to_be_the_best() -> None:
    graph = replace(
        cost_graph(6, 3, accelerators=2, limit=250.0, together=False),
        edges=np.stack([np.arange(5), np.arange(1, 6)]),
        transfer_ms=np.array([1.0, 4.0, 0.5, 2.0, 1.0, 0.0]),
    )  # fmt: skip
    found, contiguous = (published_optimum(graph, 20, contiguous=each) for each in (False, True))
    assert found.objective_ms == pytest.approx(best_home(graph))
    assert contiguous.proved and contiguous.objective_ms >= found.objective_ms - 1e-6
    assert contiguous.plan is not None
    assert PublishedObjective(graph)([contiguous.plan])[0] == pytest.approx(contiguous.objective_ms)


def test_an_operation_that_fits_no_accelerator_stays_on_the_cpu() -> None:
    graph = cost_graph(2, 0, accelerators=2, limit=100.0, together=False)
    graph = replace(graph, edges=np.array([[0], [1]]), sizes=np.array([10.0, 200.0]))
    found = published_optimum(graph, time_limit_s=20)
    assert found.proved and found.objective_ms == pytest.approx(best_home(graph))


@pytest.mark.slow
def test_a_published_graph_is_solved() -> None:
    graph = read_cost_graph(FIXTURE)
    hint = search_published(graph, steps=20_000)
    found = published_optimum(graph, time_limit_s=120, hint=hint)
    assert published_bound(graph) <= found.bound_ms + 1e-3
    assert found.objective_ms <= PublishedObjective(graph)([hint])[0]


def test_without_or_tools_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("ortools")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(ValueError, match=r"pip install graph-segment-training\[experiments\]") as caught:
        optimum(made_task(3, 0))
    assert "\n" not in str(caught.value)
