"""Readouts that decompose over segments: nodes -> segment -> graph gives what nodes -> graph would give."""

from __future__ import annotations

from typing import Any, Literal, get_args, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from gst.method.batch import NodeStates, SegmentBatch
from partitioners.compiled import compiled

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
    """The same as in `gst.method.pooling`, on any device."""
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


class SegmentSums(torch.autograd.Function):
    """`(rows, row_of, segment, num_segments)` -> `(segments, configs, channels)`, in float32 at least: node i says
    `rows[row_of[i, c]]` of configuration c to `segment[i]`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_of: Tensor, segment: Tensor, num_segments: int) -> Tensor:
        ctx.shape, ctx.dtype = rows.shape, rows.dtype
        ctx.save_for_backward(row_of, segment)
        wide = _wide(rows)
        out = wide.new_zeros(num_segments, row_of.shape[1], rows.shape[1])
        _sum_forward(*_arrays(wide, row_of, segment, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        row_of, segment = ctx.saved_tensors
        rows_gradient = gradient.new_zeros(ctx.shape)
        _sum_backward(*_arrays(gradient, row_of, segment, rows_gradient))
        return rows_gradient.to(ctx.dtype), None, None, None


class SegmentMaxima(torch.autograd.Function):
    """The same of maxima, -inf without nodes. Equal maxima share the gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_of: Tensor, segment: Tensor, num_segments: int) -> Tensor:
        wide = _wide(rows)
        out = wide.new_full((num_segments, row_of.shape[1], rows.shape[1]), -torch.inf)
        _max_forward(*_arrays(wide, row_of, segment, out))
        ctx.save_for_backward(rows, row_of, segment, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        rows, row_of, segment, out = ctx.saved_tensors
        wide, holders = _wide(rows), torch.zeros_like(out)
        _count_largest(*_arrays(wide, row_of, segment, out, holders))
        rows_gradient = torch.zeros_like(wide)
        _max_backward(*_arrays(wide, row_of, segment, out, gradient / holders, rows_gradient))
        return rows_gradient.to(rows.dtype), None, None, None


def _wide(rows: Tensor) -> Tensor:
    return rows.detach().to(torch.promote_types(rows.dtype, torch.float32))


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.contiguous().numpy() for tensor in tensors]


@compiled
@no_type_check
def _varies(rows):
    """Whether a node has more than one row."""
    for row in rows:  # noqa: SIM110 - numba knows no generators
        if row != rows[0]:
            return True
    return False


@compiled
@no_type_check
def _sum_forward(rows, row_of, segment, out):
    """What a node says of all configurations alike is added once for its segment, and then to each of them."""
    once = np.zeros((out.shape[0], out.shape[2]), out.dtype)
    for node in range(len(row_of)):
        if not _varies(row_of[node]):
            total, row = once[segment[node]], rows[row_of[node, 0]]
            for channel in range(out.shape[2]):
                total[channel] += row[channel]
            continue
        for config in range(row_of.shape[1]):
            total, row = out[segment[node], config], rows[row_of[node, config]]
            for channel in range(out.shape[2]):
                total[channel] += row[channel]
    for place in range(out.shape[0]):
        for config in range(out.shape[1]):
            total = out[place, config]
            for channel in range(out.shape[2]):
                total[channel] += once[place, channel]


@compiled
@no_type_check
def _sum_backward(gradient, row_of, segment, rows_gradient):
    together = np.zeros((gradient.shape[0], rows_gradient.shape[1]), rows_gradient.dtype)
    for place in range(gradient.shape[0]):
        for config in range(gradient.shape[1]):
            given = gradient[place, config]
            for channel in range(rows_gradient.shape[1]):
                together[place, channel] += given[channel]
    for node in range(len(row_of)):
        if not _varies(row_of[node]):
            total, given = rows_gradient[row_of[node, 0]], together[segment[node]]
            for channel in range(rows_gradient.shape[1]):
                total[channel] += given[channel]
            continue
        for config in range(row_of.shape[1]):
            total, given = rows_gradient[row_of[node, config]], gradient[segment[node], config]
            for channel in range(rows_gradient.shape[1]):
                total[channel] += given[channel]


@compiled
@no_type_check
def _max_forward(rows, row_of, segment, out):
    """A value that is no number stays, as in PyTorch."""
    once = np.full((out.shape[0], out.shape[2]), -np.inf, out.dtype)
    for node in range(len(row_of)):
        if not _varies(row_of[node]):
            most, row = once[segment[node]], rows[row_of[node, 0]]
            for channel in range(out.shape[2]):
                value = row[channel]
                most[channel] = value if value > most[channel] or value != value else most[channel]
            continue
        for config in range(row_of.shape[1]):
            most, row = out[segment[node], config], rows[row_of[node, config]]
            for channel in range(out.shape[2]):
                value = row[channel]
                most[channel] = value if value > most[channel] or value != value else most[channel]
    for place in range(out.shape[0]):
        for config in range(out.shape[1]):
            most = out[place, config]
            for channel in range(out.shape[2]):
                value = once[place, channel]
                most[channel] = value if value > most[channel] or value != value else most[channel]


@compiled
@no_type_check
def _least_over_configs(out):
    """A node that says one thing of all configurations can be the largest for one only if it is the least of these."""
    least = out[:, 0].copy()
    for place in range(out.shape[0]):
        for config in range(1, out.shape[1]):
            for channel in range(out.shape[2]):
                least[place, channel] = min(least[place, channel], out[place, config, channel])
    return least


@compiled
@no_type_check
def _count_largest(rows, row_of, segment, out, holders):
    least = _least_over_configs(out)
    for node in range(len(row_of)):
        place = segment[node]
        if not _varies(row_of[node]):
            row = rows[row_of[node, 0]]
            for channel in range(out.shape[2]):
                if row[channel] == least[place, channel]:
                    for config in range(row_of.shape[1]):
                        if out[place, config, channel] == row[channel]:
                            holders[place, config, channel] += 1
            continue
        for config in range(row_of.shape[1]):
            row, most = rows[row_of[node, config]], out[place, config]
            count = holders[place, config]
            for channel in range(out.shape[2]):
                count[channel] += row[channel] == most[channel]


@compiled
@no_type_check
def _max_backward(rows, row_of, segment, out, shares, rows_gradient):
    least = _least_over_configs(out)
    for node in range(len(row_of)):
        place = segment[node]
        if not _varies(row_of[node]):
            row, total = rows[row_of[node, 0]], rows_gradient[row_of[node, 0]]
            for channel in range(out.shape[2]):
                if row[channel] == least[place, channel]:
                    for config in range(row_of.shape[1]):
                        if out[place, config, channel] == row[channel]:
                            total[channel] += shares[place, config, channel]
            continue
        for config in range(row_of.shape[1]):
            row, most = rows[row_of[node, config]], out[place, config]
            share, total = shares[place, config], rows_gradient[row_of[node, config]]
            for channel in range(out.shape[2]):
                total[channel] += share[channel] if row[channel] == most[channel] else 0.0
