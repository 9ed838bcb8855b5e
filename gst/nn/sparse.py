"""Sparse matrices times dense ones, forward and backward, and maxima and attention over single edges.

Two backends compute them: PyTorch alone (native), or torch-sparse and torch-scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Literal, get_args, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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


Backend = Literal["native", "torch_sparse"]

_backend: Backend = "native"  # the faster one, by experiments/results/backends.json


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
    """True if torch-sparse and torch-scatter are installed."""
    return find_spec("torch_sparse") is not None and find_spec("torch_scatter") is not None


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
    kernel = _torch_sparse_sums if _backend == "torch_sparse" else _native_sums
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
    kernel = _torch_sparse_maxima if _backend == "torch_sparse" else _native_maxima
    return kernel(row_ptr, columns, flat).view(rows, *x.shape[1:])


def _native_sums(row_ptr: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """Return sums by embedding_bag: PyTorch's fastest CSR product on a CPU, with bf16 added up in float32."""
    return nn.functional.embedding_bag(
        columns, x, row_ptr, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def _native_maxima(row_ptr: Tensor, columns: Tensor | None, x: Tensor) -> Tensor:
    sent = x if columns is None else x.index_select(0, columns)
    least = x.new_full((len(row_ptr) - 1, x.shape[1]), -torch.inf)
    return least.scatter_reduce(0, rows_of(row_ptr, len(sent))[:, None].expand_as(sent), sent, "amax")


def _torch_sparse_sums(row_ptr: Tensor, columns: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """Return sums by torch-sparse, added up in the dtype of x."""
    _load()
    return torch.ops.torch_sparse.spmm_sum(None, row_ptr, columns, weights, None, None, x)


def _torch_sparse_maxima(row_ptr: Tensor, columns: Tensor | None, x: Tensor) -> Tensor:
    """Return maxima by torch-sparse or torch-scatter, which give 0 for an empty row."""
    _load()
    if columns is None:
        largest = torch.ops.torch_scatter.segment_max_csr(x, row_ptr, None)[0]
    else:
        largest = torch.ops.torch_sparse.spmm_max(row_ptr, columns, None, x)[0]
    return largest.masked_fill_((row_ptr.diff() == 0)[:, None], -torch.inf)


def _load() -> None:
    """Import both libraries, which registers their operators."""
    import torch_scatter  # noqa: F401
    import torch_sparse  # noqa: F401


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


@dataclass(frozen=True, eq=False)
class Edges:
    """The entries of a sparse matrix, by row: rows are receivers, columns senders."""

    receivers: CsrMatrix
    senders: CsrMatrix

    @staticmethod
    def of(matrix: CsrMatrix) -> Edges:
        columns, ones = matrix.columns, torch.ones_like(matrix.weights)
        numbers = torch.arange(len(columns) + 1, dtype=columns.dtype, device=columns.device)
        receivers = CsrMatrix(
            numbers, rows_of(matrix.row_ptr, len(matrix.columns)), ones, matrix.row_ptr, numbers[:-1], ones
        )
        by_sender = columns.argsort(stable=True)
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

    def by_receiver(self, messages: Float[Tensor, "edges channels"]) -> Float[Tensor, "receivers channels"]:
        """Return the sum of the messages to each receiver."""
        return product(self.receivers.transpose(), messages)


def neighbour_max(matrix: CsrMatrix, x: Float[Tensor, "senders channels"]) -> Float[Tensor, "receivers channels"]:
    """Return for every row of `matrix` and every channel the largest of `x` over its entries; 0 without entries.

    Senders that are largest together share the gradient, so that no order of nodes or edges matters."""
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
        sent = largest_sent.mul_(share.index_select(0, edges.receiver))
        return product(edges.senders.transpose(), sent), None


SLOPE = 0.2  # of LeakyReLU below 0 (Velickovic et al. 2018, section 2.1)
BLOCK = 1 << 22  # numbers for each edge and channel held at once in a backward pass


def neighbour_attention(
    matrix: CsrMatrix,
    values: Float[Tensor, "senders channels"],
    sent: Float[Tensor, "senders heads"],
    heard: Float[Tensor, "receivers heads"],
) -> Float[Tensor, "receivers channels"]:
    """Return for every row v of `matrix` and every head the mean of the values of its entries u, weighted by
    softmax(leaky_relu(sent(u) + heard(v))) (Velickovic et al. 2018, eq. 3 and 4); 0 without entries.

    The channels of `values` are those of one head after the other.
    """
    edges = Edges.of(matrix)
    single = torch.promote_types(sent.dtype, torch.float32)
    scores = product(edges.senders, sent.to(single)) + edges.at_receiver(heard.to(single))
    logits = nn.functional.leaky_relu(scores, SLOPE)
    return _WeightedSum.apply(softmax(edges, logits), values, edges)


def check_heads(channels: int, heads: int) -> None:
    if heads < 1 or channels % heads:
        raise ValueError(f"{heads} heads cannot share {channels} channels; take a number of heads that divides them")


def softmax(edges: Edges, logits: Float[Tensor, "edges heads"]) -> Float[Tensor, "edges heads"]:
    """exp(logits), over its sum for each receiver. The largest is subtracted first, which changes nothing."""
    largest = row_maxima(edges.receivers.row_ptr_t, None, logits)
    powers = (logits - edges.at_receiver(largest)).exp()
    return powers / edges.at_receiver(edges.by_receiver(powers))


class _WeightedSum(torch.autograd.Function):
    """Sum of weight times value over the edges of each receiver and head; no tensor with edges and channels is kept."""

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
