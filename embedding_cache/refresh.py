"""Which rows are worth computing anew: those expected to have moved the farthest since they were written.

Let h_j be the embedding of j now and g_j the row kept of it. The sum over all j, of which only a few are computed now,
is estimated without bias by the difference estimator

    sum_j g_j + sum_{j chosen} (h_j - g_j) / q_j,

where q_j is the probability that j is chosen. With independent draws its variance is the sum over j of
(1 - q_j) / q_j |h_j - g_j|^2, which is least where q_j is proportional to |h_j - g_j| (Saerndal, Swensson and Wretman,
Model Assisted Survey Sampling, 1992, chapters 3 and 6). That distance is known only once h_j is: `DriftEstimate` says
what to expect of it, `inclusion_probabilities` turns expectations into q, and `sample_by_probability` draws.

FreshGNN (arXiv 2301.07482) and REST (arXiv 2410.05416) choose by bounds on age and on gradients, GNNAutoScale
(arXiv 2106.05609) not at all. Age alone takes all rows to move alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

_KNOTS = 64  # ages 1, 2, 4, ... as far as int64 goes
_MOMENTUM = 0.1  # share of the newest push in the averages over all keys
_KEY_MOMENTUM = 0.5  # share of the newest push in the average of a key
_UNIT = 2**40  # parts of a whole that probabilities are counted in


class DriftEstimate:
    """How far a row has moved since it was written, from how far rows had moved whenever they were rewritten.

        expected squared distance of key k after a steps = factor_k * curve(a)

    curve(a) is a moving average over all rewritten rows of |new - old|^2 at age a. It is kept at the ages 1, 2, 4, ...,
    is linear in log2(a) between those that were seen, and proportional to a (a random walk) beyond them. It has no
    exponent of its own since none fits: squared distances grow with a^2 in the first steps after a write, and then ever
    more slowly. factor_k is a moving average of |new - old|^2 / curve(a) over the pushes of the key, 1 at first.

    A key never written is as wrong as its row is long: its squared distance is a moving average of |row|^2. So is that
    of any row as long as none was rewritten, and 1 before the first push.

    Distances are absolute, since it is rows that are summed; weigh them as the readout does.
    """

    def __init__(self) -> None:
        self._squared_norm = math.nan
        self._curve = np.full(_KNOTS, np.nan)
        self._factors = np.ones(1, np.float32)

    @property
    def nbytes(self) -> int:
        return self._factors.nbytes

    def grow(self, num_slots: int) -> None:
        self._factors = np.concatenate([self._factors, np.ones(num_slots - len(self._factors), np.float32)])

    def observe(
        self,
        slots: Int32[np.ndarray, " keys"],
        before: Int32[np.ndarray, " keys"],
        ages: Int64[np.ndarray, " keys"],
        rows: Float[Tensor, "keys channels"],
        old_rows: Float[Tensor, "keys channels"],
    ) -> None:
        """Learn from a push of `rows` to `slots`, over `old_rows` that were in the slots `before` (0 for a new key),
        `ages` steps old. Rows younger than a step say nothing."""
        if not len(slots):
            return
        rows = rows.detach().to(old_rows).float()
        self._squared_norm = float(_average(self._squared_norm, rows.square().sum(1).mean().item(), _MOMENTUM))
        distances = (rows - old_rows.float()).square().sum(1).cpu().numpy().astype(np.float64)
        factors = self._factors[before]
        rewritten = np.flatnonzero(ages > 0)
        self._learn_curve(ages[rewritten], distances[rewritten])
        expected = self._curve_at(ages[rewritten])
        seen = np.divide(distances[rewritten], expected, out=np.ones_like(expected), where=expected > 0)
        factors[rewritten] = _average(factors[rewritten], seen, _KEY_MOMENTUM)
        self._factors[slots] = factors

    def expected(self, slots: Int32[np.ndarray, " keys"], ages: Int64[np.ndarray, " keys"]) -> Float[Tensor, " keys"]:
        """The distances of rows of `ages`, of the slots 0 and ages -1 for keys never written."""
        moved = self._factors[slots] * self._curve_at(np.maximum(ages, 0))
        return torch.from_numpy(np.sqrt(np.where(ages < 0, self._whole_row(), moved)).astype(np.float32))

    def state(self, slots: Int32[np.ndarray, " keys"]) -> dict[str, Any]:
        """What was learnt, the factors of `slots` alone."""
        return {
            "squared_norm": self._squared_norm,
            "curve": torch.from_numpy(self._curve.copy()),
            "factors": torch.from_numpy(self._factors[slots]),
        }

    def load(self, state: dict[str, Any], slots: Int32[np.ndarray, " keys"]) -> None:
        """`state` with its factors for `slots`."""
        self._squared_norm = state["squared_norm"]
        self._curve = state["curve"].cpu().numpy().copy()
        self._factors[slots] = state["factors"].cpu().numpy()

    def _whole_row(self) -> float:
        return 1.0 if math.isnan(self._squared_norm) else self._squared_norm

    def _learn_curve(self, ages: np.ndarray, distances: np.ndarray) -> None:
        """Each distance counts at the two knots around its age, the nearer the more."""
        place = np.log2(ages)
        lower = np.floor(place).astype(np.int64)
        knots, shares = np.concatenate([lower, lower + 1]), np.concatenate([1 - (place - lower), place - lower])
        weights = np.bincount(knots, shares, _KNOTS)
        totals = np.bincount(knots, shares * np.tile(distances, 2), _KNOTS)
        seen = weights > 0
        self._curve[seen] = _average(self._curve[seen], totals[seen] / weights[seen], _MOMENTUM)

    def _curve_at(self, ages: np.ndarray) -> np.ndarray:
        (seen,) = np.nonzero(~np.isnan(self._curve))
        if not len(seen):
            return np.where(ages > 0, self._whole_row(), 0.0)
        with np.errstate(divide="ignore"):
            place = np.log2(ages)  # -inf for age 0, whose distance comes out as 0
        inside = np.clip(place, seen[0], seen[-1])
        return np.interp(inside, seen, self._curve[seen]) * np.exp2(place - inside)


def _average(old: np.ndarray | float, new: np.ndarray | float, share: float) -> np.ndarray:
    """The moving average after `new`, which is the first where there is none (NaN)."""
    return np.where(np.isnan(old), new, (1 - share) * old + share * new)


def inclusion_probabilities(
    scores: Float[Tensor, " keys"], num_chosen: int, uniform_share: float = 0.1
) -> Float[Tensor, " keys"]:
    """Probabilities, proportional to `scores`, of choosing each of N keys such that `num_chosen` are chosen.

        q = u n / N + (1 - u) min(1, c scores),   c such that sum q = n = num_chosen

    The uniform share u bounds the weights 1 / q by N / (u n), however wrong the scores are (a defensive mixture:
    Hesterberg, Technometrics 37, 1995).

    Args:
        scores: at least 0, finite; if too few are above 0, the others share equally what these leave.
        num_chosen: at least 1; all are chosen where there are not more.
        uniform_share: u, from 0 to 1. With 0 a score of 0 may have probability 0.

    Returns:
        In (0, 1], float64, on the host; their sum is min(num_chosen, N).

    Raises:
        ValueError: an argument is out of its range.

    Examples:
        >>> inclusion_probabilities(torch.tensor([3.0, 1.0, 0.0]), num_chosen=1, uniform_share=0.0).tolist()
        [0.75, 0.25, 0.0]
    """
    if num_chosen < 1:
        raise ValueError(f"num_chosen is {num_chosen}; wanted at least 1: an estimate needs a key computed anew")
    if not 0 <= uniform_share <= 1:
        raise ValueError(f"uniform_share is {uniform_share}; wanted 0..1: it is a share")
    given = scores.detach().cpu().double().numpy()
    if not np.isfinite(given).all() or (given < 0).any():
        raise ValueError("scores are negative or not finite; wanted at least 0: look for NaN in what was pushed")
    num_keys = len(given)
    if num_chosen >= num_keys:
        return torch.ones(num_keys, dtype=torch.float64)
    proportional = _capped(given, num_chosen)
    return torch.from_numpy(uniform_share * num_chosen / num_keys + (1 - uniform_share) * proportional)


def sample_by_probability(probabilities: Float[Tensor, " keys"], generator: torch.Generator) -> Bool[Tensor, " keys"]:
    """Choose keys, each with its probability (to 1e-12), and always as many as these sum to.

    Systematic sampling in random order (Madow 1949; Hartley and Rao 1962): lay the probabilities end to end in a random
    order and take those that u, u + 1, u + 2, ... fall upon, for one uniform u in [0, 1).

    Raises:
        ValueError: a probability is outside 0..1, or their sum is not a whole number.

    Examples:
        >>> int(sample_by_probability(torch.tensor([0.75, 0.25, 1.0]), torch.Generator().manual_seed(0)).sum())
        2
    """
    lengths = _lengths(probabilities.detach().cpu().double())
    order = torch.randperm(len(lengths), generator=generator)
    start = int(torch.randint(_UNIT, (), generator=generator))
    chosen = torch.empty(len(lengths), dtype=torch.bool)
    chosen[order] = _systematic(lengths[order], start)
    return chosen


def _capped(scores: np.ndarray, num_chosen: int) -> np.ndarray:
    """min(1, c scores) with sum `num_chosen`, fewer than there are: the largest scores are certain until the rest,
    scaled to what they leave, are all at most 1."""
    if not scores.any():
        return np.full(len(scores), num_chosen / len(scores))
    descending = np.argsort(-scores, kind="stable")
    ordered = scores[descending] / scores.max()
    sums = np.cumsum(ordered[::-1])[::-1]
    left = num_chosen - np.arange(num_chosen)
    certain = int(np.argmax(left * ordered[:num_chosen] <= sums[:num_chosen]))
    rest = ordered[certain:] if sums[certain] > 0 else np.ones(len(scores) - certain)
    capped = np.ones(len(scores))
    capped[descending[certain:]] = np.minimum(1, rest / rest.sum() * left[certain])
    return capped


def _lengths(probabilities: Float[Tensor, " keys"]) -> Int64[Tensor, " keys"]:
    """In units, none above one whole, and with a whole sum: integers, so that no rounding can lose a key. What rounding
    has lost until here goes to the key that has the most room for it."""
    if not len(probabilities):
        return torch.empty(0, dtype=torch.int64)
    lowest, highest, total = (float(each) for each in (*probabilities.aminmax(), probabilities.sum()))
    if not (lowest >= 0 and highest <= 1 + 1e-9):
        raise ValueError(f"probabilities are {lowest}..{highest}; wanted 0..1")
    if abs(total - round(total)) > 1e-5:
        raise ValueError(f"probabilities sum to {total}; wanted a whole number: use inclusion_probabilities")
    lengths = (probabilities * _UNIT).round().long().clamp(max=_UNIT)
    if round(total) == len(lengths):
        return torch.full_like(lengths, _UNIT)
    lost = round(total) * _UNIT - int(lengths.sum())
    lengths[lengths.argmin() if lost > 0 else lengths.argmax()] += lost
    return lengths


def _systematic(lengths: Int64[Tensor, " keys"], start: int) -> Bool[Tensor, " keys"]:
    """Which intervals, laid end to end, hold one of start, start + 1 whole, ...; 0 <= start < 1 whole."""
    passed = -(start - lengths.cumsum(0)).div(_UNIT, rounding_mode="floor")
    return passed.diff(prepend=passed.new_zeros(1)) > 0
