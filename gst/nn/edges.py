"""Edges one by one, where a sum over neighbours is not enough: maxima and attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gst.nn.sparse import CsrMatrix, product, row_maxima, row_sums, rows_of


@dataclass(frozen=True, eq=False)
class Edges:
    """The entries of a sparse matrix, by row: rows are receivers, columns senders. Sums are products, both ways.

    Args:
        receivers: (edges, rows); its product gives each edge what its receiver has.
        senders: (edges, columns); the same for the sender.
    """

    receivers: CsrMatrix
    senders: CsrMatrix

    @staticmethod
    def of(matrix: CsrMatrix) -> Edges:
        columns, ones = matrix.columns, torch.ones_like(matrix.weights)
        numbers = torch.arange(len(columns) + 1, dtype=columns.dtype, device=columns.device)
        receivers = CsrMatrix(
            numbers, rows_of(matrix.row_ptr, len(matrix.columns)), ones, matrix.row_ptr, numbers[:-1], ones
        )
        by_sender = columns.argsort(stable=True)  # where the matrix lies: `CsrMatrix.picking` sorts on the host
        return Edges(receivers, CsrMatrix(numbers, columns, ones, matrix.row_ptr_t, by_sender, ones))

    @property
    def receiver(self) -> Int64[Tensor, " edges"]:
        return self.receivers.columns

    @property
    def sender(self) -> Int64[Tensor, " edges"]:
        return self.senders.columns

    def at_receiver(self, x: Float[Tensor, "receivers channels"]) -> Float[Tensor, "edges channels"]:
        """Return the row of the receiver of each edge."""
        return product(self.receivers, x)

    def at_sender(self, x: Float[Tensor, "senders channels"]) -> Float[Tensor, "edges channels"]:
        """Return the row of the sender of each edge."""
        return product(self.senders, x)

    def by_receiver(self, messages: Float[Tensor, "edges channels"]) -> Float[Tensor, "receivers channels"]:
        """The sum of what each receiver hears."""
        return product(self.receivers.transpose(), messages)

    def by_sender(self, messages: Float[Tensor, "edges channels"]) -> Float[Tensor, "senders channels"]:
        """The sum of what each sender sends."""
        return product(self.senders.transpose(), messages)

    def largest(self, messages: Float[Tensor, "edges channels"]) -> Float[Tensor, "receivers channels"]:
        """The maximum of what each receiver hears, -inf where it hears nothing. Without gradient."""
        return row_maxima(self.receivers.row_ptr_t, None, messages)


def neighbour_max(matrix: CsrMatrix, x: Float[Tensor, "senders channels"]) -> Float[Tensor, "receivers channels"]:
    """For every row of `matrix` and every channel the largest of `x` over its entries, whatever they weigh; 0 where
    there is none. Senders that are largest together share the gradient, so that no order of nodes or edges matters."""
    return _Maximum.apply(x, matrix)


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: CsrMatrix) -> Tensor:
        largest = row_maxima(matrix.row_ptr, matrix.columns, x)
        ctx.matrix = matrix
        ctx.save_for_backward(x, largest)
        return largest.masked_fill(torch.isneginf(largest), 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, largest = ctx.saved_tensors
        edges = Edges.of(ctx.matrix)
        largest_sent = x.index_select(0, edges.sender).eq_(largest.index_select(0, edges.receiver))  # 1 or 0
        share = gradient / edges.by_receiver(largest_sent).clamp_(min=1)
        return edges.by_sender(largest_sent.mul_(share.index_select(0, edges.receiver))), None


SLOPE = 0.2  # of LeakyReLU below 0 (Velickovic et al. 2018, section 2.1)
BLOCK = 1 << 22  # numbers for each edge and channel held at once in a backward pass


def neighbour_attention(
    matrix: CsrMatrix,
    values: Float[Tensor, "senders channels"],
    sent: Float[Tensor, "senders heads"],
    heard: Float[Tensor, "receivers heads"],
) -> Float[Tensor, "receivers channels"]:
    """For every row v of `matrix` and every head the mean of the values of its entries u, whatever they weigh there,
    weighted by softmax(leaky_relu(sent(u) + heard(v))) (Velickovic et al. 2018, eq. 3 and 4); 0 where there is none.

    Args:
        values: the channels of one head after the other.
        sent, heard: scores of a row when it sends and when it hears.
    """
    edges = Edges.of(matrix)
    single = torch.promote_types(sent.dtype, torch.float32)
    logits = nn.functional.leaky_relu(edges.at_sender(sent.to(single)) + edges.at_receiver(heard.to(single)), SLOPE)
    return _WeightedSum.apply(softmax(edges, logits), values, edges)


def check_heads(channels: int, heads: int) -> None:
    if heads < 1 or channels % heads:
        raise ValueError(f"{heads} heads cannot share {channels} channels; take a number of heads that divides them")


def softmax(edges: Edges, logits: Float[Tensor, "edges heads"]) -> Float[Tensor, "edges heads"]:
    """exp(logits), over its sum for each receiver. The largest is subtracted first, which changes nothing."""
    powers = (logits - edges.at_receiver(edges.largest(logits))).exp()
    return powers / edges.at_receiver(edges.by_receiver(powers))


class _WeightedSum(torch.autograd.Function):
    """For every receiver and head the sum of weight times value over its edges. No tensor with edges and channels is
    kept."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(weights, values)
        return _by_head(edges.receivers.row_ptr_t, edges.sender, weights, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, values = ctx.saved_tensors
        receiver, sender, by_sender = ctx.edges.receiver, ctx.edges.sender, ctx.edges.senders
        by_head, heard = values.unflatten(1, (weights.shape[1], -1)), gradient.unflatten(1, (weights.shape[1], -1))
        of_weights = torch.empty_like(weights)
        block = max(1, BLOCK // values.shape[1])
        for some in zip(of_weights.split(block), receiver.split(block), sender.split(block), strict=True):
            products = heard.index_select(0, some[1]) * by_head.index_select(0, some[2])
            torch.sum(products, -1, dtype=weights.dtype, out=some[0])
        order = by_sender.columns_t
        return of_weights, _by_head(by_sender.row_ptr_t, receiver[order], weights[order], gradient), None


def _by_head(
    row_ptr: Int64[Tensor, " rows_plus_one"],
    columns: Int64[Tensor, " edges"],
    weights: Float[Tensor, "edges heads"],
    x: Float[Tensor, "columns channels"],
) -> Float[Tensor, "rows channels"]:
    """One sparse product for all heads: the rows of the first, then those of the next."""
    (num_edges, heads), rows = weights.shape, len(row_ptr) - 1
    numbers = torch.arange(heads, device=columns.device)[:, None]
    starts = nn.functional.pad((row_ptr[:-1] + numbers * num_edges).flatten(), (0, 1), value=heads * num_edges)
    columns_of_head = (columns * heads + numbers).flatten()
    summed = row_sums(starts, columns_of_head, weights.T.flatten(), x.reshape(len(x) * heads, -1))
    return summed.unflatten(0, (heads, rows)).transpose(0, 1).flatten(1)
