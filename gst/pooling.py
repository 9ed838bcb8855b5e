"""Readouts that decompose over segments: nodes -> segment -> graph gives what nodes -> graph would give."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

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
    embeddings: Float[Tensor, "nodes configs channels"],
    segment_of_node: Int64[Tensor, " nodes"],
    owned: Bool[Tensor, " nodes"],
    node_counts: Int64[Tensor, " segments"],
    pooling: Pooling,
) -> Float[Tensor, "segments configs channels"]:
    """Pool the owned nodes of each segment; every segment owns at least one."""
    if not bool(owned.all()):
        embeddings, segment_of_node = embeddings[owned], segment_of_node[owned]
    shape = (len(node_counts), *embeddings.shape[1:])
    if pooling == "max":
        index = segment_of_node[:, None, None].expand_as(embeddings)
        return embeddings.new_full(shape, -torch.inf).scatter_reduce(0, index, embeddings, "amax", include_self=True)
    total = embeddings.new_zeros(shape).index_add(0, segment_of_node, embeddings)
    return total / node_counts[:, None, None] if pooling == "mean" else total


def pool_segments(
    embeddings: Float[Tensor, "segments configs channels"],
    weights: Float[Tensor, "segments configs"],
    node_counts: Int64[Tensor, " segments"],
    graph_of_segment: Int64[Tensor, " segments"],
    graph_node_counts: Int64[Tensor, " graphs"],
    pooling: Pooling,
) -> Float[Tensor, "graphs configs channels"]:
    """Combine segments into graphs. `mean` weighs each segment by its share of all nodes of the graph, whether or
    not the other segments are here; `max` takes the segments with weight > 0 as they are. A graph of which no
    segment is here is zero."""
    shape = (len(graph_node_counts), *embeddings.shape[1:])
    if pooling == "max":
        present = torch.where(weights[..., None] > 0, embeddings, -torch.inf)
        index = graph_of_segment[:, None, None].expand_as(embeddings)
        largest = embeddings.new_full(shape, -torch.inf).scatter_reduce(0, index, present, "amax", include_self=True)
        return torch.where(torch.isneginf(largest), 0.0, largest)
    if pooling == "mean":
        weights = weights * (node_counts / graph_node_counts[graph_of_segment])[:, None]
    return embeddings.new_zeros(shape).index_add(
        0, graph_of_segment, embeddings * weights[..., None].to(embeddings.dtype)
    )
