"""GraphNet's speedup score S(t): how much faster a compiler makes a set of programs, if wrong or failed ones count too.

Of Li et al., GraphNet, 2025 (arXiv 2510.24035): S(t) = alpha^lambda * beta^(lambda * eta * p) * b^(1 - lambda), where
lambda is the share of programs whose outputs agree at tolerance t, alpha the geometric mean of their speedups over
eager, eta the share of these that are slower than eager, beta the geometric mean of theirs. That is the geometric mean
of one number a program: its speedup, to the power of 1 + p if below 1, or b if it is wrong or does not run.

Tolerances of single precision are atol = 10^t and rtol = 10^(1.1772 t), so that t = -5 is that of `torch.testing`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, allclose

RELATIVE = 5.886 / 5  # the exponent of the relative tolerance for each of the absolute one
TOLERANCES = range(-8, 2)
FAILED, SLOWER = 0.1, 0.0  # b and p, the defaults of GraphNet's own script


def least_tolerance(got: Sequence[Any], want: Sequence[Any]) -> int | None:
    """The least t of `TOLERANCES` at which all outputs agree; None if they do not at the largest.

    Examples:
        >>> from torch import tensor
        >>> least_tolerance([tensor([1.0])], [tensor([1.0])]), least_tolerance([tensor([1.01])], [tensor([1.0])])
        (-8, -2)
    """
    return next((t for t in TOLERANCES if _agree(got, want, t)), None)


def _agree(got: Sequence[Any], want: Sequence[Any], t: int) -> bool:
    if len(got) != len(want):
        return False
    for a, b in zip(got, want, strict=True):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if a != b:
                return False
        elif a.shape != b.shape or a.dtype != b.dtype or not _close(a, b, t):
            return False
    return True


def _close(a: Tensor, b: Tensor, t: int) -> bool:
    return allclose(a.double(), b.double(), rtol=10 ** (RELATIVE * t), atol=10.0**t, equal_nan=True)


def speedup_score(programs: Iterable[tuple[float, int | None] | None], t: int) -> float:
    """S(t) of some programs.

    Args:
        programs: of each its speedup over eager and the tolerance at which it agrees, see `least_tolerance`; None if it
            did not run.
        t: the tolerance.

    Examples:
        >>> round(speedup_score([(2.0, -5), (8.0, -5)], t=-5), 3), round(speedup_score([(2.0, -2), None], t=-5), 3)
        (4.0, 0.1)
    """
    return statistics.geometric_mean(_rectified(each, t) for each in programs)


def _rectified(program: tuple[float, int | None] | None, t: int) -> float:
    if program is None or program[1] is None or program[1] > t:
        return FAILED
    speedup = program[0]
    return speedup if speedup >= 1 else speedup ** (1 + SLOWER)
