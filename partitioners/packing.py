"""Nodes placed by their weight alone, on the lightest part, which a binary heap finds.

The heap holds ids, least key first (equal keys: lowest id first), and keys may change in place: `heap[slot]` is an id,
`slots[id]` where it stands, `keys[id]` its key.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from partitioners.compiled import compiled


@compiled
@no_type_check
def sift_up(heap, slots, keys, slot):
    """Restore the order after the key of the id at `slot` has become less."""
    moving = heap[slot]
    while slot > 0:
        parent = heap[(slot - 1) // 2]
        if keys[parent] < keys[moving] or (keys[parent] == keys[moving] and parent < moving):
            break
        heap[slot] = parent
        slots[parent] = slot
        slot = (slot - 1) // 2
    heap[slot] = moving
    slots[moving] = slot


@compiled
@no_type_check
def sift_down(heap, slots, keys, length, slot):
    """Restore the order of `heap[:length]` after the key of the id at `slot` has become greater."""
    moving = heap[slot]
    while 2 * slot + 1 < length:
        below = 2 * slot + 1
        child = heap[below]
        if below + 1 < length:
            other = heap[below + 1]
            if keys[other] < keys[child] or (keys[other] == keys[child] and other < child):
                below, child = below + 1, other
        if keys[moving] < keys[child] or (keys[moving] == keys[child] and moving < child):
            break
        heap[slot] = child
        slots[child] = slot
        slot = below
    heap[slot] = moving
    slots[moving] = slot


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
