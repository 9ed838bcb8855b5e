"""Times of sparse products and maxima by each backend."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gst.execution.measure import measure
from gst.machine.devices import machine_record
from gst.nn.sparse import Backend, CsrMatrix, has_torch_sparse, neighbour_max, product, set_backend
from gst.util.progress import Progress, no_progress

SHAPES = ((4_000, 8_192), (40_000, 256), (1_000_000, 32))  # rows, numbers in a row
EDGES_PER_ROW = 2
DTYPES = (torch.float32, torch.bfloat16)
REPETITIONS = 7

Reduction = Callable[[Tensor], Tensor]


def run(
    progress: Progress = no_progress, shapes: tuple[tuple[int, int], ...] = SHAPES, repetitions: int = REPETITIONS
) -> dict[str, Any]:
    """Measure random graphs of `EDGES_PER_ROW` edges a row.

    Returns:
        cases: `reduction` (sum or max), `rows`, `width`, `dtype`, `backward` (False: forward only) and the median
            milliseconds of `native` and `torch_sparse`, the two backends of this project, and of what the libraries
            offer themselves: `SparseTensor` (torch-sparse), `segment_csr` (torch-scatter, after a gather; max only),
            `csr` (torch.sparse; sum only). None where a library cannot do it; missing where it is not installed.
        faster: by device and dtype, the backend with the smaller sum of times; `by` how many times.
        machine: see `gst.machine.devices.machine_record`.
    """
    settings = list(itertools.product(shapes, DTYPES, ("sum", "max"), (False, True)))
    cases = []
    try:
        for done, ((rows, width), dtype, reduction, backward) in enumerate(settings):
            progress(f"{reduction} of {rows} x {width} {dtype}", done, len(settings))
            case = {"reduction": reduction, "rows": rows, "width": width, "dtype": str(dtype).removeprefix("torch.")}
            times = _times(rows, width, dtype, reduction, backward, repetitions)
            cases.append(case | {"backward": backward} | times)
    finally:
        set_backend("native")
    progress("done", len(settings), len(settings))
    return {"cases": cases, "faster": _faster(cases), "machine": machine_record()}


def _times(
    rows: int, width: int, dtype: torch.dtype, reduction: str, backward: bool, repetitions: int
) -> dict[str, float | None]:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(rows, (2, EDGES_PER_ROW * rows), generator=generator)
    matrix = CsrMatrix.from_entries(ends[1], ends[0], (rows, rows))
    x = torch.randn(rows, width, generator=generator).to(dtype).requires_grad_(backward)
    gradient = torch.randn(rows, width, generator=generator).to(dtype)

    def timed(reduce: Reduction) -> Callable[[], object]:
        def once() -> object:
            out = reduce(x)
            return torch.autograd.grad(out, x, gradient) if backward else out

        return once

    candidates = _sums(matrix, dtype) if reduction == "sum" else _maxima(matrix)
    seen = measure({label: timed(reduce) for label, reduce in candidates.items()}, repetitions, warmup=2)
    return {label: round(each.median_ms, 2) if each.outcome == "ok" else None for label, each in seen.items()}


def _sums(matrix: CsrMatrix, dtype: torch.dtype) -> dict[str, Reduction]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.sparse says that it is in beta
        csr = torch.sparse_csr_tensor(matrix.row_ptr, matrix.columns, matrix.weights.to(dtype), matrix.shape)
    candidates: dict[str, Reduction] = {"native": _by("native", matrix, product), "csr": lambda x: csr @ x}
    if has_torch_sparse():
        adjacency = _sparse_tensor(matrix, dtype)
        candidates["torch_sparse"] = _by("torch_sparse", matrix, product)
        candidates["SparseTensor"] = lambda x: adjacency.matmul(x, reduce="sum")
    return candidates


def _maxima(matrix: CsrMatrix) -> dict[str, Reduction]:
    candidates: dict[str, Reduction] = {"native": _by("native", matrix, neighbour_max)}
    if has_torch_sparse():
        from torch_scatter import segment_csr

        adjacency = _sparse_tensor(matrix, None)
        candidates["torch_sparse"] = _by("torch_sparse", matrix, neighbour_max)
        candidates["SparseTensor"] = lambda x: adjacency.matmul(x, reduce="max")
        candidates["segment_csr"] = lambda x: segment_csr(
            x.index_select(0, matrix.columns), matrix.row_ptr, reduce="max"
        )
    return candidates


def _by(backend: Backend, matrix: CsrMatrix, reduce: Callable[[CsrMatrix, Tensor], Tensor]) -> Reduction:
    def chosen(x: Tensor) -> Tensor:
        set_backend(backend)
        return reduce(matrix, x)

    return chosen


def _sparse_tensor(matrix: CsrMatrix, dtype: torch.dtype | None) -> Any:
    """With everything that it would work out in its first backward pass."""
    from torch_sparse import SparseTensor

    value = None if dtype is None else matrix.weights.to(dtype)
    return SparseTensor(rowptr=matrix.row_ptr, col=matrix.columns, value=value, sparse_sizes=matrix.shape).fill_cache_()


def _faster(cases: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Only where both backends ran."""
    result = {}
    for dtype in sorted({case["dtype"] for case in cases}):
        both = [case for case in cases if case["dtype"] == dtype and case.get("torch_sparse") and case["native"]]
        if both:
            native, other = (sum(case[name] for case in both) for name in ("native", "torch_sparse"))
            winner = "native" if native <= other else "torch_sparse"
            result[f"cpu {dtype}"] = {"backend": winner, "by": round(max(native, other) / min(native, other), 2)}
    return result
