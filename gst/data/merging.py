"""Repeated measurements as one."""

from __future__ import annotations

import numpy as np

from gst.graphs.graph import Graph, groups_of_equals


def merge_repeats(graph: Graph) -> Graph:
    """One configuration for each distinct one, in order of first appearance."""
    first, group = groups_of_equals(graph.config_features)
    counts = np.bincount(group, graph.counts).astype(np.int64)
    means = np.bincount(group, graph.counts * graph.targets) / counts
    squares = graph.spreads**2 + (graph.targets - means[group]) ** 2
    spreads = np.sqrt(np.bincount(group, graph.counts * squares) / counts)
    return Graph(
        graph.node_features, graph.edges, graph.opcodes, graph.config_nodes,
        graph.config_features[first], means, counts, spreads, graph.name,
    )  # fmt: skip
