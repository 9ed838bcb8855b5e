"""Where nodes go when only their weight counts."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from partitioners.compiled import compiled
from partitioners.heap import sift_down


def unplaceable(node_weights: Int64[np.ndarray, " nodes"], num_parts: int, largest: int) -> Bool[np.ndarray, " nodes"]:
    """Whether a node may find no room: all others lie in parts of at most `largest`, none lighter than the mean.

    Any other node always has room on the lightest part, so only these ask for care.
    """
    return node_weights + (node_weights.sum() - node_weights) // num_parts > largest


def heaviest_first(node_weights: Int64[np.ndarray, " nodes"], num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Part of each node: the heaviest first, each on the part that is lightest by then; none stays empty.

    The heaviest part exceeds the best possible by at most a third (Graham 1969, "Bounds on multiprocessing
    timing anomalies", theorem 2), and the mean by less than the heaviest node.
    """
    parts = np.zeros(len(node_weights), np.int64)
    order = np.argsort(-node_weights, kind="stable")
    place_on_lightest(order, node_weights, parts, np.zeros(num_parts, np.int64))
    return parts


@compiled
@no_type_check
def place_on_lightest(order, node_weights, parts, sizes):
    """Put the nodes of `order` one by one on the lightest part, the lowest among equals. In place."""
    num_parts = len(sizes)
    heap = np.argsort(sizes, kind="mergesort")
    slots = np.empty(num_parts, np.int64)
    slots[heap] = np.arange(num_parts)
    for node in order:
        part = heap[0]
        parts[node] = part
        sizes[part] += node_weights[node]
        sift_down(heap, slots, sizes, num_parts, 0)
