"""Sums and maxima over the rows of a sparse matrix: by PyTorch itself, or by torch-sparse and torch-scatter.

None of these keeps anything for a backward pass; `gst.nn.sparse` and `gst.nn` do.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

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
    bf16, which it adds up in float32, and CUDA."""
    return nn.functional.embedding_bag(
        columns, x, row_ptr, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def _native_maxima(row_ptr: Tensor, columns: Tensor | None, x: Tensor) -> Tensor:
    sent = x if columns is None else x.index_select(0, columns)
    least = x.new_full((len(row_ptr) - 1, x.shape[1]), -torch.inf)
    return least.scatter_reduce(0, rows_of(row_ptr)[:, None].expand_as(sent), sent, "amax")


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


def rows_of(row_ptr: Int64[Tensor, " rows_plus_one"]) -> Int64[Tensor, " entries"]:
    """The row of each entry."""
    return torch.repeat_interleave(row_ptr.diff())
