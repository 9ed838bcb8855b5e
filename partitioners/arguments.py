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


def checked_weights(weights: Any, count: int, name: str) -> Int64[np.ndarray, " weights"]:
    """`weights` as a contiguous int64 array of `count` numbers >= 1; other integer types are converted.

    Raises:
        ValueError: another shape, not integers, below 1, or so large that sums in float64 would not be exact.
    """
    array = np.asarray(weights)
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}; wanted ({count},): one weight each")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} is {array.dtype}; wanted int64: scale and round")
    if count and array.min() < 1:
        raise ValueError(f"{name} has a weight of {array.min()}; wanted at least 1: scale up, or leave such edges out")
    if array.sum(dtype=np.float64) >= 2**53:
        raise ValueError(f"{name} add up to {array.sum(dtype=np.float64):.3g}; wanted less than 2**53: scale down")
    return np.ascontiguousarray(array, dtype=np.int64)


def check_time_limit(time_limit: float | None, method: str) -> None:
    """Raises ValueError unless `time_limit` is None, or a number >= 0 for a method that can keep to it."""
    if time_limit is not None and method != "auto":
        raise ValueError(f"time_limit is {time_limit} for method {method!r}; only 'auto' keeps to one: leave it out")
    if time_limit is not None and not time_limit >= 0:
        raise ValueError(f"time_limit is {time_limit}; wanted a number of seconds >= 0: leave it out for no limit")
