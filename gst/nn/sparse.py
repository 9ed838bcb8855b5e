"""A sparse matrix times a dense one, forward and backward: what message passing and pooling are made of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from gst.nn.sparse_kernels import row_sums
from partitioners.compiled import compiled


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
        values = np.ones(len(rows)) if weights is None else weights.cpu().numpy()
        order = np.argsort(rows.cpu().numpy(), kind="stable")
        row_ptr = np.zeros(shape[0] + 1, np.int64)
        np.cumsum(np.bincount(rows.cpu().numpy(), minlength=shape[0]), out=row_ptr[1:])
        arrays = row_ptr, columns.cpu().numpy()[order], values[order]
        every = (*arrays, *transposed(*arrays, shape[1]))
        return CsrMatrix(*(torch.from_numpy(array) for array in every)).to(rows.device)

    @staticmethod
    def picking(columns: Int64[Tensor, " picked"], num_columns: int, num_rows: int | None = None) -> CsrMatrix:
        """The matrix whose product picks row `columns[i]` as row i; rows beyond them are zero."""
        row_ptr = np.minimum(np.arange((num_rows or len(columns)) + 1), len(columns))
        arrays = row_ptr, columns.cpu().numpy(), np.ones(len(columns))
        every = (*arrays, *transposed(*arrays, num_columns))
        return CsrMatrix(*(torch.from_numpy(array) for array in every)).to(columns.device)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_ptr) - 1, len(self.row_ptr_t) - 1

    def to(self, device: torch.device) -> CsrMatrix:
        return CsrMatrix(*(getattr(self, entry.name).to(device) for entry in fields(self)))


def transposed(
    row_ptr: Int64[np.ndarray, " rows_plus_one"],
    columns: Int64[np.ndarray, " entries"],
    values: Float64[np.ndarray, " entries"],
    num_columns: int,
) -> tuple[Int64[np.ndarray, " columns_plus_one"], Int64[np.ndarray, " entries"], Float64[np.ndarray, " entries"]]:
    """The transpose of a CSR matrix, rows ascending within each of its rows, by a counting sort."""
    return _transposed(row_ptr, columns, values, num_columns)


@compiled
@no_type_check
def _transposed(row_ptr, columns, values, num_columns):
    starts = np.zeros(num_columns + 1, np.int64)
    for column in columns:
        starts[column + 1] += 1
    starts = np.cumsum(starts)
    rows, moved, filled = np.empty(len(columns), np.int64), np.empty(len(columns)), starts[:-1].copy()
    for row in range(len(row_ptr) - 1):
        for entry in range(row_ptr[row], row_ptr[row + 1]):
            place = filled[columns[entry]]
            rows[place], moved[place] = row, values[entry]
            filled[columns[entry]] = place + 1
    return starts, rows, moved


def product(matrix: CsrMatrix, x: Float[Tensor, "columns *rest"]) -> Float[Tensor, "rows *rest"]:
    """`matrix @ x`, in the dtype of x."""
    return _Product.apply(x, matrix)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: CsrMatrix) -> Tensor:
        ctx.matrix = matrix
        return row_sums(matrix.row_ptr, matrix.columns, matrix.weights, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        matrix = ctx.matrix
        return row_sums(matrix.row_ptr_t, matrix.columns_t, matrix.weights_t, gradient), None
