"""The largest of what a row hears, channel by channel."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gst.nn.edges import Edges
from gst.nn.sparse import CsrMatrix
from gst.nn.sparse_kernels import row_maxima


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
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, largest = ctx.saved_tensors
        edges = Edges.of(ctx.matrix)
        largest_sent = x.index_select(0, edges.sender).eq_(largest.index_select(0, edges.receiver))  # 1 or 0
        share = gradient / edges.by_receiver(largest_sent).clamp_(min=1)
        return edges.by_sender(largest_sent.mul_(share.index_select(0, edges.receiver))), None
