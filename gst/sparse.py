"""A sparse matrix times a dense one, forward and backward: what message passing and pooling are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class CsrMatrix:
    """A sparse matrix beside its transpose, both by rows, so that no backward pass ever sorts or scatters.

    Args:
        row_ptr, columns, weights: row i holds `weights[row_ptr[i]:row_ptr[i+1]]` in those `columns`.
        row_ptr_t, columns_t, weights_t: the transpose, in the same way.
    """

    row_ptr: Int64[Tensor, " rows_plus_one"]
    columns: Int64[Tensor, " entries"]
    weights: Float64[Tensor, " entries"]
    row_ptr_t: Int64[Tensor, " columns_plus_one"]
    columns_t: Int64[Tensor, " entries"]
    weights_t: Float64[Tensor, " entries"]

    @staticmethod
    def from_entries(
        rows: Int64[Tensor, " entries"],
        columns: Int64[Tensor, " entries"],
        shape: tuple[int, int],
        weights: Float64[Tensor, " entries"] | None = None,
    ) -> CsrMatrix:
        """Entries in any order; those at one place add up. `weights` are 1 if not given."""
        if weights is None:
            weights = torch.ones(len(rows), dtype=torch.double, device=rows.device)
        by_row, by_column = torch.argsort(rows, stable=True), torch.argsort(columns, stable=True)
        return CsrMatrix(
            pointers(rows, shape[0]), columns[by_row], weights[by_row],
            pointers(columns, shape[1]), rows[by_column], weights[by_column],
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_ptr) - 1, len(self.row_ptr_t) - 1

    def transposed(self) -> CsrMatrix:
        return CsrMatrix(
            self.row_ptr_t, self.columns_t, self.weights_t, self.row_ptr, self.columns, self.weights
        )  # fmt: skip


def pointers(rows: Int64[Tensor, " entries"], num_rows: int) -> Int64[Tensor, " rows_plus_one"]:
    """Where each row begins among entries sorted by row."""
    return nn.functional.pad(torch.bincount(rows, minlength=num_rows).cumsum(0), (1, 0))


def product(matrix: CsrMatrix, x: Float[Tensor, "columns *rest"]) -> Float[Tensor, "rows *rest"]:
    """`matrix @ x`, in the dtype of x (sums are taken in float32 where x is bf16)."""
    return _Product.apply(x, matrix)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: CsrMatrix) -> Tensor:
        ctx.matrix = matrix
        return _rows(matrix.row_ptr, matrix.columns, matrix.weights, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        matrix = ctx.matrix
        return _rows(matrix.row_ptr_t, matrix.columns_t, matrix.weights_t, gradient), None


def _rows(row_ptr: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """embedding_bag is PyTorch's fastest CSR product on a CPU, several times so when it is given weights, and it knows
    bf16 and CUDA."""
    if not len(columns) or not x[:1].numel():
        return x.new_zeros(len(row_ptr) - 1, *x.shape[1:])
    flat = x.reshape(len(x), -1).contiguous()
    summed = nn.functional.embedding_bag(
        columns, flat, row_ptr, mode="sum", include_last_offset=True, per_sample_weights=weights.to(x.dtype)
    )
    return torch.ops.aten._unsafe_view(summed, [len(summed), *x.shape[1:]])  # may be written into, unlike a view
