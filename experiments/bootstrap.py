"""Intervals of means over cases, by bootstrap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

RESAMPLED = 2000  # means


def mean_interval(values: Sequence[float] | Float64[np.ndarray, " cases"]) -> tuple[float, float, float]:
    """The mean of some cases, and its 95 % interval: of means of as many cases drawn with replacement.

    Examples:
        >>> mean_interval([2.0, 2.0, 2.0])
        (2.0, 2.0, 2.0)
    """
    means = np.random.default_rng(0).choice(values, (RESAMPLED, len(values))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return float(np.mean(values)), low, high
