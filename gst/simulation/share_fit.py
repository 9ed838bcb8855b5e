"""Model of the slowdown of kernels that run at once on one accelerator, fitted to timed pairs.

    share of an operation = the largest of its parts (`Parts`), each times a factor; at least a smallest share, at most
    1
    speed of operations at once = their speed alone / the sum of their shares, if that is above 1

All accelerators share the three factors and the smallest share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from gst.execution.costs import Pairs
from gst.simulation.simulator import UNCALIBRATED, Contention, Factors

FACTORS = np.array([0.0, *np.geomspace(1 / 8, 8, 7)])
SMALLEST_SHARES = np.linspace(0, 1, 6)
STEPS = (2**0.5, 2**0.25, 2**0.125, 2**0.0625, 2**0.03125)  # of factors, around the best of the grid
LEAST_PAIRS = 8  # fewer are not fitted


def fit_sharing(pairs: Sequence[Pairs], start: Contention = UNCALIBRATED) -> Contention:
    """Return `start` with the factors that predict the times of pairs best, each accelerator counting alike; `start`
    itself for fewer than `LEAST_PAIRS` pairs."""
    if sum(len(each.pairs) for each in pairs) < LEAST_PAIRS:
        return start
    return start.with_factors(fitted_factors([Timed.of(each) for each in pairs if each.pairs]))


def pair_us(
    alone_us: Float64[np.ndarray, "pairs 2"], shares: Float64[np.ndarray, "*sets pairs 2"]
) -> Float64[np.ndarray, "*sets pairs"]:
    """Return the time of pairs that begin at once: both slow down by their shares until the shorter one has ended.

    Examples:
        >>> pair_us(np.array([[30.0, 10.0], [30.0, 10.0]]), np.array([[0.5, 0.5], [1.0, 1.0]])).tolist()
        [30.0, 40.0]
    """
    return alone_us.max(-1) + alone_us.min(-1) * np.maximum(shares.sum(-1) - 1, 0)


class Timed(NamedTuple):
    """Pairs as arrays: parts of each operation, microseconds of each alone, and of both at once."""

    parts: Float64[np.ndarray, "pairs 2 3"]
    alone: Float64[np.ndarray, "pairs 2"]
    both: Float64[np.ndarray, " pairs"]

    @staticmethod
    def of(pairs: Pairs) -> Timed:
        columns = zip(*((each.parts, each.alone_us, each.both_us) for each in pairs.pairs), strict=True)
        parts, alone, both = (np.array(each, np.float64) for each in (columns if pairs.pairs else ((), (), ())))
        return Timed(parts.reshape(-1, 2, 3), alone.reshape(-1, 2), both)


def fitted_factors(timed: Sequence[Timed]) -> Factors:
    """Return the factors of least mean error of the logarithms: the best of a grid, then of ever smaller steps around
    it."""
    best = _best(np.array(list(product(FACTORS, FACTORS, FACTORS, SMALLEST_SHARES))), timed)
    for step in STEPS:
        times = np.array(list(product((1.0, 1 / step, step), repeat=3)))
        moved = np.array([0.0, 1 - step, step - 1]) / 4
        while True:
            near = np.concatenate([
                np.column_stack([best[:3] * times, np.full(len(times), np.clip(best[3] + move, 0, 1))])
                for move in moved
            ])  # fmt: skip
            following = _best(near, timed)
            if (following == best).all():
                break
            best = following
    return Factors(*best.tolist())


def _best(candidates: Float64[np.ndarray, "candidates 4"], timed: Sequence[Timed]) -> Float64[np.ndarray, " four"]:
    """Return the first candidate of least error."""
    errors = np.zeros(len(candidates))
    for each in timed:
        taken = (candidates[:, None, None, :3] * each.parts).max(-1)
        shares = np.clip(taken, candidates[:, None, None, 3], 1.0)
        errors += np.abs(np.log(pair_us(each.alone, shares) / each.both)).mean(1)
    return candidates[errors.argmin()]
