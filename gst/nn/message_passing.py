"""Neighbourhood sums and means: a sparse (CSR) product forward, the product with its transpose backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Who sends to whom, as two CSR matrices that are each other's transpose.

    Args:
        num_nodes: nodes on either side.
        row_ptr, senders: `senders[row_ptr[v]:row_ptr[v+1]]` send to node v.
        row_ptr_t, receivers: `receivers[row_ptr_t[u]:row_ptr_t[u+1]]` hear from node u.
    """

    num_nodes: int
    row_ptr: Int64[Tensor, " nodes_plus_one"]
    senders: Int64[Tensor, " edges"]
    row_ptr_t: Int64[Tensor, " nodes_plus_one"]
    receivers: Int64[Tensor, " edges"]

    @staticmethod
    def from_edges(edge_index: Int64[Tensor, "2 edges"], num_nodes: int) -> Adjacency:
        """Row 0 of `edge_index` sends to row 1."""
        source, target = edge_index
        by_target, by_source = torch.argsort(target, stable=True), torch.argsort(source, stable=True)
        return Adjacency(
            num_nodes,
            _pointers(target, num_nodes),
            source[by_target],
            _pointers(source, num_nodes),
            target[by_source],
        )

    def reversed(self) -> Adjacency:
        """Every edge the other way round."""
        return Adjacency(self.num_nodes, self.row_ptr_t, self.receivers, self.row_ptr, self.senders)

    def degrees(self) -> Int64[Tensor, " nodes"]:
        """How many nodes send to each node."""
        return self.row_ptr.diff()


def _pointers(rows: Tensor, num_nodes: int) -> Tensor:
    return nn.functional.pad(torch.bincount(rows, minlength=num_nodes).cumsum(0), (1, 0))


def neighbour_sum(x: Float[Tensor, "nodes *rest"], adjacency: Adjacency) -> Float[Tensor, "nodes *rest"]:
    """For every node the sum of what is sent to it; 0 where nothing is."""
    return _CsrProduct.apply(x.reshape(len(x), -1), adjacency).view_as(x)


def neighbour_mean(x: Float[Tensor, "nodes *rest"], adjacency: Adjacency) -> Float[Tensor, "nodes *rest"]:
    """For every node the mean of what is sent to it; 0 where nothing is."""
    scale = adjacency.degrees().clamp(min=1).to(x.dtype).reciprocal()
    return neighbour_sum(x, adjacency) * scale.view(-1, *[1] * (x.dim() - 1))


class _CsrProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        return _product(adjacency.row_ptr, adjacency.senders, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _product(ctx.adjacency.row_ptr_t, ctx.adjacency.receivers, gradient), None


def _product(row_ptr: Tensor, columns: Tensor, x: Tensor) -> Tensor:
    """Row v is the sum of x over columns[row_ptr[v]:row_ptr[v+1]]: a CSR matrix of ones times x."""
    return nn.functional.embedding_bag(columns, x.contiguous(), row_ptr, mode="sum", include_last_offset=True)
