"""Readouts that decompose over segments: nodes -> segment -> graph gives what nodes -> graph would give."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
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


def pool_nodes(states: NodeStates, batch: SegmentBatch, pooling: Pooling) -> Float[Tensor, "segments configs channels"]:
    """Pool the owned nodes of each segment, of which there is at least one; in float32 if the states are shorter."""
    reached = states.num_reached
    ends = batch.segment_of_node[states.order], batch.owned[states.order]
    first, others = [end[:reached] for end in ends], [end[reached:] for end in ends]
    each = _pool(_at_least_single(states.each), *first, batch.node_counts, pooling)
    once = _pool(_at_least_single(states.once), *others, batch.node_counts, pooling)[:, None]
    return torch.maximum(each, once) if pooling == "max" else each + once


def _at_least_single(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _pool(
    rows: Float[Tensor, "nodes *rest"],
    segment_of_row: Int64[Tensor, " nodes"],
    owned: Bool[Tensor, " nodes"],
    node_counts: Int64[Tensor, " segments"],
    pooling: Pooling,
) -> Float[Tensor, "segments *rest"]:
    """Segments without rows get what changes nothing: 0, or -inf for the maximum."""
    if pooling == "max":
        return _largest(rows[owned], segment_of_row[owned], len(node_counts))
    columns = owned.nonzero().squeeze(1)
    segments = segment_of_row[columns]
    weights = node_counts[segments].double().reciprocal() if pooling == "mean" else None
    return product(CsrMatrix.from_entries(segments, columns, (len(node_counts), len(rows)), weights), rows)


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
