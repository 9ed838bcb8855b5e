"""Balanced random parts: what a partitioner must beat."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partitioners.contiguous import contiguous


def uniform(num_nodes: int, num_parts: int, seed: int) -> Int64[np.ndarray, " nodes"]:
    """Part of each node, drawn uniformly among the assignments whose sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(contiguous(num_nodes, num_parts))
