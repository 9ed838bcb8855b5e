"""Readouts that decompose over segments: nodes -> segment -> graph gives what nodes -> graph would give."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gst.batch import SegmentBatch
from gst.sparse import CsrMatrix, product
from gst.states import NodeStates

Pooling = Literal["sum", "mean", "max"]


def check_pooling(pooling: str) -> None:
    """Refuse a readout that cannot be put together from segments."""
    if pooling not in get_args(Pooling):
        raise ValueError(
            f"pooling {pooling!r} does not decompose over segments: the readout of a graph could not be computed from "
            f"the readouts of its parts, so training on parts would estimate something else; use one of "
            f"{', '.join(get_args(Pooling))}"
        )


def pool_nodes(
    states: NodeStates, batch: SegmentBatch, pooling: Pooling
) -> Float[Tensor, "segments configs channels"]:
    """Pool the owned nodes of each segment, of which there is at least one; in float32 if the states are shorter. Nodes
    with one row for all configurations are pooled once."""
    row_of, group = states.row_of[batch.owned], batch.segment_of_node[batch.owned]
    varied = (row_of != row_of[:, :1]).any(1)
    each = _pool(states.rows, row_of[varied], group[varied], batch.num_segments, pooling)
    once = _pool(states.rows, row_of[~varied, :1], group[~varied], batch.num_segments, pooling)
    pooled = torch.maximum(each, once) if pooling == "max" else each + once
    return pooled / batch.node_counts[:, None, None] if pooling == "mean" else pooled


def _pool(
    rows: Float[Tensor, "rows channels"],
    row_of: Int64[Tensor, "nodes configs"],
    group: Int64[Tensor, " nodes"],
    num_groups: int,
    pooling: Pooling,
) -> Float[Tensor, "groups configs channels"]:
    """A group without nodes gets what changes nothing: 0, or -inf for the maximum."""
    configs = row_of.shape[1]
    if pooling == "max":
        states = product(CsrMatrix.picking(row_of.flatten(), len(rows)), rows).view(*row_of.shape, rows.shape[1])
        groups, lengths = torch.unique_consecutive(group, return_counts=True)
        return _largest(_RunMaxima.apply(states, lengths.tolist()), groups, num_groups)
    places = group[:, None] * configs + torch.arange(configs, device=group.device)
    shape = (num_groups * configs, len(rows))
    long = rows.to(torch.promote_types(rows.dtype, torch.float32))
    summed = product(CsrMatrix.from_entries(places.flatten(), row_of.flatten(), shape), long)
    return summed.view(num_groups, configs, rows.shape[1])


class _RunMaxima(torch.autograd.Function):
    """The maximum of each run of rows, in float32 at least. Equal maxima share the gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: list[int]) -> Tensor:
        out = rows.new_empty(len(lengths), *rows.shape[1:])
        for row, run in zip(out, rows.split(lengths), strict=True):
            torch.amax(run, 0, out=row)
        ctx.lengths = lengths
        ctx.save_for_backward(rows, out)
        return out.to(torch.promote_types(rows.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        rows, largest = ctx.saved_tensors
        found = torch.empty_like(rows)
        runs = found.split(ctx.lengths), rows.split(ctx.lengths), largest, gradient.to(rows.dtype)
        for run, values, most, row in zip(*runs, strict=True):
            run.copy_(values).eq_(most)
            run.mul_(row / run.sum(0))
        return found, None


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
