"""The caller's mistakes, found before they become a silent wrong cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Int64


def checked_edges(edges: Any, num_nodes: int) -> Int64[np.ndarray, "2 edges"]:
    """`edges` as a contiguous int64 array of node ids in 0..num_nodes-1; other integer types are converted.

    Raises:
        ValueError: no nodes, another shape, not integers, or an id out of range.
    """
    if num_nodes < 1:
        raise ValueError(f"num_nodes is {num_nodes}; wanted at least 1: skip empty graphs")
    array = np.asarray(edges)
    if array.ndim != 2 or array.shape[0] != 2:
        raise ValueError(f"edges have shape {array.shape}; wanted (2, edges): transpose a list of pairs")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"edges are {array.dtype}; wanted int64 node ids: convert with .astype(np.int64)")
    if array.size and (array.min() < 0 or array.max() >= num_nodes):
        low, high = array.min(), array.max()
        raise ValueError(f"edges name nodes {low}..{high}; wanted 0..{num_nodes - 1}: renumber or raise num_nodes")
    return np.ascontiguousarray(array, dtype=np.int64)


def check_num_parts(num_nodes: int, num_parts: int) -> None:
    """Raises ValueError unless `num_nodes` nodes can fill `num_parts` parts without an empty one."""
    if not 1 <= num_parts <= num_nodes:
        raise ValueError(
            f"num_parts is {num_parts} for {num_nodes} nodes; wanted 1..{num_nodes}, none empty: "
            f"ask for at most {num_nodes}"
        )


def check_tolerance(tolerance: float) -> None:
    """Raises ValueError unless `tolerance` is a finite number >= 0."""
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance is {tolerance}; wanted a finite number >= 0: 0.1 means 10 % larger")
