"""Partitions that follow an order of the nodes: ranges by id, or of a random order."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partitioners.balance import Problem


def contiguous(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node; parts ascend with node ids."""
    return ranges(problem.weights, problem.num_parts)


def ranges(weights: Int64[np.ndarray, " nodes"], num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node of a sequence, ascending, none empty.

    Part p begins with the first node whose middle lies beyond p / num_parts of all the weight."""
    num_nodes = len(weights)
    up_to = np.cumsum(weights)
    quotient, remainder = divmod(2 * int(up_to[-1]), num_parts)
    part = np.arange(num_parts)
    twice_due = part * quotient - (-part * remainder // num_parts)  # rounded up
    starts = np.searchsorted(2 * up_to - weights - 1, twice_due)
    starts = np.maximum.accumulate(starts - part) + part  # ascending by at least one
    starts = np.minimum(starts, num_nodes - num_parts + part)
    return np.repeat(part, np.diff(starts, append=num_nodes))


def uniform(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node: ranges of a random order of the nodes."""
    generator = np.random.default_rng([problem.seed, problem.num_parts])  # `seed` alone may have shuffled the ids
    order = generator.permutation(problem.num_nodes)
    parts = np.empty(problem.num_nodes, np.int64)
    parts[order] = ranges(problem.weights[order], problem.num_parts)
    return parts
