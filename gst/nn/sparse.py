"""Sparse matrices times dense ones, forward and backward: what message passing and pooling are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Literal, get_args, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from gst.util.compiled import compiled


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

    def transpose(self) -> CsrMatrix:
        return CsrMatrix(
            self.row_ptr_t, self.columns_t, self.weights_t, self.row_ptr, self.columns, self.weights
        )  # fmt: skip

    def to(self, device: torch.device) -> CsrMatrix:
        """The same matrix on a device. The host does not wait for its way to an accelerator."""
        ahead = device.type != "cpu"
        return CsrMatrix(*(getattr(self, entry.name).to(device, non_blocking=ahead) for entry in fields(self)))


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
        return product(ctx.matrix.transpose(), gradient), None


Backend = Literal["auto", "native", "torch_sparse"]

FASTER: dict[tuple[str, torch.dtype], Backend] = {
    ("cpu", torch.float32): "native",
    ("cpu", torch.bfloat16): "native",
}
"""What `auto` takes, as measured by `experiments.bench backends` (experiments/results/backends.json: native is
faster in every case there); what was not measured is native."""

_backend: Backend = "auto"


def set_backend(name: Backend) -> None:
    """Choose what computes the sparse products from now on, in this process.

    Raises:
        ValueError: no backend has this name.
        ModuleNotFoundError: it is not installed.
    """
    global _backend
    if name not in get_args(Backend):
        raise ValueError(f"backend {name!r}? sparse products are computed by one of {', '.join(get_args(Backend))}")
    if name == "torch_sparse" and not has_torch_sparse():
        raise ModuleNotFoundError(
            "backend 'torch_sparse' needs torch-sparse and torch-scatter, which are not installed; build them with "
            "`make sparse`, or use 'native'"
        )
    _backend = name


def has_torch_sparse() -> bool:
    return find_spec("torch_sparse") is not None and find_spec("torch_scatter") is not None


def backend_for(x: Tensor) -> Backend:
    """The backend that a product with `x` uses."""
    if _backend != "auto":
        return _backend
    faster = FASTER.get((x.device.type, x.dtype), "native")
    return faster if faster == "native" or has_torch_sparse() else "native"


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
    kernel = _torch_sparse_sums if backend_for(x) == "torch_sparse" else _native_sums
    summed = kernel(row_ptr, columns, weights.to(x.dtype), flat)
    return torch.ops.aten._unsafe_view(summed, [len(summed), *x.shape[1:]])  # may be written into, unlike a view


def row_maxima(
    row_ptr: Int64[Tensor, " rows_plus_one"],
    columns: Int64[Tensor, " entries"] | None,
    x: Float[Tensor, "columns *rest"],
) -> Float[Tensor, "rows *rest"]:
    """Row i is the largest of `x[columns[e]]`, or of `x[e]` without `columns`, for each place of `rest`; -inf if it is
    empty."""
    rows = len(row_ptr) - 1
    if not len(x) or (columns is not None and not len(columns)) or not x[:1].numel():
        return x.new_full((rows, *x.shape[1:]), -torch.inf)
    flat = x.detach().reshape(len(x), -1).contiguous()
    kernel = _torch_sparse_maxima if backend_for(x) == "torch_sparse" else _native_maxima
    return kernel(row_ptr, columns, flat).view(rows, *x.shape[1:])


def _native_sums(row_ptr: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """embedding_bag is PyTorch's fastest CSR product on a CPU, several times so when it is given weights, and it knows
    bf16, which it adds up in float32, and accelerators."""
    return nn.functional.embedding_bag(
        columns, x, row_ptr, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def _native_maxima(row_ptr: Tensor, columns: Tensor | None, x: Tensor) -> Tensor:
    sent = x if columns is None else x.index_select(0, columns)
    least = x.new_full((len(row_ptr) - 1, x.shape[1]), -torch.inf)
    return least.scatter_reduce(0, rows_of(row_ptr, len(sent))[:, None].expand_as(sent), sent, "amax")


def _torch_sparse_sums(row_ptr: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """It adds up in the dtype of x."""
    _load()
    return torch.ops.torch_sparse.spmm_sum(None, row_ptr, columns, weights, None, None, x)


def _torch_sparse_maxima(row_ptr: Tensor, columns: Tensor | None, x: Tensor) -> Tensor:
    """Both libraries give 0 for an empty row."""
    _load()
    if columns is None:
        largest = torch.ops.torch_scatter.segment_max_csr(x, row_ptr, None)[0]
    else:
        largest = torch.ops.torch_sparse.spmm_max(row_ptr, columns, None, x)[0]
    return largest.masked_fill_((row_ptr.diff() == 0)[:, None], -torch.inf)


def _load() -> None:
    """Importing them registers their operators."""
    import torch_scatter  # noqa: F401
    import torch_sparse  # noqa: F401


def rows_of(row_ptr: Int64[Tensor, " rows_plus_one"], num_entries: int) -> Int64[Tensor, " entries"]:
    """The row of each entry; without their number the host would ask the device for it."""
    return torch.repeat_interleave(row_ptr.diff(), output_size=num_entries)


def rounded(count: int) -> int:
    """A number of rows rounded up to the next of 16 steps in every doubling: at most 6 % more.

    A matrix kernel is made for one number of rows, and made anew, with memory of its own, for every other: with a new
    number of rows in every step, products take up to 1.7 times as long and the process grows.
    """
    step = 1 << max(count.bit_length() - 5, 0)
    return -(-count // step) * step


def by_rows(function: Callable[[Tensor], Tensor], x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows channels"]:
    """`function(x)` of a function that looks at each row alone, computed on a rounded number of rows."""
    return function(nn.functional.pad(x, (0, 0, 0, rounded(len(x)) - len(x))))[: len(x)]
