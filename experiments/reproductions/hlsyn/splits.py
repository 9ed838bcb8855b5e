"""Splits of HLSyn designs into training and test: by family, by program, by twins, and a few labels of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FAMILIES = {
    "2mm": "mm", "3mm": "mm", "gemm-blocked": "gemm", "gemm-ncubed": "gemm", "spmv-crs": "spmv", "syrk": "syr",
    "spmv-ellpack": "spmv", "stencil-3d": "stencil", "syr2k": "syr", "jacobi-1d": "jacobi", "jacobi-2d": "jacobi",
}  # fmt: skip
SIZES = ("-medium", "-large", "-red", "-opt")


def family(name: str) -> str:
    """The family of a kernel: its sizes, versions and near relatives.

    Examples:
        >>> family("symm-opt-medium"), family("syr2k"), family("atax")
        ('symm', 'syr', 'atax')
    """
    for _ in SIZES:
        for ending in SIZES:
            name = name.removesuffix(ending)
    return FAMILIES.get(name, name)


def by_group(groups: Sequence[str], folds: int, seed: int) -> np.ndarray:
    """The fold of each row; rows of equal groups are in one fold.

    Examples:
        >>> folds = by_group(["atax", "bicg", "atax", "mm"], 2, seed=0)
        >>> bool(folds[0] == folds[2]), sorted(set(folds.tolist()))
        (True, [0, 1])
    """
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[place]: number % folds for number, place in enumerate(order)}
    return np.array([fold[name] for name in groups])


def few_labels(programs: np.ndarray, twins: np.ndarray, count: int, seed: int) -> np.ndarray:
    """True for about `count` rows of each program, in different groups of twins, whose labels are given."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros(len(programs), bool)
    for program in np.unique(programs):
        rows = rng.permutation(np.flatnonzero(programs == program))
        _, first = np.unique(twins[rows], return_index=True)
        chosen[rows[np.sort(first)[:count]]] = True
    return chosen
