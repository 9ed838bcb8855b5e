from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, grid, unhurried

from partitioners import METHODS, largest_part, partition, quality


@pytest.mark.parametrize("method", METHODS)
@unhurried
@given(graph=graphs(), data=st.data())
def test_every_node_has_a_part_and_every_part_its_share(
    method: str, graph: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    tolerance = data.draw(st.sampled_from([0.0, 0.1]))
    parts = partition(edges, num_nodes, num_parts, method, tolerance=tolerance)
    assert parts.shape == (num_nodes,) and parts.dtype == np.int64
    measured = quality(edges, parts, num_parts)   # refuses parts out of range
    assert measured.smallest >= 1
    assert measured.largest <= largest_part(num_nodes, num_parts, tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_equal_seeds_give_equal_parts(method: str) -> None:
    edges = grid(30)
    first, again = (partition(edges, 900, 9, method, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("method", ["metis", "random"])
def test_other_seeds_give_other_parts(method: str) -> None:
    edges = grid(30)
    assert (partition(edges, 900, 9, method, seed=5) != partition(edges, 900, 9, method, seed=6)).any()


def test_metis_cuts_a_shuffled_grid_far_less_than_ranges_of_its_ids() -> None:
    hidden = np.random.default_rng(0).permutation(1600)
    edges = hidden[grid(40)]
    cuts = {method: quality(edges, partition(edges, 1600, 16, method)).edge_cut for method in METHODS}
    assert cuts["metis"] < 0.15 and min(cuts["contiguous"], cuts["random"]) > 0.9


def test_direction_and_order_of_edges_do_not_change_metis() -> None:
    edges = grid(20)
    both = np.concatenate([edges, edges[::-1]], axis=1)
    expected = partition(edges, 400, 5)
    np.testing.assert_array_equal(partition(edges[::-1, ::-1], 400, 5), expected)
    np.testing.assert_array_equal(partition(both, 400, 5), expected)


@pytest.mark.parametrize("first", [0, 1])
def test_metis_spares_heavy_edges(first: int) -> None:
    """A ring of eight in which every second edge is tenfold: four parts cut the light ones only."""
    ring = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]])
    heavy = ring[:, first::2]
    parts = partition(np.concatenate([ring] + 9 * [heavy], axis=1), 8, 4)
    assert (parts[heavy[0]] == parts[heavy[1]]).all()


def test_one_part_takes_all() -> None:
    for method in METHODS:
        assert not partition(grid(3), 9, 1, method).any()


def test_contiguous_ranges_by_hand() -> None:
    no_edges = np.zeros((2, 0), np.int64)
    assert partition(no_edges, 7, 3, "contiguous").tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 0}, "num_nodes is 0; wanted at least 1"),
        ({"num_parts": 4}, "num_parts is 4 for 3 nodes; .*ask for at most 3"),
        ({"num_parts": 0}, "num_parts is 0"),
        ({"num_nodes": 2}, r"edges name nodes 0\.\.2; wanted 0\.\.1"),
        ({"edges": np.array([[0], [-1]])}, r"edges name nodes -1\.\.0"),
        ({"method": "louvain"}, "'louvain'; wanted one of metis, contiguous, random"),
        ({"seed": -1}, "seed is -1"),
        ({"tolerance": -0.1}, "tolerance is -0.1"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_refuses_bad_input(method: str, change: dict, message: str) -> None:
    arguments = {"edges": np.array([[0, 1], [1, 2]]), "num_nodes": 3, "num_parts": 2, "method": method}
    with pytest.raises(ValueError, match=message):
        partition(**(arguments | change))
