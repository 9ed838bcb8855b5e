"""Parts that grow one after the other, each by the node most tied to it."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int64

from partitioners.compiled import compiled
from partitioners.csr import Csr
from partitioners.heap import sift_down, sift_up
from partitioners.packing import place_on_lightest


def grow(
    csr: Csr, node_weights: Int64[np.ndarray, " nodes"], num_parts: int, largest: int
) -> Int64[np.ndarray, " nodes"]:
    """Part of each node; a first guess for local moving, its sizes only near the mean.

    A part takes the node with the greatest share of its edges inside the part, those into earlier parts counted
    half, until it holds its share of what was left. The next one begins beside it, with the node most enclosed
    by all parts so far. Nodes that were too heavy when their turn came go to the lightest part.
    """
    parts, sizes = _grow(csr.starts, csr.neighbours, csr.weights, node_weights, num_parts, largest)
    rest = np.flatnonzero(parts < 0)
    place_on_lightest(rest[np.argsort(-node_weights[rest], kind="stable")], node_weights, parts, sizes)
    return parts


@compiled
@no_type_check
def _grow(starts, neighbours, weights, node_weights, num_parts, largest):
    """Part of each node, -1 where none had room in its turn, and the sizes of the parts."""
    num_nodes = len(starts) - 1
    degrees = np.ones(num_nodes, np.int64)
    for node in range(num_nodes):
        degrees[node] = max(1, weights[starts[node] : starts[node + 1]].sum())
    parts, sizes = np.full(num_nodes, -1, np.int64), np.zeros(num_parts, np.int64)
    inside = np.zeros(num_nodes, np.int64)  # weight of edges into the part at hand
    enclosed = np.zeros(num_nodes, np.int64)  # and into any part
    keys = np.zeros(num_nodes)
    heap, slots, length = np.empty(num_nodes, np.int64), np.full(num_nodes, -1, np.int64), 0  # beside the part
    cursor, left = 0, node_weights.sum()
    for part in range(num_parts):
        goal = left / (num_parts - part)
        while sizes[part] < goal:
            if length == 0:
                while cursor < num_nodes and parts[cursor] >= 0:
                    cursor += 1
                if cursor == num_nodes:
                    break
                heap[0], slots[cursor], length = cursor, 0, 1
                cursor += 1
            node = heap[0]
            length -= 1
            heap[0] = heap[length]
            sift_down(heap, slots, keys, length, 0)
            slots[node] = -1
            if sizes[part] + node_weights[node] > largest:
                inside[node] = 0
                continue
            parts[node] = part
            sizes[part] += node_weights[node]
            left -= node_weights[node]
            for index in range(starts[node], starts[node + 1]):
                other = neighbours[index]
                enclosed[other] += weights[index]
                if parts[other] >= 0:
                    continue
                inside[other] += weights[index]
                keys[other] = -(inside[other] + enclosed[other]) / degrees[other]
                if slots[other] < 0:
                    heap[length], slots[other] = other, length
                    length += 1
                sift_up(heap, slots, keys, slots[other])
        length = _keep_most_enclosed(heap, slots, length, inside, enclosed, degrees)
    return parts, sizes


@compiled
@no_type_check
def _keep_most_enclosed(heap, slots, length, inside, enclosed, degrees):
    """Empty the heap of a finished part, but for the node with most of its edges into parts; returns its length."""
    best, greatest_share = -1, -1.0
    for slot in range(length):
        node = heap[slot]
        slots[node] = -1
        inside[node] = 0
        if enclosed[node] / degrees[node] > greatest_share:
            best, greatest_share = node, enclosed[node] / degrees[node]
    if best < 0:
        return 0
    heap[0], slots[best] = best, 0
    return 1
