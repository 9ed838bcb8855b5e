"""Ranges of an order of the nodes; that of their ids is the best cut where ids follow the data flow, as in a trace."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partitioners.problem import Problem


def contiguous(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node; parts ascend with node ids."""
    return ranges(problem.weights, problem.num_parts)


def ranges(weights: Int64[np.ndarray, " nodes"], num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Part of each node of a sequence, ascending, none empty.

    Part p begins with the first node whose middle lies beyond p / num_parts of all the weight, so a part weighs
    about the mean, give or take half a node at both ends; with equal weights, sizes differ by at most one.
    """
    num_nodes = len(weights)
    up_to = np.cumsum(weights)
    quotient, remainder = divmod(2 * int(up_to[-1]), num_parts)
    part = np.arange(num_parts)
    twice_due = part * quotient - (-part * remainder // num_parts)  # rounded up
    starts = np.searchsorted(2 * up_to - weights - 1, twice_due)
    starts = np.maximum.accumulate(starts - part) + part  # ascending by at least one
    starts = np.minimum(starts, num_nodes - num_parts + part)
    return np.repeat(part, np.diff(starts, append=num_nodes))
