"""Published latency: what it refuses, where searches begin, and that they find the best of all plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from experiments.reproductions.public_problems.published import PublishedObjective, orders, search_published
from gst.lowering.plan import Plan
from tests.placement.placement_graphs import cost_graph


def test_plans_of_other_graphs_and_graphs_with_a_backward_pass_are_refused() -> None:
    graph = cost_graph(8, 0)
    runtime = PublishedObjective(graph)
    with pytest.raises(ValueError, match="places 3 nodes, made has 8"):
        runtime([Plan(("cpu:0",), np.zeros(3, np.int64))])
    with pytest.raises(ValueError, match="uses accelerator:9"):
        runtime([Plan(("accelerator:9",), np.zeros(8, np.int64))])
    with pytest.raises(ValueError, match="backward pass"):
        PublishedObjective(replace(graph, backward=np.ones(8, bool)))
    with pytest.raises(ValueError, match="has no CPU"):
        PublishedObjective(replace(graph, num_cores=0))


def test_excess_is_what_the_fullest_accelerator_takes_too_much() -> None:
    graph = replace(cost_graph(8, 0, together=False), sizes=np.full(8, 100.0))
    runtime = PublishedObjective(graph)
    assert runtime.excess(runtime.plan(np.array([0] * 6 + [1] * 2))) == pytest.approx(0.5)
    assert runtime.excess(runtime.plan(np.array([0] * 4 + [1] * 4))) == 0


@pytest.mark.parametrize("seed", range(4))
def test_starts_are_admitted_where_nothing_is_colocated_and_orders_are_topological(seed: int) -> None:
    graph = cost_graph(20, seed, together=False)
    runtime = PublishedObjective(graph)
    took = runtime(PublishedObjective(graph).starts())
    assert np.isfinite(took).all()
    for order in orders(graph):
        position = np.argsort(order)
        assert sorted(order) == list(range(20)) and (position[graph.edges[0]] < position[graph.edges[1]]).all()


def test_cuts_of_a_chain_are_its_best_contiguous_plan() -> None:
    """Against all plans of a chain of six in which every accelerator has one stretch."""
    graph = replace(
        cost_graph(6, 3, accelerators=2, limit=250.0, together=False),
        edges=np.stack([np.arange(5), np.arange(1, 6)]), transfer_ms=np.array([1.0, 4.0, 0.5, 2.0, 1.5, 0.0]),
    )  # fmt: skip
    runtime = PublishedObjective(graph)
    stretches = [
        home for home in product((-1, 0, 1), repeat=6)
        if all(np.ptp(at) + 1 == len(at) for a in range(2) if len(at := np.flatnonzero(np.array(home) == a)))
    ]  # fmt: skip
    every = runtime([runtime.plan(np.array(home)) for home in stretches])
    assert np.nanmin(runtime(PublishedObjective(graph).starts())) == pytest.approx(np.nanmin(every))


@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_best_of_all_plans_of_small_graphs(seed: int) -> None:
    graph = cost_graph(7, seed, accelerators=2)
    runtime = PublishedObjective(graph)
    every = runtime([runtime.plan(np.array(home)) for home in product((-1, 0, 1), repeat=7)])
    best = search_published(graph, seed=0, steps=20_000)
    assert runtime([best])[0] == pytest.approx(np.nanmin(every))
