"""No empty part, no part too large: what others rely on and partitioners do not promise."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from partitioners.arguments import check_num_parts, check_tolerance
from partitioners.compiled import compiled
from partitioners.csr import Csr


def largest_part(num_nodes: int, num_parts: int, tolerance: float = 0.1) -> int:
    """Most nodes a part may hold: the mean plus `tolerance` of it, rounded up, while none is empty.

    Raises:
        ValueError: `num_parts` is not in 1..num_nodes, or `tolerance` is negative.
    """
    check_num_parts(num_nodes, num_parts)
    check_tolerance(tolerance)
    mean_rounded_up = -(-num_nodes // num_parts)
    allowed = math.ceil(num_nodes * (1 + tolerance) / num_parts - 1e-9)  # 10 * 1.1 is a little more than 11
    return min(max(mean_rounded_up, allowed), num_nodes - num_parts + 1)


def num_parts_for(num_nodes: int, max_nodes: int, tolerance: float = 0.1) -> int:
    """Fewest parts whose `largest_part` is at most `max_nodes`: what bounds the memory of one part.

    Raises:
        ValueError: a number of nodes below 1, or a negative `tolerance`.
    """
    if num_nodes < 1 or max_nodes < 1:
        raise ValueError(f"num_nodes is {num_nodes} and max_nodes {max_nodes}; wanted both >= 1")
    parts = range(1, num_nodes + 1)
    return parts[bisect_left(parts, -max_nodes, key=lambda count: -largest_part(num_nodes, count, tolerance))]


def repair(parts: Int64[np.ndarray, " nodes"], csr: Csr, num_parts: int, largest: int) -> Int64[np.ndarray, " nodes"]:
    """A copy of `parts` in which every part holds 1..largest nodes; changed only as far as need be.

    Empty parts take the upper half (by node id) of the largest ones. Nodes of oversized parts then move to
    the neighbouring part with room they share most edges with; what finds none goes wherever there is room.

    Raises:
        ValueError: `largest` times `num_parts` is less than the nodes there are, or `num_parts` more.
    """
    check_num_parts(len(parts), num_parts)
    if num_parts * largest < len(parts):
        raise ValueError(
            f"{num_parts} parts of at most {largest} nodes cannot hold {len(parts)}; "
            f"wanted at least {-(-len(parts) // num_parts)} each: raise largest or num_parts"
        )
    parts = _fill_empty(parts.copy(), num_parts)
    sizes = np.bincount(parts, minlength=num_parts)
    if sizes.max() > largest:
        _overflow(csr.starts, csr.neighbours, csr.weights, parts, sizes, largest)
        _spill(parts, num_parts, largest)
    return parts


def _fill_empty(parts: Int64[np.ndarray, " nodes"], num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Each round splits as many of the largest parts as are empty: about log2(num_parts) rounds."""
    while True:
        sizes = np.bincount(parts, minlength=num_parts)
        empty = np.flatnonzero(sizes == 0)
        if not len(empty):
            return parts
        donors = np.argsort(-sizes, kind="stable")[: min(len(empty), np.count_nonzero(sizes > 1))]
        kept = sizes.copy()
        kept[donors] = (sizes[donors] + 1) // 2
        heir = np.full(num_parts, -1)
        heir[donors] = empty[: len(donors)]
        moved = _beyond(parts, kept)
        parts[moved] = heir[parts[moved]]


def _spill(parts: Int64[np.ndarray, " nodes"], num_parts: int, largest: int) -> None:
    """Put the highest node ids of oversized parts into the room of others, lowest part first. In place."""
    sizes = np.bincount(parts, minlength=num_parts)
    surplus = np.flatnonzero(_beyond(parts, np.full(num_parts, largest)))
    room = np.repeat(np.arange(num_parts), np.maximum(largest - sizes, 0))
    parts[surplus] = room[: len(surplus)]


def _beyond(parts: Int64[np.ndarray, " nodes"], kept: Int64[np.ndarray, " parts"]) -> Bool[np.ndarray, " nodes"]:
    """Whether a node comes after the first `kept[part]` nodes of its part, by node id."""
    order = np.argsort(parts, kind="stable")
    sizes = np.bincount(parts, minlength=len(kept))
    rank = np.arange(len(parts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    beyond = np.empty(len(parts), np.bool_)
    beyond[order] = rank >= kept[parts[order]]
    return beyond


@compiled
@no_type_check
def _overflow(starts, neighbours, weights, parts, sizes, largest):
    """Move nodes out of oversized parts across their borders, breadth first. Changes `parts` and `sizes`.

    A part that receives nodes never grows beyond `largest` and so never gives any. Each node is looked
    at once: the work is linear in nodes and edges, whatever the hubs.
    """
    num_nodes = len(parts)
    shared = np.zeros(len(sizes), np.int64)  # edges from the node at hand into each part, else zeros
    queue = np.empty(num_nodes, np.int64)
    queued = np.zeros(num_nodes, np.bool_)
    head, tail = 0, 0
    for node in range(num_nodes):
        if sizes[parts[node]] <= largest:
            continue
        for index in range(starts[node], starts[node + 1]):
            if sizes[parts[neighbours[index]]] < largest:
                queue[tail] = node
                queued[node] = True
                tail += 1
                break
    while head < tail:
        node = queue[head]
        head += 1
        home = parts[node]
        if sizes[home] <= largest:
            continue
        best = -1
        for index in range(starts[node], starts[node + 1]):
            part = parts[neighbours[index]]
            shared[part] += weights[index]
            if sizes[part] < largest and (
                best < 0 or shared[part] > shared[best] or (shared[part] == shared[best] and part < best)
            ):
                best = part
        for index in range(starts[node], starts[node + 1]):
            shared[parts[neighbours[index]]] = 0
        if best < 0:
            continue
        parts[node] = best
        sizes[best] += 1
        sizes[home] -= 1
        for index in range(starts[node], starts[node + 1]):
            other = neighbours[index]
            if parts[other] == home and not queued[other]:
                queue[tail] = other
                queued[other] = True
                tail += 1
