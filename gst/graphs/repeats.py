"""Which configurations of a graph are the same one, measured again."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, Shaped


def groups_of_equals(
    config_features: Shaped[np.ndarray, "configs configurable channels"],
) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " configs"]]:
    """The first of each distinct configuration, in order of appearance, and for every one which of them it equals."""
    rows: np.ndarray = np.ascontiguousarray(config_features).reshape(len(config_features), -1)
    if rows.shape[1]:
        rows = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    else:
        rows = np.zeros(len(rows))  # nothing to tell them apart
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[group]
