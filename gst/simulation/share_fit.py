"""How much kernels that run at once on one accelerator slow each other: a model of shares, fitted to timed pairs.

    parts of an operation = its threads / threads that the accelerator holds, its GB/s / those of the accelerator's
                            memory, its FLOP/s / those of its matrix products: numbers without a unit
    share of an operation = the largest of its parts, each times a factor; at least a smallest share, at most 1
    speed of operations at once = their speed alone / the sum of their shares, if that is above 1

The three factors and the smallest share are the same for all accelerators. They are fitted to the pairs of all that
were measured, so they also say something of one of which no pairs were timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from gst.execution.pair_records import Pairs
from gst.simulation.simulator import UNCALIBRATED, Contention, Factors, shares_of

FACTORS = np.array([0.0, *np.geomspace(1 / 8, 8, 7)])
SMALLEST_SHARES = np.linspace(0, 1, 6)
STEPS = (2**0.5, 2**0.25, 2**0.125, 2**0.0625, 2**0.03125)  # of factors, around the best of the grid
FOLDS = 4
LEAST_PAIRS = 2 * FOLDS  # fewer are not fitted


class Errors(NamedTuple):
    """Mean relative errors of the time that a pair takes, on pairs that were not fitted; each accelerator counts alike.

    Args:
        shares: of the fitted shares.
        free: of a model in which no kernel slows another.
        in_turns: of a model in which only one runs at a time.
    """

    shares: float
    free: float
    in_turns: float


def fit_sharing(pairs: Sequence[Pairs], start: Contention = UNCALIBRATED) -> Contention:
    """The contention `start` with factors that predict the times of pairs best; `start` itself for fewer than
    `LEAST_PAIRS` pairs.

    Args:
        pairs: of one accelerator or several, each of which counts alike.
        start: all else.

    Examples:
        >>> fit_sharing(()) == UNCALIBRATED
        True
    """
    if sum(len(each.pairs) for each in pairs) < LEAST_PAIRS:
        return start
    return start.with_factors(fitted_factors([_Timed.of(each) for each in pairs if each.pairs]))


def held_out_errors(pairs: Sequence[Pairs]) -> Errors:
    """Errors on the pairs of each accelerator when those of the others are fitted; of a single accelerator, on each
    quarter of its pairs when the other quarters are fitted.

    Raises:
        ValueError: there are fewer than `LEAST_PAIRS` pairs of an accelerator.
    """
    every = [_Timed.of(each) for each in pairs if each.pairs]  # of alike accelerators one is timed
    counts = [len(each.both) for each in every]
    if min(counts, default=0) < LEAST_PAIRS:
        raise ValueError(f"errors need at least {LEAST_PAIRS} pairs of each accelerator that was timed, got {counts}")
    if len(every) == 1:
        (one,) = every
        every = [one.part(np.arange(counts[0]) % FOLDS == fold) for fold in range(FOLDS)]
    errors = []
    for number, each in enumerate(every):
        factors = fitted_factors(every[:number] + every[number + 1 :])
        guesses = (pair_us(each.alone, shares_of(each.parts, factors)), each.alone.max(1), each.alone.sum(1))
        errors.append([float(np.abs(guess / each.both - 1).mean()) for guess in guesses])
    return Errors(*np.mean(errors, axis=0).tolist())


def pair_us(
    alone_us: Float64[np.ndarray, "pairs 2"], shares: Float64[np.ndarray, "*sets pairs 2"]
) -> Float64[np.ndarray, "*sets pairs"]:
    """Time of pairs that begin at once. Both run at 1 / sum of their shares, if that is above 1, until the shorter one
    has ended; what is left of the longer one runs alone.

    Examples:
        >>> pair_us(np.array([[30.0, 10.0], [30.0, 10.0]]), np.array([[0.5, 0.5], [1.0, 1.0]])).tolist()
        [30.0, 40.0]
    """
    return alone_us.max(-1) + alone_us.min(-1) * np.maximum(shares.sum(-1) - 1, 0)


def pair_shares(pairs: Pairs, contention: Contention) -> Float64[np.ndarray, "pairs 2"]:
    """Shares of the operations of pairs."""
    return shares_of(_Timed.of(pairs).parts, contention.factors)


class _Timed(NamedTuple):
    """Pairs as arrays: parts of each operation, microseconds of each alone, and of both at once."""

    parts: Float64[np.ndarray, "pairs 2 3"]
    alone: Float64[np.ndarray, "pairs 2"]
    both: Float64[np.ndarray, " pairs"]

    @staticmethod
    def of(pairs: Pairs) -> _Timed:
        columns = zip(*((each.parts, each.alone_us, each.both_us) for each in pairs.pairs), strict=True)
        parts, alone, both = (np.array(each, np.float64) for each in (columns if pairs.pairs else ((), (), ())))
        return _Timed(parts.reshape(-1, 2, 3), alone.reshape(-1, 2), both)

    def part(self, is_chosen: np.ndarray) -> _Timed:
        return _Timed(*(each[is_chosen] for each in self))


def fitted_factors(timed: Sequence[_Timed]) -> Factors:
    """Factors of least mean error of the logarithms: the best of a grid, then of steps around the best, until none of
    them is better."""
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


def _best(candidates: Float64[np.ndarray, "candidates 4"], timed: Sequence[_Timed]) -> Float64[np.ndarray, " four"]:
    """The first of least error."""
    errors = np.zeros(len(candidates))
    for each in timed:
        taken = (candidates[:, None, None, :3] * each.parts).max(-1)
        shares = np.clip(taken, candidates[:, None, None, 3], 1.0)
        errors += np.abs(np.log(pair_us(each.alone, shares) / each.both)).mean(1)
    return candidates[errors.argmin()]
