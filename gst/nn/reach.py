"""Which nodes a configuration has reached after each layer, and the edges between those and the others.

A configuration enters at the configurable nodes and travels one hop per layer. What lies further than l hops from
every configurable node is the same under all configurations after layer l, so it is computed once. Nodes are put in
order of their distance; then the nodes that are reached after layer l are simply the first `counts[l]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from gst.batch import SegmentBatch
from gst.sparse import CsrMatrix, pointers

Direction = Literal["forward", "backward"]
"""Messages run with the data, from producers to consumers, or against it."""

Weights = Literal["sum", "mean", "symmetric"]
"""Of messages u -> v: 1; 1 / degree(v); 1 / sqrt((1 + degree(u)) (1 + degree(v))) (Kipf and Welling 2017, eq. 2)."""


@dataclass(frozen=True, eq=False)
class Hop:
    """The messages of one layer in one direction, apart: senders that differ by configuration, and the others.

    Args:
        each: (nodes reached after the layer, nodes reached before it).
        once: (all nodes, nodes not reached before it).
    """

    each: CsrMatrix
    once: CsrMatrix


@dataclass(frozen=True, eq=False)
class Reach:
    """How far the configurations of a batch reach.

    Args:
        order: nodes of the batch by hops from the nearest configurable node.
        position: where each node of the batch stands in `order`.
        counts: after l layers the first `counts[l]` nodes of `order` depend on the configuration.
        hops: the messages of each layer, one `Hop` for each direction.
    """

    order: Int64[Tensor, " nodes"]
    position: Int64[Tensor, " nodes"]
    counts: tuple[int, ...]
    hops: tuple[tuple[Hop, ...], ...]

    @staticmethod
    def of(
        batch: SegmentBatch,
        num_layers: int,
        directions: tuple[Direction, ...],
        weights: Weights = "sum",
        share: bool = True,
    ) -> Reach:
        """Without `share`, or under a single configuration, every node counts as reached from the start."""
        ways = [_oriented(batch.edge_index, direction) for direction in directions]
        if share and batch.num_configs > 1:
            distance = _distances(batch, torch.cat(ways, dim=1), num_layers)
        else:
            distance = torch.zeros_like(batch.segment_of_node)
        order = torch.argsort(distance, stable=True)
        counts = tuple(torch.bincount(distance, minlength=num_layers + 2).cumsum(0)[: num_layers + 1].tolist())
        position = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        by_way = [_hops(position[edges], counts, len(order), weights) for edges in ways]
        return Reach(order, position, counts, tuple(zip(*by_way, strict=True)))


def _oriented(edge_index: Tensor, direction: Direction) -> Tensor:
    if direction not in ("forward", "backward"):
        raise ValueError(f"direction {direction!r}? messages run 'forward', from producers to consumers, or 'backward'")
    return edge_index if direction == "forward" else edge_index.flip(0)


def _distances(batch: SegmentBatch, edges: Int64[Tensor, "2 edges"], num_layers: int) -> Int64[Tensor, " nodes"]:
    """Hops from the nearest configurable node along `edges`; `num_layers + 1` where it is more."""
    senders, receivers = edges
    distance = torch.full_like(batch.segment_of_node, num_layers + 1)
    distance[batch.config_nodes] = 0
    for layer in range(num_layers):
        heard = receivers[distance[senders] == layer]
        distance[heard] = distance[heard].clamp(max=layer + 1)
    return distance


def _hops(
    edges: Int64[Tensor, "2 edges"], counts: tuple[int, ...], num_nodes: int, weights: Weights
) -> tuple[Hop, ...]:
    """Two sorts for all layers: what is left of a sorted list is sorted."""
    by_receiver = _Edges.of(edges, weights, num_nodes).sorted_by(1)
    by_sender = by_receiver.sorted_by(0)
    hops: dict[tuple[int, int], Hop] = {}
    for before, after in pairwise(counts):
        if (before, after) not in hops:
            each = _matrix(by_receiver.sent_by(0, before), by_sender.sent_by(0, before), (after, before))
            rest = (num_nodes, num_nodes - before)
            once = _matrix(by_receiver.sent_by(before, num_nodes), by_sender.sent_by(before, num_nodes), rest)
            hops[before, after] = Hop(each, once)
    return tuple(hops[pair] for pair in pairwise(counts))


@dataclass(frozen=True, eq=False)
class _Edges:
    index: Int64[Tensor, "2 edges"]
    weights: Float64[Tensor, " edges"]

    @staticmethod
    def of(index: Int64[Tensor, "2 edges"], weights: Weights, num_nodes: int) -> _Edges:
        if weights == "sum":
            return _Edges(index, torch.ones(index.shape[1], dtype=torch.double, device=index.device))
        if weights == "mean":
            return _Edges(index, _degrees(index[1], num_nodes)[index[1]].reciprocal())
        if weights == "symmetric":
            scale = (1 + _degrees(index[0], num_nodes)).rsqrt()
            return _Edges(index, scale[index[0]] * scale[index[1]])
        raise ValueError(f"weights {weights!r}? messages are added as a 'sum', a 'mean' or 'symmetric'")

    def sorted_by(self, end: int) -> _Edges:
        order = torch.argsort(self.index[end], stable=True)
        return _Edges(self.index[:, order], self.weights[order])

    def sent_by(self, first: int, stop: int) -> _Edges:
        """Those whose sender is in first .. stop - 1, senders counted from `first`."""
        chosen = (self.index[0] >= first) & (self.index[0] < stop)
        senders, receivers = self.index[:, chosen]
        return _Edges(torch.stack([senders - first, receivers]), self.weights[chosen])


def _degrees(ends: Tensor, num_nodes: int) -> Tensor:
    return torch.bincount(ends, minlength=num_nodes).double()


def _matrix(by_receiver: _Edges, by_sender: _Edges, shape: tuple[int, int]) -> CsrMatrix:
    return CsrMatrix(
        pointers(by_receiver.index[1], shape[0]), by_receiver.index[0], by_receiver.weights,
        pointers(by_sender.index[0], shape[1]), by_sender.index[1], by_sender.weights,
    )  # fmt: skip
