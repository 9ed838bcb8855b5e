"""How well scores order configurations. NaN where nothing can be ordered."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def kendall_tau(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"]) -> float:
    """Kendall's tau-b, as `scipy.stats.kendalltau` gives it: the layout score of TpuGraphs."""
    from scipy.stats import kendalltau

    return float(kendalltau(scores, targets).statistic)


def ordered_pair_accuracy(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"]) -> float:
    """Share of the pairs with different targets that the scores put in the right order; equal scores count half.

    Kendall's tau-b gives concordant minus discordant over a norm known from the ties: solved for the share."""
    total = len(targets) * (len(targets) - 1) / 2
    different = total - _tied_pairs(targets)
    if not different:
        return float("nan")
    norm = np.sqrt((total - _tied_pairs(scores)) * different)
    return 0.5 if not norm else 0.5 + 0.5 * kendall_tau(scores, targets) * norm / different


def _tied_pairs(values: Float[np.ndarray, " configs"]) -> float:
    sizes = np.unique(values, return_counts=True)[1]
    return float((sizes * (sizes - 1)).sum() / 2)


def slowdown_at_k(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"], k: int) -> float:
    """(best target among the k with the lowest scores - best of all) / best of all: error@K of the tile task."""
    top = np.argsort(scores, kind="stable")[:k]
    best = float(targets.min())
    return (float(targets[top].min()) - best) / best if best else float("nan")
