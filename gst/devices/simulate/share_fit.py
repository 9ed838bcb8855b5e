"""How much kernels that run at once on one accelerator slow each other: a model of shares, fitted to timed pairs.

Each operation takes a share of the accelerator, 0 .. 1: that of the threads which its result occupies (one for each 4
bytes) or that of the memory's rate, whichever is larger, times a factor; and at least a smallest share. Kernels whose
shares add to at most 1 do not slow each other. If they add to more, each runs at its speed alone divided by their sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from gst.devices.execute.pair_records import Pairs
from gst.devices.simulate.simulator import UNCALIBRATED, Contention

FACTORS = np.geomspace(1 / 64, 64, 49)
SMALLEST_SHARES = np.linspace(0, 1, 21)
FOLDS = 4
LEAST_PAIRS = 2 * FOLDS  # fewer are not fitted


class Errors(NamedTuple):
    """Mean relative errors of the time that a pair takes, on pairs that were not fitted.

    Args:
        shares: of the fitted shares.
        free: of a model in which no kernel slows another.
        in_turns: of a model in which only one runs at a time.
    """

    shares: float
    free: float
    in_turns: float


def fit_sharing(pairs: Pairs | None, start: Contention = UNCALIBRATED) -> Contention:
    """The contention `start` with shares that predict the times of pairs best; `start` itself for fewer than
    `LEAST_PAIRS` pairs. The factor and the smallest share are searched for on a grid, for the least mean error of the
    logarithms.

    Examples:
        >>> fit_sharing(None) == UNCALIBRATED
        True
    """
    if pairs is None or len(pairs.pairs) < LEAST_PAIRS:
        return start
    return start._replace(**_fitted(pairs, np.ones(len(pairs.pairs), bool)))


def held_out_errors(pairs: Pairs) -> Errors:
    """Errors on each quarter of the pairs when the others are fitted.

    Raises:
        ValueError: there are fewer than `LEAST_PAIRS` pairs.
    """
    count = len(pairs.pairs)
    if count < LEAST_PAIRS:
        raise ValueError(f"errors need at least {LEAST_PAIRS} pairs, got {count}")
    alone, both = _times(pairs)
    predicted, fold = np.zeros(count), np.arange(count) % FOLDS
    for number in range(FOLDS):
        learned = UNCALIBRATED._replace(**_fitted(pairs, fold != number))
        predicted[fold == number] = pair_us(alone, pair_shares(pairs, learned))[fold == number]
    return Errors(*(float(np.abs(each / both - 1).mean()) for each in (predicted, alone.max(1), alone.sum(1))))


def pair_us(
    alone_us: Float64[np.ndarray, "pairs 2"], shares: Float64[np.ndarray, "pairs 2"]
) -> Float64[np.ndarray, " pairs"]:
    """Time of pairs that begin at once. Both run at 1 / sum of their shares, if that is above 1, until the shorter one
    has ended; what is left of the longer one runs alone.

    Examples:
        >>> pair_us(np.array([[30.0, 10.0], [30.0, 10.0]]), np.array([[0.5, 0.5], [1.0, 1.0]])).tolist()
        [30.0, 40.0]
    """
    return alone_us.max(1) + alone_us.min(1) * np.maximum(shares.sum(1) - 1, 0)


def pair_shares(pairs: Pairs, contention: Contention) -> Float64[np.ndarray, "pairs 2"]:
    """Shares of the operations of pairs."""
    kilobytes, gb_per_s = _sizes_and_rates(pairs)
    fill = np.maximum(contention.share_per_kb * kilobytes, contention.share_per_gb_per_s * gb_per_s)
    return np.clip(fill, contention.least_share, 1.0)


def _fitted(pairs: Pairs, is_fitted: Bool[np.ndarray, " pairs"]) -> dict[str, float]:
    """Fields of `Contention` that fit some of the pairs best."""
    alone, both = (each[is_fitted] for each in _times(pairs))
    kilobytes, gb_per_s = (each[is_fitted] for each in _sizes_and_rates(pairs))
    per_kb = 0.0 if pairs.threads is None else 1e3 / (4 * pairs.threads)
    per_gb_per_s = 1 / pairs.peak_gb_per_s if pairs.peak_gb_per_s > 0 else 0.0
    fill = np.maximum(per_kb * kilobytes, per_gb_per_s * gb_per_s)
    shares = np.clip(FACTORS[:, None, None, None] * fill, SMALLEST_SHARES[:, None, None], 1.0)
    predicted = alone.max(1) + alone.min(1) * np.maximum(shares.sum(3) - 1, 0)
    errors = np.abs(np.log(predicted / both)).mean(2)
    factor, smallest = np.unravel_index(errors.argmin(), errors.shape)
    return {
        "share_per_kb": float(FACTORS[factor] * per_kb),
        "share_per_gb_per_s": float(FACTORS[factor] * per_gb_per_s),
        "least_share": float(SMALLEST_SHARES[smallest]),
    }


def _times(pairs: Pairs) -> tuple[Float64[np.ndarray, "pairs 2"], Float64[np.ndarray, " pairs"]]:
    alone = np.array([each.alone_us for each in pairs.pairs], np.float64)
    return alone, np.array([each.both_us for each in pairs.pairs], np.float64)


def _sizes_and_rates(pairs: Pairs) -> tuple[Float64[np.ndarray, "pairs 2"], Float64[np.ndarray, "pairs 2"]]:
    kilobytes = np.array([each.kilobytes for each in pairs.pairs], np.float64)
    return kilobytes, np.array([each.gb_per_s for each in pairs.pairs], np.float64)
