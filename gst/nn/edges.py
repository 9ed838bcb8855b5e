"""Edges one by one, where a sum over neighbours is not enough: maxima and attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gst.nn.sparse import CsrMatrix, product
from gst.nn.sparse_kernels import row_maxima, rows_of


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
        ones, numbers = torch.ones_like(matrix.weights), torch.arange(len(matrix.columns) + 1).to(matrix.columns)
        receivers = CsrMatrix(numbers, rows_of(matrix.row_ptr), ones, matrix.row_ptr, numbers[:-1], ones)
        return Edges(receivers, CsrMatrix.picking(matrix.columns, matrix.shape[1]))

    @property
    def receiver(self) -> Int64[Tensor, " edges"]:
        return self.receivers.columns

    @property
    def sender(self) -> Int64[Tensor, " edges"]:
        return self.senders.columns

    def at_receiver(self, x: Float[Tensor, "receivers channels"]) -> Float[Tensor, "edges channels"]:
        """What the receiver of each edge has."""
        return product(self.receivers, x)

    def at_sender(self, x: Float[Tensor, "senders channels"]) -> Float[Tensor, "edges channels"]:
        """What the sender of each edge has."""
        return product(self.senders, x)

    def by_receiver(self, messages: Float[Tensor, "edges channels"]) -> Float[Tensor, "receivers channels"]:
        """The sum of what each receiver hears."""
        return product(_transpose(self.receivers), messages)

    def by_sender(self, messages: Float[Tensor, "edges channels"]) -> Float[Tensor, "senders channels"]:
        """The sum of what each sender sends."""
        return product(_transpose(self.senders), messages)

    def largest(self, messages: Float[Tensor, "edges channels"]) -> Float[Tensor, "receivers channels"]:
        """The maximum of what each receiver hears, -inf where it hears nothing. Without gradient."""
        return row_maxima(self.receivers.row_ptr_t, None, messages)


def _transpose(matrix: CsrMatrix) -> CsrMatrix:
    return CsrMatrix(
        matrix.row_ptr_t, matrix.columns_t, matrix.weights_t, matrix.row_ptr, matrix.columns, matrix.weights
    )  # fmt: skip
