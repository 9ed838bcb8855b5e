"""Slow twins of what a row hears: entry by entry of a sparse matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from gst.nn.sparse import CsrMatrix

Entries = list[tuple[int, int, float]]
"""(row, column, weight)"""


def random_entries(seed: int, rows: int, columns: int, count: int) -> Entries:
    """Anywhere; several may stand in one place, and some rows are empty."""
    generator = torch.Generator().manual_seed(seed)
    places = [torch.randint(n, (count,), generator=generator).tolist() for n in (rows, columns)]
    return list(zip(*places, torch.rand(count, generator=generator).double().tolist(), strict=True))


def as_matrix(entries: Entries, rows: int, columns: int) -> CsrMatrix:
    ends = torch.tensor([entry[:2] for entry in entries], dtype=torch.long).view(-1, 2)
    weights = torch.tensor([entry[2] for entry in entries], dtype=torch.double)
    return CsrMatrix.from_entries(ends[:, 0], ends[:, 1], (rows, columns), weights)


def heard(entries: Entries, row: int) -> list[tuple[int, float]]:
    return [(column, weight) for i, column, weight in entries if i == row]


def slow_product(entries: Entries, rows: int, x: Tensor) -> Tensor:
    sums = [sum((weight * x[u] for u, weight in heard(entries, v)), torch.zeros_like(x[0])) for v in range(rows)]
    return torch.stack(sums)


def slow_max(entries: Entries, rows: int, x: Tensor) -> Tensor:
    """torch.amax shares the gradient of equal maxima."""
    lists = [[x[u] for u, _ in heard(entries, v)] for v in range(rows)]
    return torch.stack([torch.stack(each).amax(0) if each else torch.zeros_like(x[0]) for each in lists])
