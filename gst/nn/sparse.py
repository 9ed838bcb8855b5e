"""Sparse matrices times dense ones, forward and backward, and maxima over the entries of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from gst.util.compiled import compiled


@dataclass(frozen=True, eq=False)
class CsrMatrix:
    """A sparse matrix and its transpose (`_t`), both by rows, so that no backward pass ever sorts or scatters."""

    row_ptr: Int64[Tensor, " rows_plus_one"]
    columns: Int64[Tensor, " entries"]
    weights: Float[Tensor, " entries"]
    row_ptr_t: Int64[Tensor, " columns_plus_one"]
    columns_t: Int64[Tensor, " entries"]
    weights_t: Float[Tensor, " entries"]

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

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_ptr) - 1, len(self.row_ptr_t) - 1

    def transpose(self) -> CsrMatrix:
        return CsrMatrix(self.row_ptr_t, self.columns_t, self.weights_t, self.row_ptr, self.columns, self.weights)

    def to(self, device: torch.device) -> CsrMatrix:
        """The same matrix on a device. The host does not wait for its way to an accelerator."""
        ahead = device.type != "cpu"
        return CsrMatrix(*(getattr(self, entry.name).to(device, non_blocking=ahead) for entry in fields(self)))


@compiled
@no_type_check
def transposed(row_ptr, columns, values, num_columns):
    """Return the transpose of a CSR matrix, rows ascending within each of its rows, by a counting sort."""

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
        return product(ctx.matrix.transpose(), gradient), None


def row_sums(
    row_ptr: Int64[Tensor, " rows_plus_one"],
    columns: Int64[Tensor, " entries"],
    weights: Float[Tensor, " entries"],
    x: Float[Tensor, "columns *rest"],
) -> Float[Tensor, "rows *rest"]:
    """Row i is the sum of `weights[e] * x[columns[e]]` over e from `row_ptr[i]` to `row_ptr[i + 1]`; 0 without any."""
    if not len(columns) or not x[:1].numel():
        return x.new_zeros(len(row_ptr) - 1, *x.shape[1:])
    flat = x.detach().reshape(len(x), -1).contiguous()  # detached, it keeps nothing for a backward pass of its own
    summed = sums(row_ptr, columns, weights.to(x.dtype), flat)
    return torch.ops.aten._unsafe_view(summed, [len(summed), *x.shape[1:]])  # may be written into, unlike a view


def _native_sums(row_ptr: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """Return sums by embedding_bag: PyTorch's fastest CSR product on a CPU, with bf16 added up in float32."""
    return nn.functional.embedding_bag(
        columns, x, row_ptr, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def torch_sparse_sums(row_ptr: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """Return sums by torch-sparse (`make sparse`), added up in the dtype of x."""
    import torch_sparse  # noqa: F401 (which registers its operators)

    return torch.ops.torch_sparse.spmm_sum(None, row_ptr, columns, weights, None, None, x)


sums = _native_sums
"""Computes all products of this process: the faster one; `gst.nn.sparse.sums = torch_sparse_sums` chooses the other."""


def rows_of(row_ptr: Int64[Tensor, " rows_plus_one"], num_entries: int) -> Int64[Tensor, " entries"]:
    """The row of each entry; without their number the host would ask the device for it."""
    return torch.repeat_interleave(row_ptr.diff(), output_size=num_entries)


def rounded(count: int) -> int:
    """Return a number of rows rounded up to the next of 16 steps in every doubling: at most 6 % more.

    A matrix kernel is made anew for every number of rows: with a new one in every step, products take up to 1.7 times
    as long and the process grows.
    """
    step = 1 << max(count.bit_length() - 5, 0)
    return -(-count // step) * step


def by_rows(function: Callable[[Tensor], Tensor], x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows channels"]:
    """`function(x)` of a function that looks at each row alone, computed on a rounded number of rows."""
    return function(nn.functional.pad(x, (0, 0, 0, rounded(len(x)) - len(x))))[: len(x)]


def neighbour_max(matrix: CsrMatrix, x: Float[Tensor, "senders channels"]) -> Float[Tensor, "receivers channels"]:
    """Return for every row of `matrix` and every channel the largest of `x` over its entries; 0 without entries.

    Senders that are largest together share the gradient, so that no order of nodes or edges matters."""
    sent = x.index_select(0, matrix.columns)
    receivers = rows_of(matrix.row_ptr, len(sent))[:, None].expand_as(sent)
    largest = x.new_full((matrix.shape[0], x.shape[1]), -torch.inf).scatter_reduce(0, receivers, sent, "amax")
    return largest.masked_fill(torch.isneginf(largest), 0.0)


def check_heads(channels: int, heads: int) -> None:
    if heads < 1 or channels % heads:
        raise ValueError(f"{heads} heads cannot share {channels} channels; take a number of heads that divides them")
