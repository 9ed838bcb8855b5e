"""Errors of fitted shares of an accelerator, on pairs of operations that were not fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gst.execution.costs import Pairs
from gst.simulation.share_fit import LEAST_PAIRS, Timed, fitted_factors, pair_us
from gst.simulation.simulator import shares_of

FOLDS = 4


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


def held_out_errors(pairs: Sequence[Pairs]) -> Errors:
    """Return errors on the pairs of each accelerator, fitted to those of the others. With a single accelerator, each
    quarter of its pairs is held out.

    Raises:
        ValueError: there are fewer than `LEAST_PAIRS` pairs of an accelerator.
    """
    every = [Timed.of(each) for each in pairs if each.pairs]  # of alike accelerators one is timed
    counts = [len(each.both) for each in every]
    if min(counts, default=0) < LEAST_PAIRS:
        raise ValueError(f"errors need at least {LEAST_PAIRS} pairs of each accelerator that was timed, got {counts}")
    if len(every) == 1:
        (one,) = every
        folds = [np.arange(counts[0]) % FOLDS == fold for fold in range(FOLDS)]
        every = [Timed(*(column[fold] for column in one)) for fold in folds]
    errors = []
    for number, each in enumerate(every):
        factors = fitted_factors(every[:number] + every[number + 1 :])
        guesses = (pair_us(each.alone, shares_of(each.parts, factors)), each.alone.max(1), each.alone.sum(1))
        errors.append([float(np.abs(guess / each.both - 1).mean()) for guess in guesses])
    return Errors(*np.mean(errors, axis=0).tolist())
