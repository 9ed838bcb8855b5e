"""Readouts that decompose over segments: nodes -> segment -> graph gives what nodes -> graph would give."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gst.method.batch import SegmentBatch
from gst.method.pooling_kernels import SegmentMaxima, SegmentSums
from gst.method.states import NodeStates

Pooling = Literal["sum", "mean", "max"]


def check_pooling(pooling: str) -> None:
    """Refuse a readout that cannot be put together from segments."""
    if pooling not in get_args(Pooling):
        raise ValueError(
            f"pooling {pooling!r} does not decompose over segments: the readout of a graph could not be computed from "
            f"the readouts of its parts, so training on parts would estimate something else; use one of "
            f"{', '.join(get_args(Pooling))}"
        )


def pool_nodes(states: NodeStates, batch: SegmentBatch, pooling: Pooling) -> Float[Tensor, "segments configs channels"]:
    """Pool the owned nodes of each segment, of which there is at least one; in float32 if the states are shorter. Equal
    maxima share the gradient."""
    row_of, segment = states.row_of[batch.owned], batch.segment_of_node[batch.owned]
    if states.rows.device.type == "cpu":
        kernel = SegmentMaxima if pooling == "max" else SegmentSums
        pooled = kernel.apply(states.rows, row_of, segment, batch.num_segments)
    else:
        pooled = _pool_with_torch(states.rows, row_of, segment, batch.num_segments, pooling)
    return pooled / batch.node_counts[:, None, None] if pooling == "mean" else pooled


def _pool_with_torch(
    rows: Float[Tensor, "rows channels"],
    row_of: Int64[Tensor, "nodes configs"],
    segment: Int64[Tensor, " nodes"],
    num_segments: int,
    pooling: Pooling,
) -> Float[Tensor, "segments configs channels"]:
    """The same as in `gst.method.pooling_kernels`, on any device."""
    dense = rows.to(torch.promote_types(rows.dtype, torch.float32)).index_select(0, row_of.flatten())
    dense = dense.view(*row_of.shape, rows.shape[1])
    if pooling == "max":
        return _largest(dense, segment, num_segments)
    return dense.new_zeros(num_segments, *dense.shape[1:]).index_add(0, segment, dense)


def _largest(rows: Tensor, group: Int64[Tensor, " rows"], num_groups: int) -> Tensor:
    index = group.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    least = rows.new_full((num_groups, *rows.shape[1:]), -torch.inf)
    return least.scatter_reduce(0, index, rows, "amax", include_self=True)


class GraphPool:
    """Combines segments into graphs, some segments at a time. `mean` weighs each segment by its share of all nodes of
    the graph, whether or not the other segments are here; `max` takes the segments with weight > 0 as they are.

    Args:
        graph_node_counts: nodes of each graph.
    """

    def __init__(self, graph_node_counts: Int64[Tensor, " graphs"], pooling: Pooling) -> None:
        self.graph_node_counts, self.pooling = graph_node_counts, pooling
        self._total: Tensor | None = None

    def add(
        self,
        embeddings: Float[Tensor, "segments configs channels"],
        weights: Float[Tensor, "segments configs"],
        node_counts: Int64[Tensor, " segments"],
        graph_of_segment: Int64[Tensor, " segments"],
    ) -> None:
        shape = (len(self.graph_node_counts), *embeddings.shape[1:])
        if self.pooling == "max":
            present = torch.where(weights[..., None] > 0, embeddings, -torch.inf)
            part = _largest(present, graph_of_segment, shape[0])
            self._total = part if self._total is None else torch.maximum(self._total, part)
            return
        if self.pooling == "mean":
            weights = weights * (node_counts.double() / self.graph_node_counts[graph_of_segment])[:, None]
        weighed = embeddings * weights[..., None].to(embeddings.dtype)
        part = embeddings.new_zeros(shape).index_add(0, graph_of_segment, weighed)
        self._total = part if self._total is None else self._total + part

    def result(self) -> Float[Tensor, "graphs configs channels"]:
        """A graph of which no segment was added is zero."""
        assert self._total is not None, "nothing was added"
        return torch.where(torch.isneginf(self._total), 0.0, self._total) if self.pooling == "max" else self._total
