"""Graph attention: neighbours weighted by a softmax over scores of sender and receiver, as in GAT."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.nn.edges import Edges
from gst.nn.sparse import CsrMatrix
from gst.nn.sparse_kernels import row_sums

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
