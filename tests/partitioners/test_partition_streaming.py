from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, grid, neighbours_of, unhurried, weights

from partitioners import largest_part, partition, quality
from partitioners.balance import Problem
from partitioners.orders import fennel, linear_deterministic_greedy


def streamed(
    neighbours: list[dict[int, int]],
    node_weights: list[int],
    num_parts: int,
    largest: int,
    score: Callable[[int, int, int], float],
) -> list[int]:
    """Every part is looked at for every node. `score` is that of (shared weight, size, node weight)."""
    sizes = [0] * num_parts
    parts: list[int] = []
    for node, weight in enumerate(node_weights):
        shared = [0] * num_parts
        for other, edge_weight in neighbours[node].items():
            if other < node:
                shared[parts[other]] += edge_weight
        with_room = [part for part in range(num_parts) if sizes[part] + weight <= largest]
        best = max(
            with_room or range(num_parts),
            key=lambda part: (score(shared[part], sizes[part], weight) if with_room else 0, -sizes[part], -part),
        )
        parts.append(best)
        sizes[best] += weight
    return parts


@unhurried
@given(graphs(), st.data())
def test_ldg_equals_the_slow_twin(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    node_weights, edge_weights = data.draw(weights(num_nodes)), data.draw(weights(edges.shape[1]))
    num_parts = data.draw(st.integers(1, num_nodes))
    problem = Problem(edges, num_nodes, num_parts, node_weights=node_weights, edge_weights=edge_weights)
    largest = largest_part(num_nodes, num_parts, 0.1, node_weights)
    expected = streamed(
        neighbours_of(edges, num_nodes, edge_weights),
        node_weights.tolist(),
        num_parts,
        largest,
        lambda shared, size, weight: shared * (1.0 - 1.0 / largest * size),
    )
    assert linear_deterministic_greedy(problem).tolist() == expected


@unhurried
@given(graphs(), st.data())
def test_fennel_equals_the_slow_twin(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    node_weights, edge_weights = data.draw(weights(num_nodes)), data.draw(weights(edges.shape[1]))
    num_parts = data.draw(st.integers(1, num_nodes))
    problem = Problem(edges, num_nodes, num_parts, node_weights=node_weights, edge_weights=edge_weights)
    links = float(edge_weights[edges[0] != edges[1]].sum())
    alpha = math.sqrt(num_parts) * links / float(node_weights.sum()) ** 1.5
    expected = streamed(
        neighbours_of(edges, num_nodes, edge_weights),
        node_weights.tolist(),
        num_parts,
        largest_part(num_nodes, num_parts, 0.1, node_weights),
        lambda shared, size, weight: shared - weight * (1.5 * alpha) * math.sqrt(size),
    )
    assert fennel(problem).tolist() == expected


def test_ldg_by_hand() -> None:
    """Parts hold up to 3. 0 opens part 0; 1 knows nobody and takes the lightest; 2 follows 0, and 3 follows both;
    4 would follow 3, but finds no room."""
    edges = np.array([[2, 3, 3, 4], [0, 0, 2, 3]])
    assert partition(edges, 5, 2, "ldg", tolerance=0.2).tolist() == [0, 1, 0, 0, 1]


def test_ldg_prefers_the_emptier_part_among_equal_neighbours() -> None:
    """4 has an edge into part 0, which holds 0, 2 and 3, and one into part 1, which holds only 1."""
    edges = np.array([[2, 3, 4, 4], [0, 0, 0, 1]])
    assert partition(edges, 5, 2, "ldg", tolerance=1.0).tolist() == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("method", ["ldg", "fennel"])
def test_streaming_beats_random_parts_of_a_hidden_grid(method: str) -> None:
    hidden = np.random.default_rng(0).permutation(1600)
    edges = hidden[grid(40)]
    assert quality(edges, partition(edges, 1600, 16, method)).edge_cut < 0.65
