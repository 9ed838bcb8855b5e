from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, grid, neighbours_of, unhurried, weights

from partitioners import partition, quality, symmetric_csr
from partitioners.balance import Problem
from partitioners.communities import contract, grow
from partitioners.csr import Csr


def rows(csr: Csr) -> list[list[tuple[int, int]]]:
    """For each node its neighbours, in the order in which they are stored, each with the weight to it."""
    pairs = list(zip(csr.neighbours.tolist(), csr.weights.tolist(), strict=True))
    return [pairs[low:high] for low, high in zip(csr.starts[:-1], csr.starts[1:], strict=True)]


@unhurried
@given(graphs(), st.data())
def test_contraction_equals_the_slow_twin(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    node_weights, edge_weights = data.draw(weights(num_nodes)), data.draw(weights(edges.shape[1]))
    labels = data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=num_nodes, max_size=num_nodes))
    csr = symmetric_csr(edges, num_nodes, edge_weights)
    coarse, label_weights, became = contract(csr, node_weights, np.array(labels))

    names = list(dict.fromkeys(labels))
    assert became.tolist() == [names.index(label) for label in labels]
    assert label_weights.tolist() == [int(node_weights[np.array(labels) == name].sum()) for name in names]
    expected = neighbours_of(became[edges], len(names), edge_weights)
    assert [dict(row) for row in rows(coarse)] == expected
    assert [len(row) for row in rows(coarse)] == [len(row) for row in expected]  # no neighbour twice


@unhurried
@given(graphs(), st.data())
def test_growing_places_every_node_and_keeps_to_the_bound_while_it_can(
    graph: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    problem = Problem(edges, num_nodes, num_parts)
    parts = grow(problem.csr, problem.weights, num_parts, problem.largest)
    assert parts.min() >= 0 and parts.max() < num_parts
    assert np.bincount(parts).max() <= problem.largest


def test_growing_follows_edges_by_hand() -> None:
    """Two triangles joined by one edge: the first part is one triangle, the second begins with what is left."""
    edges = np.array([[0, 2, 0, 1, 3, 1, 2], [2, 4, 4, 3, 5, 5, 1]])
    csr = symmetric_csr(edges, 6)
    assert grow(csr, np.ones(6, np.int64), 2, 3).tolist() == [0, 1, 0, 1, 0, 1]


def test_finds_hidden_cliques() -> None:
    """300 cliques of 10 in a ring, ids shuffled: the parts cut the ring, never a clique."""
    cliques = [(10 * c + low, 10 * c + high) for c in range(300) for high in range(10) for low in range(high)]
    ring = [(10 * c, (10 * c + 15) % 3000) for c in range(300)]
    edges = np.random.default_rng(1).permutation(3000)[np.array(cliques + ring).T]
    measured = quality(edges, partition(edges, 3000, 10, "communities"))
    assert measured.edge_cut * edges.shape[1] <= 60
    inside = edges[:, : len(cliques)]
    parts = partition(edges, 3000, 10, "communities")
    assert np.mean(parts[inside[0]] != parts[inside[1]]) < 0.01


def test_comes_near_metis_on_a_hidden_grid() -> None:
    edges = np.random.default_rng(1).permutation(3600)[grid(60)]
    cut = {m: quality(edges, partition(edges, 3600, 20, m)).edge_cut for m in ("metis", "communities", "contiguous")}
    assert cut["communities"] < 2 * cut["metis"] < cut["contiguous"]
