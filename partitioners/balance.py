"""No empty part, no part too large: what others rely on and partitioners do not promise."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from partitioners.compiled import compiled
from partitioners.csr import Csr, check_num_parts, check_tolerance, checked_weights
from partitioners.packing import heaviest_first, place_on_lightest, unplaceable


def largest_part(
    num_nodes: int,
    num_parts: int,
    tolerance: float = 0.1,
    node_weights: Int64[np.ndarray, " nodes"] | None = None,
) -> int:
    """Most that a part may hold, in nodes or in their weight: the mean plus `tolerance` of it, rounded up.

    It is raised where indivisible nodes leave no choice: to what placing the heaviest nodes first, each on the
    lightest part, reaches. For equal nodes that is the mean rounded up; a single node heavier than the mean and
    its tolerance is then alone in its part, and its weight is the bound. In general it exceeds the best possible
    by at most a third (Graham 1969, "Bounds on multiprocessing timing anomalies", theorem 2). And it is lowered
    to what is left when every other part holds one node.

    Raises:
        ValueError: `num_parts` is not in 1..num_nodes, `tolerance` is negative, or a weight is below 1.

    Examples:
        >>> largest_part(num_nodes=100, num_parts=10, tolerance=0.1)
        11
    """
    check_num_parts(num_nodes, num_parts)
    check_tolerance(tolerance)
    if node_weights is not None:
        node_weights = checked_weights(node_weights, num_nodes, "node_weights")
    total = num_nodes if node_weights is None else int(node_weights.sum())
    allowed = math.ceil(total * (1 + tolerance) / num_parts - 1e-9)  # 10 * 1.1 is a little more than 11
    if node_weights is None:
        return min(max(-(-num_nodes // num_parts), allowed), num_nodes - num_parts + 1)
    heavy = node_weights[unplaceable(node_weights, num_parts, allowed)]  # the others never reach beyond `allowed`
    reachable = int(part_weights(heaviest_first(heavy, num_parts), num_parts, heavy).max())
    lightest = np.partition(node_weights, num_parts - 1)[: num_parts - 1]
    return min(max(reachable, allowed), total - int(lightest.sum()))


def num_parts_for(num_nodes: int, max_nodes: int, tolerance: float = 0.1) -> int:
    """Fewest parts whose `largest_part` is at most `max_nodes`: what bounds the memory of one part.

    Raises:
        ValueError: a number of nodes below 1, or a negative `tolerance`.

    Examples:
        >>> num_parts_for(num_nodes=1000, max_nodes=100)
        11
    """
    if num_nodes < 1 or max_nodes < 1:
        raise ValueError(f"num_nodes is {num_nodes} and max_nodes {max_nodes}; wanted both >= 1")
    parts = range(1, num_nodes + 1)
    return parts[bisect_left(parts, -max_nodes, key=lambda count: -largest_part(num_nodes, count, tolerance))]


def part_weights(
    parts: Int64[np.ndarray, " nodes"], num_parts: int, node_weights: Int64[np.ndarray, " nodes"] | None = None
) -> Int64[np.ndarray, " parts"]:
    """Nodes of each part, or their weight."""
    if node_weights is None:
        return np.bincount(parts, minlength=num_parts)
    return np.bincount(parts, node_weights, num_parts).astype(np.int64)  # exact: see `checked_weights`


def repair(
    parts: Int64[np.ndarray, " nodes"],
    csr: Csr,
    num_parts: int,
    largest: int,
    node_weights: Int64[np.ndarray, " nodes"] | None = None,
) -> Int64[np.ndarray, " nodes"]:
    """A copy of `parts` in which no part is empty or holds more than `largest`; changed only as far as need be.

    Empty parts take the upper half (by node id) of those with most nodes. Nodes of oversized parts then move to
    the neighbouring part with room they share most edges with; what finds none goes wherever there is room.
    Before that, nodes so heavy that there may be no room for them are spread over the parts.

    Args:
        largest: in nodes, or in their weight where `node_weights` are given; `largest_part` is always enough.

    Raises:
        ValueError: `num_parts` is more than the nodes there are, or `largest` too little to hold them.
    """
    check_num_parts(len(parts), num_parts)
    ones = np.ones(len(parts), np.int64)
    weights = ones if node_weights is None else checked_weights(node_weights, len(parts), "node_weights")
    parts = _fill_empty(parts.copy(), num_parts)
    if part_weights(parts, num_parts, weights).max() <= largest:
        return parts
    _spread_heavy(parts, weights, num_parts, largest)
    sizes = part_weights(parts, num_parts, weights)
    _overflow(csr.starts, csr.neighbours, csr.weights, weights, parts, sizes, largest)
    _spill(parts, weights, num_parts, np.full(num_parts, largest))
    return _fill_empty(parts, num_parts)


def _fill_empty(parts: Int64[np.ndarray, " nodes"], num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Each round splits as many of the largest parts as are empty: about log2(num_parts) rounds."""
    ones = np.ones(len(parts), np.int64)
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
        moved = _beyond(parts, ones, kept)
        parts[moved] = heir[parts[moved]]


def _spread_heavy(
    parts: Int64[np.ndarray, " nodes"], weights: Int64[np.ndarray, " nodes"], num_parts: int, largest: int
) -> None:
    """Move as few of the nodes that may find no room as will do, until no part holds too many of them. In place."""
    heavy = np.flatnonzero(unplaceable(weights, num_parts, largest))
    before, heavy_weights = parts[heavy], weights[heavy]
    sizes = part_weights(before, num_parts, heavy_weights)
    for share_kept in (1.0, 0.9, 0.5):
        after = before.copy()
        _spill(after, heavy_weights, num_parts, np.minimum(largest, sizes * share_kept).astype(np.int64))
        if part_weights(after, num_parts, heavy_weights).max() <= largest:
            parts[heavy] = after
            return
    parts[heavy] = heaviest_first(heavy_weights, num_parts)
    least = part_weights(parts[heavy], num_parts, heavy_weights).max()
    if least > largest:
        raise ValueError(
            f"{num_parts} parts of at most {largest} cannot hold {len(parts)} nodes of weight {weights.sum()}; "
            f"wanted at least {least} each: raise largest or num_parts"
        )


def _spill(
    parts: Int64[np.ndarray, " nodes"],
    weights: Int64[np.ndarray, " nodes"],
    num_parts: int,
    kept: Int64[np.ndarray, " parts"],
) -> None:
    """Move what is more than a part keeps, heaviest first, to whichever part is lightest by then. In place."""
    surplus = np.flatnonzero(_beyond(parts, weights, kept))
    sizes = part_weights(parts, num_parts, weights) - part_weights(parts[surplus], num_parts, weights[surplus])
    place_on_lightest(surplus[np.argsort(-weights[surplus], kind="stable")], weights, parts, sizes)


def _beyond(
    parts: Int64[np.ndarray, " nodes"], weights: Int64[np.ndarray, " nodes"], kept: Int64[np.ndarray, " parts"]
) -> Bool[np.ndarray, " nodes"]:
    """Whether a node is more than its part keeps: the heaviest nodes, lower ids first, while they weigh `kept`."""
    order = np.lexsort((-weights, parts))
    counts = np.bincount(parts, minlength=len(kept))
    starts = np.cumsum(counts) - counts
    weight_so_far = np.cumsum(weights[order])
    before = np.concatenate([[0], weight_so_far])[starts]
    beyond = np.empty(len(parts), np.bool_)
    beyond[order] = weight_so_far - np.repeat(before, counts) > np.repeat(kept, counts)
    return beyond


@compiled
@no_type_check
def _overflow(starts, neighbours, weights, node_weights, parts, sizes, largest):
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
            if sizes[parts[neighbours[index]]] + node_weights[node] <= largest:
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
            if sizes[part] + node_weights[node] <= largest and (
                best < 0 or shared[part] > shared[best] or (shared[part] == shared[best] and part < best)
            ):
                best = part
        for index in range(starts[node], starts[node + 1]):
            shared[parts[neighbours[index]]] = 0
        if best < 0:
            continue
        parts[node] = best
        sizes[best] += node_weights[node]
        sizes[home] -= node_weights[node]
        for index in range(starts[node], starts[node + 1]):
            other = neighbours[index]
            if parts[other] == home and not queued[other]:
                queue[tail] = other
                queued[other] = True
                tail += 1
