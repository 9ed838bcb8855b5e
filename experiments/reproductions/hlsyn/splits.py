"""Splits of HLSyn designs into training and test: by family, by program, by twins, and a few labels of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
