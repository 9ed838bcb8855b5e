"""Degrees of nodes and of their neighbours, as features of graphs that have none."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from partitioners.csr import symmetric_csr

DEGREE_COLUMNS = ("degree", "least_around", "greatest_around", "mean_around", "deviation_around")


def degree_profile(edges: Int64[np.ndarray, "2 edges"], num_nodes: int) -> Float64[np.ndarray, "nodes 5"]:
    """Return the degree of each node, and least, greatest, mean and standard deviation of its neighbours' degrees.

    Examples:
        >>> degree_profile(np.array([[0, 0, 0], [1, 2, 3]]), num_nodes=4)[:2].tolist()
        [[3.0, 1.0, 1.0, 1.0, 0.0], [1.0, 3.0, 3.0, 3.0, 0.0]]

    Source: Cai & Wang 2018, arXiv 1811.03508, section 3. The graph counts as undirected, without self-loops and
    parallel edges; a node without neighbours has a row of zeros. A single neighbour has the deviation 0.
    """
    graph = symmetric_csr(edges, num_nodes)
    degrees = np.diff(graph.starts)
    profile = np.zeros((num_nodes, len(DEGREE_COLUMNS)))
    connected = np.flatnonzero(degrees)
    starts, sizes = graph.starts[connected], degrees[connected]
    around = degrees[graph.neighbours].astype(np.float64)
    if len(connected):
        means = np.add.reduceat(around, starts) / sizes
        squares = np.add.reduceat((around - np.repeat(means, sizes)) ** 2, starts)
        least, greatest = np.minimum.reduceat(around, starts), np.maximum.reduceat(around, starts)
        profile[connected] = np.stack([sizes, least, greatest, means, np.sqrt(squares / sizes)], axis=1)
    return profile
