"""Ranking metrics of one graph, NaN where nothing can be ordered."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def kendall_tau(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return Kendall's tau-b, `scipy.stats.kendalltau`: the layout score of TpuGraphs.

    Examples:
        >>> round(kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])), 3)
        0.333
    """
    from scipy.stats import kendalltau

    return float(kendalltau(scores, targets).statistic)


def ordered_pair_accuracy(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return the share of the pairs with different targets that the scores order rightly; equal scores count half.

    Examples:
        >>> round(float(ordered_pair_accuracy(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))), 3)
        0.667
    """
    total = len(targets) * (len(targets) - 1) / 2
    different = total - _tied_pairs(targets)
    if not different:
        return float("nan")
    # tau-b is concordant minus discordant pairs over a norm that follows from the ties: solved for the share
    norm = np.sqrt((total - _tied_pairs(scores)) * different)
    return 0.5 if not norm else 0.5 + 0.5 * kendall_tau(scores, targets) * norm / different


def _tied_pairs(values: Float[np.ndarray, " configs"]) -> float:
    sizes = np.unique(values, return_counts=True)[1]
    return float((sizes * (sizes - 1)).sum() / 2)


def slowdown_at_k(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"], k: int) -> float:
    """Return (best target among the k with the lowest scores - best of all) / best of all: error@K of the tile task.

    Examples:
        >>> slowdown_at_k(np.array([1.0, 2.0, 3.0]), np.array([12.0, 10.0, 20.0]), k=1)
        0.2
    """
    top = np.argsort(scores, kind="stable")[:k]
    best = float(targets.min())
    return (float(targets[top].min()) - best) / best if best else float("nan")


def are_placeholders(targets: Float[np.ndarray, " configs"]) -> bool:
    """True if the targets are withheld: the test parts of TpuGraphs hold 0 for every runtime."""
    return bool((targets == 0).all())
