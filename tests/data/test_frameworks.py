"""Graphs of NetworkX: what they hold is what the `Graph` holds."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gst.data.frameworks import from_networkx


@given(num_nodes=st.integers(1, 9), probability=st.floats(0, 1), directed=st.booleans(), seed=st.integers(0, 99))
def test_networkx_nodes_and_edges(num_nodes: int, probability: float, directed: bool, seed: int) -> None:
    source = nx.gnp_random_graph(num_nodes, probability, seed, directed)
    nx.set_node_attributes(source, {node: [node, 2.5] for node in source}, "size")
    nx.set_edge_attributes(source, {edge: 10 * edge[0] + edge[1] for edge in source.edges}, "bytes")
    graph = from_networkx(source, "size", edge_data=["bytes"])
    assert graph.node_features.tolist() == [[node, 2.5] for node in range(num_nodes)]
    held = set(map(tuple, graph.edges.T.tolist()))
    assert held == set(source.edges) | (set() if directed else {(v, u) for u, v in source.edges})
    for (u, v), number in zip(graph.edges.T.tolist(), graph.edge_data.get("bytes", []), strict=False):
        assert number in (10 * u + v, 10 * v + u)


def test_networkx_without_features_and_with_a_loop() -> None:
    source = nx.Graph([("a", "b"), ("b", "b")])
    graph = from_networkx(source, ())
    assert graph.node_features.shape == (2, 0) and graph.edges.tolist() == [[0, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda source: source.add_node("c"), "node 'c' has no attribute 'size'"),
        (lambda source: source.add_node("c", size=[1, 2]), r"'size' of node 'c' has shape \(2,\), of others \(\)"),
        (lambda source: source.add_edge("b", "a"), "edge 'b' -> 'a' has no attribute 'bytes'"),
    ],
)
def test_networkx_attributes_that_do_not_fit(change: Any, message: str) -> None:
    source = nx.DiGraph()
    source.add_node("a", size=1)
    source.add_node("b", size=2)
    source.add_edge("a", "b", bytes=1)
    change(source)
    with pytest.raises(ValueError, match=message):
        from_networkx(source, "size", edge_data=["bytes"])
