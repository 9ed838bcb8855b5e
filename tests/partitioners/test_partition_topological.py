from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, unhurried, weights

from partitioners import partition
from partitioners.orders import _reverse_postorder


def reverse_postorder(edges: np.ndarray, num_nodes: int) -> list[int]:
    """By recursion."""
    children: list[set[int]] = [set() for _ in range(num_nodes)]
    for source, target in edges.T.tolist():
        children[source].add(target)
    left: list[int] = []
    reached: set[int] = set()

    def visit(node: int) -> None:
        reached.add(node)
        for child in sorted(children[node]):
            if child not in reached:
                visit(child)
        left.append(node)

    for node in range(num_nodes):
        if node not in reached:
            visit(node)
    return left[::-1]


@unhurried
@given(graphs())
def test_the_order_equals_the_slow_twin(graph: tuple[np.ndarray, int]) -> None:
    edges, num_nodes = graph
    assert _reverse_postorder(edges[0], edges[1], num_nodes).tolist() == reverse_postorder(edges, num_nodes)


@unhurried
@given(graphs(), st.data())
def test_edges_without_cycles_never_lead_to_an_earlier_part(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    rank = np.array(data.draw(st.permutations(range(num_nodes))))
    upwards = rank[edges[0]] < rank[edges[1]]
    acyclic = np.where(upwards, edges, edges[::-1])[:, edges[0] != edges[1]]
    parts = partition(acyclic, num_nodes, data.draw(st.integers(1, num_nodes)), "topological")
    assert (parts[acyclic[0]] <= parts[acyclic[1]]).all()


@unhurried
@given(graphs(), st.data())
def test_order_and_repetition_of_edges_do_not_matter(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    expected = partition(edges, num_nodes, num_parts, "topological")
    again = np.concatenate([edges[:, ::-1], edges], axis=1)
    np.testing.assert_array_equal(partition(again, num_nodes, num_parts, "topological"), expected)


def test_two_chains_stay_whole_however_their_ids_interleave() -> None:
    edges = np.array([[0, 2, 4, 1, 3, 5], [2, 4, 6, 3, 5, 7]])
    assert partition(edges, 8, 2, "topological").tolist() == [1, 0, 1, 0, 1, 0, 1, 0]


def test_a_cycle_is_broken_where_the_search_began() -> None:
    cycle = np.array([[2, 3, 0, 1], [3, 0, 1, 2]])
    assert partition(cycle, 4, 4, "topological").tolist() == [0, 1, 2, 3]


def test_a_path_of_a_million_nodes_needs_no_recursion() -> None:
    nodes = np.arange(1_000_000)
    parts = partition(np.stack([nodes[1:], nodes[:-1]]), 1_000_000, 4, "topological")
    np.testing.assert_array_equal(parts, 3 - nodes // 250_000)


@unhurried
@given(st.integers(1, 40).flatmap(weights), st.data())
def test_heavy_nodes_do_not_disturb_the_order_where_the_bound_allows(
    node_weights: np.ndarray, data: st.DataObject
) -> None:
    num_nodes = len(node_weights)
    num_parts = data.draw(st.integers(1, num_nodes))
    path = np.stack([np.arange(num_nodes - 1), np.arange(1, num_nodes)])
    parts = partition(path, num_nodes, num_parts, "topological", tolerance=float(num_nodes), node_weights=node_weights)
    assert (np.diff(parts) >= 0).all() and len(np.unique(parts)) == num_parts
