"""Gradient boosting of regression trees by scikit-learn, kept as plain arrays."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from experiments.reproductions.timm.step_time.model import Trees


def train_trees(
    columns: Float[np.ndarray, "rows columns"], target: Float[np.ndarray, " rows"], weight: Float[np.ndarray, " rows"],
    seed: int, trees: int = 150, leaves: int = 12, rate: float = 0.06, fewest: int = 60, share: float = 1.0,
    loss: str = "squared_error",
) -> Trees:  # fmt: skip
    """Trees that are added one after the other.

    Args:
        trees, leaves: how many, and of each at most.
        rate: learning rate.
        fewest: rows of a leaf.
        share: of the columns, drawn anew at every node.
        loss: as scikit-learn names it; with `log_loss`, targets are 0 and 1, and predictions are log odds.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if loss == "log_loss" else HistGradientBoostingRegressor
    boosting = kind(
        loss=loss,
        max_iter=trees,
        learning_rate=rate,
        max_leaf_nodes=leaves,
        min_samples_leaf=fewest,
        l2_regularization=5.0,
        max_features=share,
        early_stopping=False,
        random_state=seed,
    ).fit(columns.astype(np.float64), target, sample_weight=weight)
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
