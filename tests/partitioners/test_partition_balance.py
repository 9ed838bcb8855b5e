from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, grid, unhurried, weights

from partitioners import largest_part, num_parts_for, quality, repair, symmetric_csr
from partitioners.balance import Problem, _overflow, heaviest_first, unplaceable


@pytest.mark.parametrize("weighted", [False, True])
@unhurried
@given(graph=graphs(), data=st.data())
def test_any_assignment_is_repaired(weighted: bool, graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    node_weights = data.draw(weights(num_nodes)) if weighted else None
    largest = largest_part(num_nodes, num_parts, data.draw(st.sampled_from([0.0, 0.1, 1.0])), node_weights)
    part_of_each = st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes)
    given_parts = np.array(data.draw(part_of_each))
    before, csr = given_parts.copy(), symmetric_csr(edges, num_nodes)
    parts = repair(given_parts, csr, num_parts, largest, node_weights)
    measured = quality(edges, parts, num_parts, node_weights)
    assert measured.smallest >= 1 and measured.heaviest <= largest
    np.testing.assert_array_equal(given_parts, before)
    np.testing.assert_array_equal(repair(parts, csr, num_parts, largest, node_weights), parts)


@unhurried
@given(graphs(), st.integers(2, 4))
def test_the_kernel_stays_within_its_arrays(graph: tuple[np.ndarray, int], num_parts: int) -> None:
    """Machine code does not check bounds; the same kernel, interpreted, does, and must do the same."""
    edges, num_nodes = graph
    csr = symmetric_csr(edges, num_nodes)
    skewed = np.sort(np.arange(num_nodes) % (num_parts + 4) % num_parts * (np.arange(num_nodes) % 2))
    largest = -(-num_nodes // num_parts)
    ones, results = np.ones(num_nodes, np.int64), []
    for kernel in (_overflow, _overflow.py_func):
        parts, sizes = skewed.copy(), np.bincount(skewed, minlength=num_parts)
        kernel(csr, ones, parts, sizes, largest)
        results.append(parts)
    np.testing.assert_array_equal(*results)


def test_a_node_that_just_fits_is_moved() -> None:
    path = np.array([[0, 1, 2], [1, 2, 3]])
    parts, sizes = np.array([0, 0, 0, 1]), np.array([3, 1])
    _overflow(symmetric_csr(path, 4), np.ones(4, np.int64), parts, sizes, 2)
    assert parts.tolist() == [0, 0, 1, 1] and sizes.tolist() == [2, 2]


def test_sound_parts_stay_as_they_are_and_others_win_back_edges() -> None:
    side = 30
    problem = Problem(grid(side), side * side, 4, tolerance=0.1)
    sound = np.random.default_rng(0).permutation(np.arange(side * side) % 4)
    assert problem.refined(sound) is sound
    one_too_heavy = np.where(np.arange(side * side) < side * side // 2, 0, sound)
    cuts = [quality(problem.edges, each(one_too_heavy)).edge_cut for each in (problem.balanced, problem.refined)]
    assert cuts[1] < 0.8 * cuts[0]


def test_repair_keeps_most_of_the_cut_of_a_grid() -> None:
    """One half of a grid grew by half: the repaired cut stays near one side of the grid."""
    side = 40
    edges = grid(side)
    parts = (np.arange(side * side) >= 30 * side).astype(np.int64)
    largest = largest_part(side * side, 2, 0.0)
    repaired = repair(parts, symmetric_csr(edges, side * side), 2, largest)
    assert quality(edges, repaired).edge_cut <= 1.2 * side / edges.shape[1]


def test_a_hub_does_not_make_repair_quadratic() -> None:
    leaves = 200_000
    star = np.stack([np.zeros(leaves, np.int64), np.arange(1, leaves + 1)])
    parts = np.zeros(leaves + 1, np.int64)
    measured = quality(star, repair(parts, symmetric_csr(star, leaves + 1), 50, 4001), 50)
    assert (measured.smallest >= 1) and measured.largest <= 4001


@given(st.integers(1, 500), st.integers(1, 60), st.sampled_from([0.0, 0.1, 0.5]))
def test_num_parts_for_is_the_fewest_that_fit(num_nodes: int, max_nodes: int, tolerance: float) -> None:
    fewest = num_parts_for(num_nodes, max_nodes, tolerance)
    assert largest_part(num_nodes, fewest, tolerance) <= max_nodes
    assert all(largest_part(num_nodes, fewer, tolerance) > max_nodes for fewer in range(1, fewest))


@pytest.mark.parametrize(
    ("num_nodes", "num_parts", "tolerance", "wanted"),
    [(100, 10, 0.1, 11), (100, 1, 0.1, 100), (10, 3, 0.0, 4), (10, 10, 0.1, 1), (10, 9, 5.0, 2)],
)
def test_largest_part_by_hand(num_nodes: int, num_parts: int, tolerance: float, wanted: int) -> None:
    assert largest_part(num_nodes, num_parts, tolerance) == wanted


@unhurried
@given(st.integers(1, 40).flatmap(weights), st.data())
def test_largest_weight_is_reached_by_placing_the_heaviest_first(node_weights: np.ndarray, data: st.DataObject) -> None:
    num_nodes = len(node_weights)
    num_parts, tolerance = data.draw(st.integers(1, num_nodes)), data.draw(st.sampled_from([0.0, 0.1, 9.0]))
    sizes = [0] * num_parts
    for weight in sorted(node_weights.tolist(), reverse=True):
        sizes[sizes.index(min(sizes))] += weight
    parts = heaviest_first(node_weights, num_parts)
    assert sorted(np.bincount(parts, node_weights, num_parts).tolist()) == sorted(sizes) and min(sizes) > 0

    largest = largest_part(num_nodes, num_parts, tolerance, node_weights)
    with_tolerance = math.ceil(node_weights.sum() * (1 + tolerance) / num_parts - 1e-9)
    others_at_least = sum(sorted(node_weights.tolist())[: num_parts - 1])
    assert largest == min(max(max(sizes), with_tolerance), node_weights.sum() - others_at_least)
    assert largest >= node_weights.max()
    ones = np.ones(num_nodes, np.int64)
    assert largest_part(num_nodes, num_parts, tolerance, ones) == largest_part(num_nodes, num_parts, tolerance)


def test_a_node_finds_no_room_where_the_lightest_part_is_as_heavy_as_an_even_one() -> None:
    weights = np.array([3, 3, 3, 1])  # without the node: (10 - 3) // 3 = 2 on the lightest part, or (10 - 1) // 3 = 3
    assert unplaceable(weights, 3, 5).tolist() == [False, False, False, False]
    assert unplaceable(weights, 3, 4).tolist() == [True, True, True, False]
    assert unplaceable(weights, 3, 3).all()


def test_a_node_that_outweighs_the_rest_is_alone_and_is_the_bound() -> None:
    node_weights = np.array([1, 1, 1, 100, 1, 1])
    assert largest_part(6, 2, 0.1, node_weights) == 100
    path = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    repaired = repair(np.array([0, 0, 0, 0, 1, 1]), symmetric_csr(path, 6), 2, 100, node_weights)
    assert repaired.tolist() == [1, 1, 1, 0, 1, 1]


def test_refuses_what_cannot_be() -> None:
    csr = symmetric_csr(np.zeros((2, 0), np.int64), 10)
    with pytest.raises(ValueError, match="2 parts of at most 4 cannot hold 10 nodes of weight 10; wanted at least 5"):
        repair(np.zeros(10, np.int64), csr, 2, 4)
    with pytest.raises(ValueError, match="2 parts of at most 6 cannot hold 4 nodes of weight 10; wanted at least 7"):
        repair(np.array([0, 0, 0, 1]), symmetric_csr(np.zeros((2, 0), np.int64), 4), 2, 6, np.array([1, 1, 1, 7]))
    with pytest.raises(ValueError, match="ask for at most 10"):
        largest_part(10, 11)
    with pytest.raises(ValueError, match="max_nodes 0; wanted both >= 1"):
        num_parts_for(10, 0)
