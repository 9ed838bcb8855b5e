"""Balanced random parts: what a partitioner must beat."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partitioners.contiguous import ranges
from partitioners.problem import Problem


def uniform(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node: ranges of a random order of the nodes."""
    generator = np.random.default_rng([problem.seed, problem.num_parts])  # `seed` alone may have shuffled the ids
    order = generator.permutation(problem.num_nodes)
    parts = np.empty(problem.num_nodes, np.int64)
    parts[order] = ranges(problem.weights[order], problem.num_parts)
    return parts
