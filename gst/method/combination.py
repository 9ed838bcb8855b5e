"""Pooled embeddings of the graphs of a step, from fresh embeddings and from rows, by the weights of any `Estimate`.

Eager, padded, recorded and distributed steps all call `combine`; they differ in their `RowSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gst.method.draws import Catalogue
from gst.method.estimates import Estimate, Sample
from gst.method.readouts import Combination, GraphPool
from gst.method.regression import RowRegression
from gst.util.packing import sent

Part = tuple[Int64[Tensor, " chunk"], Float[Tensor, "chunk configs channels"]]


@runtime_checkable
class RowSource(Protocol):
    """Rows of the segments of one step."""

    @property
    def are_of_now(self) -> bool:
        """True if rows are what the encoder computes now, for every segment."""

    def ages(self) -> Int64[Tensor, "segments configs"]:
        """Return the steps since each row was written; -1 where there is none, as at padding."""

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        """Yield some segments at a time, at least those that are read, and their rows."""

    def summed(self, values: Float64[Tensor, " numbers"]) -> Float64[Tensor, " numbers"]:
        """Return the sum of `values` over all processes of the step."""


class RowsOfNow:
    """`RowSource` of a model without a table: other segments are encoded too, without gradient.

    Args:
        encode: yields segments and their embeddings, some at a time.
    """

    are_of_now = True

    def __init__(self, encode: Callable[[Tensor], Iterator[Part]], num_segments: int, num_configs: int) -> None:
        self._encode, self._shape = encode, (num_segments, num_configs)

    def ages(self) -> Int64[Tensor, "segments configs"]:
        return torch.zeros(self._shape, dtype=torch.int64)

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        return self._encode(is_read.nonzero().squeeze(1))

    def summed(self, values: Float64[Tensor, " numbers"]) -> Float64[Tensor, " numbers"]:
        return values


def combine(
    estimate: Estimate,
    sample: Sample,
    chosen: Int64[Tensor, " fresh"],
    embedded: Float[Tensor, "fresh configs channels"],
    pooling: Combination,
    rows: RowSource | None,
) -> Float[Tensor, "graphs configs numbers"]:
    """Return the estimate of the pooled embeddings; `embedded` are the segments `chosen`. A learned map learns."""
    value, stale, gradient = estimate.weights(sample)
    is_fresh, shape = sample.is_fresh[:, None], sample.ages.shape
    if rows is not None and rows.are_of_now:  # so the row of a fresh segment is its embedding
        gradient = value if gradient is None else gradient
        value, stale = value + stale * is_fresh, stale * ~is_fresh
    fills = estimate.fills and rows is not None and not rows.are_of_now
    if gradient is not None:
        scale = torch.where(value != 0, gradient / value, 0.0).expand(shape)[chosen].to(embedded, non_blocking=True)
        embedded = embedded.detach() + (embedded - embedded.detach()) * scale[..., None]  # the values stay
    pool = GraphPool(sample.graph_node_counts.to(embedded.device, non_blocking=True), pooling)
    add_parts(pool, [(chosen, embedded)], value.expand(shape), sample.node_counts, sample.graph)
    if rows is None or estimate.reads == "nothing":
        return pool.result()
    if fills:
        return pool.result() + _filled_sum(sample, stale, chosen, embedded.detach(), pooling, rows)
    stale = torch.where(sample.is_known, stale, 0.0)
    return add_parts(pool, rows.parts((stale != 0).any(1)), stale, sample.node_counts, sample.graph).result()


def add_parts(
    pool: GraphPool,
    parts: Iterable[Part],
    weights: Float[Tensor, "segments configs"],
    node_counts: Int64[Tensor, " segments"],
    graph: Int64[Tensor, " segments"],
) -> GraphPool:
    """Add segments to the pool, some at a time, with their weights among those of all segments."""
    for chunk, part in parts:
        pool.add(part, *_on(part.device, weights[chunk].to(part.dtype), node_counts[chunk], graph[chunk]))
    return pool


def pool_all(
    catalogue: Catalogue, num_configs: int, parts: Iterable[Part], pooling: Combination, device: torch.device
) -> Float[Tensor, "graphs configs channels"]:
    """Return the pooled embeddings of graphs whose segments are all in `parts`."""
    pool = GraphPool(catalogue.graph_node_counts.to(device, non_blocking=True), pooling)
    ones = torch.ones(len(catalogue), num_configs)
    return add_parts(pool, parts, ones, catalogue.node_counts, catalogue.graph).result()


def _on(device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors of the host on a device, by one copy; those of the device as they are."""
    if all(each.device.type == device.type for each in tensors):
        return tensors
    return tuple(sent({str(place): each for place, each in enumerate(tensors)}, device).values())


def _filled_sum(
    sample: Sample, stale: Tensor, chosen: Tensor, embedded: Tensor, pooling: Combination, rows: RowSource
) -> Float[Tensor, "graphs configs channels"]:
    """Return the weighted sum of all rows, those that are missing filled in, under the learned map if there is one."""
    dtype, num_graphs = embedded.dtype, len(sample.graph_node_counts)
    size, per_node = readout_shares(sample.node_counts, sample.graph_node_counts[sample.graph], pooling)
    weights, scale, graph, is_known = _on(
        embedded.device, (stale * size[:, None]).to(dtype), per_node.to(dtype), sample.graph, sample.is_known
    )
    total = FilledSum(graph, weights, num_graphs, sample.ages.shape[1], embedded.shape[-1])
    fresh_rows = []
    for chunk, part in rows.parts(torch.ones_like(sample.is_fresh)):
        here = chunk.to(embedded.device, non_blocking=True)
        part = part * scale[here][:, None, None]
        total.add(here, part, is_known[here])
        if sample.learned is not None:
            places = sample.is_fresh[chunk].nonzero().squeeze(1)
            fresh_rows.append(part[places.to(embedded.device, non_blocking=True)])
    result = total.result(sample.learned)
    if sample.learned is not None:
        now = embedded * per_node[chosen].to(embedded, non_blocking=True)[:, None, None]
        sample.learned.learn(
            torch.cat(fresh_rows), now, size[chosen], sample.is_known[chosen], sample.graph[chosen], num_graphs,
            rows.summed,
        )  # fmt: skip
    return result


def readout_shares(
    node_counts: Int64[Tensor, " segments"], nodes_of_graph: Int64[Tensor, " segments"], pooling: str
) -> tuple[Float64[Tensor, " segments"], Float64[Tensor, " segments"]]:
    """Return two factors of each segment in a readout by `sum` or `mean`: the weight of the mean embedding of its
    nodes in the readout of its graph, and what turns its own pooled embedding into that mean.

    Examples:
        >>> [each.tolist() for each in readout_shares(torch.tensor([2, 6]), torch.tensor([8, 8]), "mean")]
        [[0.25, 0.75], [1.0, 1.0]]
        >>> [each.tolist() for each in readout_shares(torch.tensor([2, 4]), torch.tensor([6, 6]), "sum")]
        [[2.0, 4.0], [0.5, 0.25]]
    """
    nodes = node_counts.double()
    if pooling == "mean":
        return nodes / nodes_of_graph, torch.ones_like(nodes)
    return nodes, nodes.clamp(min=1).reciprocal()  # padding has no nodes


class FilledSum:
    """Sum over all segments of a graph of `weights` f(x_j), some segments at a time.

    Where segment j has no row under a configuration, x_j is the mean of its rows under the others of the step; without
    any, the mean of the rows of its graph; and without these, the mean of the rows that the map was learned from.
    """

    def __init__(self, graph: Tensor, weights: Tensor, num_graphs: int, num_configs: int, channels: int) -> None:
        self._graph, self._weights = graph, weights
        self._sum = weights.new_zeros(num_graphs, num_configs, channels)
        self._mean = weights.new_zeros(num_graphs, channels)  # of the rows that are known
        self._num_known = weights.new_zeros(num_graphs)
        self._lacking = weights.new_zeros(num_graphs, weights.shape[1])

    def add(
        self,
        segments: Int64[Tensor, " chunk"],
        rows: Float[Tensor, "chunk configs channels"],
        is_known: Bool[Tensor, "chunk configs"],
    ) -> None:
        """Add `segments`, with their rows per node."""
        graph, weights, has_row = self._graph[segments], self._weights[segments], is_known.any(1)
        mask = is_known[..., None].to(rows)
        mean = (rows * mask).sum(1) / mask.sum(1).clamp(min=1)
        filled = torch.where(is_known[..., None], rows, mean[:, None])
        self._sum.index_add_(0, graph, filled * weights[..., None])
        self._mean.index_add_(0, graph, mean)
        self._num_known.index_add_(0, graph, has_row.to(weights))
        self._lacking.index_add_(0, graph, weights * ~has_row[:, None])

    def result(self, learned: RowRegression | None) -> Float[Tensor, "graphs configs channels"]:
        """Return the sums, under the learned map, or the identity."""
        mean = self._mean / self._num_known.clamp(min=1)[:, None]
        linear = None if learned is None else learned.map()
        if learned is None or linear is None:
            return self._sum + self._lacking[..., None] * mean[:, None]
        mean = torch.where(self._num_known[:, None] > 0, mean, learned.mean_row().to(mean))
        a, b = (part.to(mean) for part in linear)
        total = torch.zeros_like(self._lacking).index_add(0, self._graph, self._weights)
        with torch.autocast(mean.device.type, enabled=False):  # a sum has no place in half precision
            return (self._sum + self._lacking[..., None] * mean[:, None]) @ a + total[..., None] * b
