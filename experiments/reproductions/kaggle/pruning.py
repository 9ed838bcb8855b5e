"""Pruning of a graph to the nodes near its configurable ones, which decide which configuration is faster.

`none` keeps the graph. `hops:K` keeps the nodes within K hops of a configurable node, as TGraph does with K = 1
(Khizbullin et al. 2024, arXiv 2405.16623); the 14th and the 16th place of the competition on TpuGraphs took 3.

For L layers, a sum over nodes and a linear head, K >= 2 L (2 L + 1 for `gst.nn.GCN`) changes all scores of a graph by
one number, and so no order: states depend on the configuration within L hops, and are exact up to K - L hops.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from gst.graphs.graph import Graph

_HOPS = re.compile(r"hops:(-?\d+)", re.ASCII)


def reduce(graph: Graph, method: str = "none") -> Graph:
    """The graph of the kept nodes, in their order, with all edges among them, every configuration and every target.

    Examples:
        >>> chain = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
        >>> graph = Graph(np.zeros((6, 1), np.float32), chain, np.arange(6), np.array([1]))
        >>> reduce(graph, "hops:2").opcodes.tolist()
        [0, 1, 2, 3]

    Args:
        method: `none`, or `hops:K` with a whole number K >= 0; edges count in both directions.

    Raises:
        ValueError: there is no such method, or no configurable node to start from.
    """
    hops = check_reduction(method)
    if hops is None:
        return graph
    if not len(graph.config_nodes):
        raise ValueError(
            f"graph {graph.name!r} has no configurable node, so {method} would leave nothing of it; use 'none'"
        )
    return _restricted(graph, _within(graph, hops))


def check_reduction(method: str) -> int | None:
    """Parse a method: the K of `hops:K`, None for `none`.

    Raises:
        ValueError: it is neither.
    """
    if method == "none":
        return None
    match = _HOPS.fullmatch(method)
    if match is None:
        raise ValueError(f"reduction {method!r}? there are 'none' and 'hops:K', K a whole number from 0")
    if int(match[1]) < 0:
        raise ValueError(f"reduction {method!r} asks for {match[1]} hops; the number of hops starts at 0")
    return int(match[1])


def _within(graph: Graph, hops: int) -> Bool[np.ndarray, " nodes"]:
    near = np.zeros(graph.num_nodes, bool)
    near[graph.config_nodes] = True
    producers, consumers = graph.edges
    for _ in range(hops):
        farther = near.copy()
        farther[consumers[near[producers]]] = True
        farther[producers[near[consumers]]] = True
        if (farther == near).all():
            break
        near = farther
    return near


def _restricted(graph: Graph, chosen: Bool[np.ndarray, " nodes"]) -> Graph:
    position = np.cumsum(chosen) - 1
    inner = chosen[graph.edges].all(axis=0)
    return replace(
        graph, node_features=graph.node_features[chosen], edges=position[graph.edges[:, inner]],
        opcodes=graph.opcodes[chosen], config_nodes=position[graph.config_nodes],
        node_data={name: array[chosen] for name, array in graph.node_data.items()},
        edge_data={name: array[inner] for name, array in graph.edge_data.items()},
    )  # fmt: skip
