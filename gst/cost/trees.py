"""Regression trees as plain arrays: what gradient boosting leaves behind, without the library that trained it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64


class Trees(NamedTuple):
    """Regression trees whose predictions are added.

    Args:
        base: what is added to.
        feature: column that each node compares; -1 at a leaf.
        threshold: rows of at most so much go left.
        left, right: children of each node.
        value: of each leaf.
        roots: node at which each tree begins.
    """

    base: float
    feature: Int64[np.ndarray, " nodes"]
    threshold: Float64[np.ndarray, " nodes"]
    left: Int64[np.ndarray, " nodes"]
    right: Int64[np.ndarray, " nodes"]
    value: Float64[np.ndarray, " nodes"]
    roots: Int64[np.ndarray, " trees"]

    def predict(self, columns: Float[np.ndarray, "rows columns"]) -> Float64[np.ndarray, " rows"]:
        """Sum of the leaves that each row ends in."""
        rows = np.arange(len(columns))[:, None]
        node = np.repeat(self.roots[None], len(columns), axis=0)
        while (self.feature[node] >= 0).any():
            inner = self.feature[node] >= 0
            is_left = columns[rows, np.maximum(self.feature[node], 0)] <= self.threshold[node]
            node = np.where(inner, np.where(is_left, self.left[node], self.right[node]), node)
        return self.base + self.value[node].sum(axis=1)
