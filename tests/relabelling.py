"""Graphs with their nodes renamed."""

from __future__ import annotations

import numpy as np

from gst.graphs.graph import Graph


def relabelled_graph(graph: Graph, order: np.ndarray) -> Graph:
    """The same graph with node `order[i]` renamed to `i` (`order` is a permutation of all nodes)."""
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return Graph(
        graph.node_features[order], position[graph.edges], graph.opcodes[order], position[graph.config_nodes],
        graph.config_features, graph.targets, graph.counts, graph.spreads, graph.name,
        {name: array[order] for name, array in graph.node_data.items()}, graph.edge_data,
    )  # fmt: skip
