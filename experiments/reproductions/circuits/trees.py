"""Gradient boosting of regression trees by scikit-learn, stored as plain arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64


class Trees(NamedTuple):
    """Regression trees whose predictions are added, as arrays of all nodes.

    Args:
        feature: column that each node compares; -1 at a leaf.
        threshold: rows up to this value go left.
        left, right: children of each node.
    """

    base: float
    feature: Int64[np.ndarray, " nodes"]
    threshold: Float64[np.ndarray, " nodes"]
    left: Int64[np.ndarray, " nodes"]
    right: Int64[np.ndarray, " nodes"]
    value: Float64[np.ndarray, " nodes"]
    roots: Int64[np.ndarray, " trees"]

    def predict(self, columns: Float[np.ndarray, "rows columns"]) -> Float64[np.ndarray, " rows"]:
        """Sum the leaves that each row ends in."""
        rows = np.arange(len(columns))[:, None]
        node = np.repeat(self.roots[None], len(columns), axis=0)
        while (self.feature[node] >= 0).any():
            inner = self.feature[node] >= 0
            is_left = columns[rows, np.maximum(self.feature[node], 0)] <= self.threshold[node]
            node = np.where(inner, np.where(is_left, self.left[node], self.right[node]), node)
        return self.base + self.value[node].sum(axis=1)


def train_trees(
    columns: Float[np.ndarray, "rows columns"],
    target: Float[np.ndarray, " rows"],
    seed: int,
    trees: int,
    leaves: int,
    rate: float,
    fewest: int,
    share: float,
) -> Trees:
    """Fit trees that are added one after the other.

    Args:
        trees, leaves: number of trees, and the most leaves of each.
        rate: learning rate.
        fewest: the least number of rows of a leaf.
        share: share of the columns, drawn anew at every node.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    boosting = HistGradientBoostingRegressor(
        max_iter=trees,
        learning_rate=rate,
        max_leaf_nodes=leaves,
        min_samples_leaf=fewest,
        l2_regularization=5.0,
        max_features=share,
        early_stopping=False,
        random_state=seed,
    ).fit(columns.astype(np.float64), target)
    nodes_of = [predictors[0].nodes for predictors in boosting._predictors]
    roots = np.cumsum([0, *map(len, nodes_of)])[:-1]
    nodes = np.concatenate(nodes_of)
    shift = np.repeat(roots, [len(tree) for tree in nodes_of])
    is_leaf = nodes["is_leaf"].astype(bool)
    return Trees(
        base=float(np.ravel(boosting._baseline_prediction)[0]),
        feature=np.where(is_leaf, -1, nodes["feature_idx"]).astype(np.int64),
        threshold=nodes["num_threshold"].astype(np.float64),
        left=nodes["left"].astype(np.int64) + shift,
        right=nodes["right"].astype(np.int64) + shift,
        value=np.where(is_leaf, nodes["value"], 0.0),
        roots=roots.astype(np.int64),
    )
