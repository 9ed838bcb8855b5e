"""Regression on errors of a simulator in closed form: a Gaussian process that few measurements are enough for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from gst.placement.reward import Answers

AMPLITUDES = (0.5, 1.0, 2.0)  # of all errors, in units of what the rows say
NOISES = (0.01, 0.02, 0.04, 0.08)  # of a measurement, and of what the rows do not say

Rows = Float64[np.ndarray, "plans features"]


class ErrorProcess:
    """Gaussian process whose covariance of two plans is the product of their rows, around an offset that may be
    anything. Of a few amplitudes and noises those are taken under which the measurements are likeliest (Rasmussen and
    Williams, Gaussian Processes for Machine Learning, 2006, equations 2.25 to 2.30).

    Examples:
        >>> process = ErrorProcess()
        >>> process.learn(np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 2.0, 3.0]))
        >>> process(np.array([[4.0]]))[0].round(1)
        array([5.])
    """

    def learn(self, rows: Rows, logs: Answers) -> None:
        """Fit to errors, logarithms of measured / simulated runtimes."""
        self._rows, kernel = rows, rows @ rows.T
        grid = [(amplitude, noise) for amplitude in AMPLITUDES for noise in NOISES]
        fits = [_fit(amplitude**2 * kernel + noise**2 * np.eye(len(logs)), logs) for amplitude, noise in grid]
        best = max(range(len(grid)), key=lambda number: fits[number].evidence)
        (self._amplitude, self._noise), self._best = grid[best], fits[best]

    def __call__(self, rows: Rows) -> tuple[Answers, Answers]:
        """Mean and standard deviation of the measured error of each row."""
        shared = self._amplitude**2 * rows @ self._rows.T
        known = np.einsum("ij,jk,ik->i", shared, self._best.inverse, shared)
        variance = np.maximum(self._amplitude**2 * np.square(rows).sum(1) - known, 0.0)
        return self._best.offset + shared @ self._best.weights, np.sqrt(variance + self._noise**2)


class _Fit(NamedTuple):
    """`evidence` is the logarithm of the likelihood up to a constant, with the offset integrated out."""

    evidence: float
    offset: float
    inverse: Float64[np.ndarray, "plans plans"]
    weights: Answers


def _fit(covariance: Float64[np.ndarray, "plans plans"], logs: Answers) -> _Fit:
    inverse = np.linalg.inv(covariance)
    sums = inverse.sum(0)
    offset = float(sums @ logs / sums.sum())
    weights = inverse @ (logs - offset)
    evidence = -(logs - offset) @ weights - np.linalg.slogdet(covariance)[1] - np.log(sums.sum())
    return _Fit(float(evidence) / 2, offset, inverse, weights)
