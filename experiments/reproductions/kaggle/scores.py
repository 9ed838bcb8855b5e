"""Scores of the collections of TpuGraphs (Phothilimthana et al. 2023, arXiv 2308.13490) and of its competition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from gst.cost.metrics import are_placeholders, kendall_tau, slowdown_at_k

Scored = tuple[Float[np.ndarray, " configs"], Float[np.ndarray, " configs"]]
"""Scores and targets of the configurations of one graph; the lower, the faster."""

LAYOUTS = ("layout/xla/random", "layout/xla/default", "layout/nlp/random", "layout/nlp/default")


def layout_score(graphs: Mapping[str, Scored]) -> float:
    """The score of a layout collection: Kendall's tau, averaged over its graphs. Equal scores for all configurations
    of a graph order nothing and count 0.

    Args:
        graphs: scores and targets by name of the graph.

    Raises:
        ValueError: there are no graphs, or one has placeholders for targets, NaN, or targets that are all equal.

    Examples:
        >>> layout_score({"graph": (np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0]))})
        1.0
    """
    _check_scorable(graphs)
    for name, (_, targets) in graphs.items():
        if (targets == targets[0]).all():
            raise ValueError(f"graph {name!r} has {len(targets)} equal targets, nothing to order; leave it out")
    taus = [0.0 if (scores == scores[0]).all() else kendall_tau(scores, targets) for scores, targets in graphs.values()]
    return float(np.mean(taus))


def tile_errors(kernels: Mapping[str, Scored], ks: Sequence[int] = (1, 5, 10)) -> dict[int, float]:
    """error@K of the tile collection by K: `slowdown_at_k`, averaged over its kernels. Targets are runtimes over their
    normalisers.

    Raises:
        ValueError: there are no kernels, or one has placeholders for targets, or NaN.

    Examples:
        >>> kernels = {"kernel": (np.array([1.0, 2.0, 3.0]), np.array([12.0, 10.0, 20.0]))}
        >>> tile_errors(kernels, ks=(1, 2))
        {1: 0.2, 2: 0.0}
    """
    _check_scorable(kernels)
    return {k: float(np.mean([slowdown_at_k(*scored, k) for scored in kernels.values()])) for k in ks}


def kaggle_score(layout_scores: Mapping[str, float], tile_error_at_5: float) -> float:
    """The mean over the five collections, of tau for the four of layouts and of 1 - error@5 for tiles.

    Args:
        layout_scores: `layout_score` of each of `LAYOUTS`.
        tile_error_at_5: `tile_errors` of the fifth collection, for 5.

    Raises:
        ValueError: a collection is missing, or is none of `LAYOUTS`.

    Examples:
        >>> round(kaggle_score(dict.fromkeys(LAYOUTS, 0.5), tile_error_at_5=0.1), 3)
        0.58
    """
    if set(layout_scores) != set(LAYOUTS):
        raise ValueError(
            f"got scores of {', '.join(layout_scores) or 'nothing'}; want one of each: {', '.join(LAYOUTS)}"
        )
    return float(np.mean([*layout_scores.values(), 1 - tile_error_at_5]))


def _check_scorable(graphs: Mapping[str, Scored]) -> None:
    if not graphs:
        raise ValueError("there are no graphs to score")
    for name, (scores, targets) in graphs.items():
        if are_placeholders(targets):
            raise ValueError(
                f"graph {name!r} has 0 for every target: placeholders, as test parts hold them; rank it, or score "
                "the part valid"
            )
        _check_numbers(f"{len(targets)} targets of graph {name!r}", np.isfinite(targets))
        _check_numbers(f"{len(scores)} scores of graph {name!r}", np.isfinite(scores))


def _check_numbers(what: str, finite: Bool[np.ndarray, " configs"]) -> None:
    if not finite.all():
        raise ValueError(f"{(~finite).sum()} of {what} are NaN or infinite; none may be")
