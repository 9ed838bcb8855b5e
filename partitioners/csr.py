"""Edges in any order and direction, checked -> the neighbours of each node."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, no_type_check

import numpy as np
from jaxtyping import Int64

from partitioners.compiled import compiled


def checked_edges(edges: Any, num_nodes: int) -> Int64[np.ndarray, "2 edges"]:
    """Return `edges` as a contiguous int64 array of node ids; ValueError if they are none of 0..num_nodes-1."""
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
    """Return `weights` as a contiguous int64 array; ValueError unless they are >= 1 and their sum is below 2**53."""
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


class Csr(NamedTuple):
    """An undirected graph without self-loops or parallel edges; the same for any order of the edges.

    The neighbours of node v are `neighbours[starts[v]:starts[v + 1]]`, ascending; each edge appears at both of its
    ends. `weights` are the number of given edges between two nodes, or the sum of their weights; at least 1. Build it
    with `symmetric_csr`.
    """

    starts: Int64[np.ndarray, " nodes_plus_one"]
    neighbours: Int64[np.ndarray, " adjacencies"]
    weights: Int64[np.ndarray, " adjacencies"]

    @property
    def num_nodes(self) -> int:
        return len(self.starts) - 1

    def cut(self, parts: Int64[np.ndarray, " nodes"]) -> int:
        """Weight of the edges between different parts."""
        return int(_cut(self, parts))


def symmetric_csr(
    edges: Int64[np.ndarray, "2 edges"], num_nodes: int, edge_weights: Int64[np.ndarray, " edges"] | None = None
) -> Csr:
    """Return the undirected graph of `edges`, in time and memory linear in nodes and edges.

    Edges may come in either direction, in both, or repeated; self-loops are dropped. Every edge weighs 1 by default.

    Raises:
        ValueError: `checked_edges` or `checked_weights` refuses an argument.

    Examples:
        >>> graph = symmetric_csr(np.array([[0, 1, 1], [1, 0, 2]]), num_nodes=3)
        >>> graph.starts.tolist(), graph.neighbours.tolist(), graph.weights.tolist()
        ([0, 1, 3, 4], [1, 0, 2, 1], [2, 2, 1, 1])
    """
    sources, targets = checked_edges(edges, num_nodes)
    if edge_weights is not None:
        edge_weights = checked_weights(edge_weights, len(sources), "edge_weights")
    return Csr(*_symmetrise(sources, targets, edge_weights, num_nodes))


@compiled
@no_type_check
def _symmetrise(sources, targets, edge_weights, num_nodes):
    """Two counting sorts; the second leaves every row sorted and merges parallel edges as it writes them."""
    weighted = edge_weights is not None
    starts = np.zeros(num_nodes + 1, np.int64)
    for edge in range(len(sources)):
        if sources[edge] != targets[edge]:
            starts[sources[edge] + 1] += 1
            starts[targets[edge] + 1] += 1
    starts = np.cumsum(starts)

    unsorted = np.empty(starts[num_nodes], np.int64)
    unsorted_weights = np.empty(len(unsorted) if weighted else 0, np.int64)
    ends = starts[:-1].copy()
    for edge in range(len(sources)):
        source, target = sources[edge], targets[edge]
        if source != target:
            unsorted[ends[source]] = target
            unsorted[ends[target]] = source
            if weighted:
                unsorted_weights[ends[source]] = edge_weights[edge]
                unsorted_weights[ends[target]] = edge_weights[edge]
            ends[source] += 1
            ends[target] += 1

    neighbours = np.empty(len(unsorted), np.int64)
    weights = np.empty(len(unsorted), np.int64)
    ends = starts[:-1].copy()
    for node in range(num_nodes):
        for index in range(starts[node], starts[node + 1]):
            row = unsorted[index]
            weight = unsorted_weights[index] if weighted else 1
            last = ends[row] - 1
            if last >= starts[row] and neighbours[last] == node:
                weights[last] += weight
            else:
                neighbours[last + 1] = node
                weights[last + 1] = weight
                ends[row] += 1

    merged_starts = np.zeros(num_nodes + 1, np.int64)
    total = 0
    for node in range(num_nodes):
        for index in range(starts[node], ends[node]):  # closes the gaps in place: total never passes index
            neighbours[total] = neighbours[index]
            weights[total] = weights[index]
            total += 1
        merged_starts[node + 1] = total
    if total < len(neighbours):  # else nothing was merged, and copies would only take memory
        neighbours, weights = neighbours[:total].copy(), weights[:total].copy()
    return merged_starts, neighbours, weights


@compiled
@no_type_check
def _cut(csr, parts):
    total = 0
    for node in range(len(parts)):
        for index in range(csr.starts[node], csr.starts[node + 1]):
            other = csr.neighbours[index]
            if other > node and parts[other] != parts[node]:  # each edge once
                total += csr.weights[index]
    return total
