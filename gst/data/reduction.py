"""Less of a graph for the same question: which configuration is faster.

There are three choices. `none` keeps the graph. `hops:K` keeps what stands within K hops of a configurable node, as
TGraph does with K = 1 (Khizbullin et al. 2024, arXiv 2405.16623); the 14th and the 16th of the competition on TpuGraphs
took 3. Segments, the third, keep all of it and look at some at a time: that is Graph Segment Training itself, see
`gst.segment` and `GraphSegmentTraining`, and nothing is done here.

What pruning changes. An encoder of L layers gives a node a state that depends on the configuration only within L hops
of a configurable node. Pruned to K hops, the nodes at distance K lose neighbours, so after l layers the states at
distance K - l or less are those of the whole graph. Hence, for a sum over nodes and a linear head:

- K >= 2 L: every state that depends on the configuration is exact. The scores of one graph all change by one and the
  same number, which is what the nodes that depend on no configuration add; no order and no difference changes.
- K = L: all states that depend on the configuration are there, but the outer ones miss neighbours.
- K < L: some are not there at all.

An encoder that weighs a message by the degree of its sender (`gst.nn.GCN`) sees one hop farther and needs 2 L + 1. One
whose nodes hear their whole segment (`gst.nn.GPS`) has no such K, nor has a head that is not linear, nor the maximum
over nodes; the mean over nodes is the sum over another number of nodes, so differences keep their proportions.
Computing equal states once (`gst.nn.sharing`) saves most of what pruning saves, and is exact for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import assemble
from gst.nn.message_passing import BOTH
from gst.nn.sharing import Direction, Sharing

_HOPS = re.compile(r"hops:(-?\d+)", re.ASCII)


def reduce(graph: Graph, method: str = "none") -> Graph:
    """What is left of `graph`: nodes in their order, all edges among them, every configuration and target.

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
    """The K of `hops:K`, None for `none`.

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


def node_updates(
    graph: Graph | SegmentedGraph,
    num_layers: int,
    configs: Int64[Tensor, " configs"],
    share: bool = True,
    directions: Sequence[Direction] = BOTH,
) -> int:
    """How many states of nodes the layers of an encoder compute in one pass over `configs` of the whole of `graph`.

    A graph that is cut counts all of its segments, context included; a step with S of J fresh segments and no others
    computes S / J of that on average.

    Args:
        share: count a state once that is equal under several configurations, as the encoders compute it. False counts
            every node under every configuration: nodes times configurations times layers.
        directions: of the encoder's messages.
    """
    whole = graph if isinstance(graph, SegmentedGraph) else segment(graph, parts=np.zeros(graph.num_nodes, np.int64))
    batch = assemble([whole], [(0, number) for number in range(whole.num_segments)], configs[None])
    levels = Sharing.of(batch, num_layers, tuple(directions), share).levels[1:]
    return sum(len(level.config_of_row) for level in levels)


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


def _restricted(graph: Graph, kept: Bool[np.ndarray, " nodes"]) -> Graph:
    position = np.cumsum(kept) - 1
    inner = kept[graph.edges].all(axis=0)
    return Graph(
        graph.node_features[kept], position[graph.edges[:, inner]], graph.opcodes[kept], position[graph.config_nodes],
        graph.config_features, graph.targets, graph.counts, graph.spreads, graph.name,
    )  # fmt: skip
