"""Balance of parts: the most that a part may hold, the repair of partitions, and local moves that keep the bounds."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from partitioners.compiled import compiled
from partitioners.csr import Csr, check_num_parts, check_tolerance, checked_weights, symmetric_csr


def largest_part(
    num_nodes: int, num_parts: int, tolerance: float = 0.1, node_weights: Int64[np.ndarray, " nodes"] | None = None
) -> int:
    """Return the most that a part may hold, in nodes or in their weight: the mean plus `tolerance` of it, rounded up.

    Indivisible nodes may raise it to the result of placing the heaviest nodes first, each on the lightest part: at most
    a third above the best possible (Graham 1969, "Bounds on multiprocessing timing anomalies", theorem 2). It is at
    most the rest when every other part holds one node.

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
    """Return a copy of `parts` in which no part is empty or holds more than `largest`, with few changes.

    Empty parts take the upper half (by node id) of those with most nodes. Nodes so heavy that there may be no room for
    them are spread over the parts. Nodes of oversized parts then move to the neighbouring part with room that they
    share most edges with, or wherever there is room. `largest_part` is always enough for `largest`.

    Raises:
        ValueError: `num_parts` is more than the nodes there are, or `largest` too little to hold them.

    Examples:
        >>> csr = symmetric_csr(np.array([[0, 1, 2], [1, 2, 3]]), 4)
        >>> repair(np.array([0, 0, 0, 1]), csr, num_parts=2, largest=2).tolist()
        [0, 0, 1, 1]
    """
    check_num_parts(len(parts), num_parts)
    ones = np.ones(len(parts), np.int64)
    weights = ones if node_weights is None else checked_weights(node_weights, len(parts), "node_weights")
    parts = _fill_empty(parts.copy(), num_parts)
    if part_weights(parts, num_parts, weights).max() <= largest:
        return parts
    _spread_heavy(parts, weights, num_parts, largest)
    sizes = part_weights(parts, num_parts, weights)
    _overflow(csr, weights, parts, sizes, largest)
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
    """Mark the nodes beyond what their part keeps: the heaviest, lower ids first, while they weigh `kept`."""
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
def _overflow(csr, node_weights, parts, sizes, largest):
    """Move nodes out of oversized parts across their borders, breadth first, in linear time. In place."""
    starts, neighbours, weights = csr
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
    """Mark the nodes that may find no room on the lightest part, while no other part holds more than `largest`."""
    return node_weights + (node_weights.sum() - node_weights) // num_parts > largest


def heaviest_first(node_weights: Int64[np.ndarray, " nodes"], num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node: the heaviest first, each on the lightest part (Graham 1969, theorem 2)."""
    parts = np.zeros(len(node_weights), np.int64)
    order = np.argsort(-node_weights, kind="stable")
    place_on_lightest(order, node_weights, parts, np.zeros(num_parts, np.int64))
    return parts


@compiled
@no_type_check
def place_on_lightest(order, node_weights, parts, sizes):
    """Put the nodes of `order` one by one on the lightest part, the lowest among equals. In place."""
    num_parts = len(sizes)
    heap, slots = np.arange(num_parts), np.arange(num_parts)
    for slot in range(num_parts // 2 - 1, -1, -1):
        sift_down(heap, slots, sizes, num_parts, slot)
    for node in order:
        part = heap[0]
        parts[node] = part
        sizes[part] += node_weights[node]
        sift_down(heap, slots, sizes, num_parts, 0)


ROUNDS = 4  # of local moving after a repair


@dataclass(frozen=True, eq=False)
class Problem:
    """One call of `partition`, its arguments checked."""

    edges: Int64[np.ndarray, "2 edges"]
    num_nodes: int
    num_parts: int
    seed: int = 0
    tolerance: float = 0.1
    node_weights: Int64[np.ndarray, " nodes"] | None = None
    edge_weights: Int64[np.ndarray, " edges"] | None = None

    @cached_property
    def csr(self) -> Csr:
        return symmetric_csr(self.edges, self.num_nodes, self.edge_weights)

    @cached_property
    def weights(self) -> Int64[np.ndarray, " nodes"]:
        """Of the nodes; ones where none were given."""
        return np.ones(self.num_nodes, np.int64) if self.node_weights is None else self.node_weights

    @cached_property
    def largest(self) -> int:
        """Most weight that a part may hold."""
        return largest_part(self.num_nodes, self.num_parts, self.tolerance, self.node_weights)

    @property
    def smallest(self) -> int:
        """Least weight that local moving leaves a part: half the mean, but a node."""
        return max(1, int(self.weights.sum()) // (2 * self.num_parts))

    def balanced(self, parts: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
        """`parts` where no part is empty or too heavy, otherwise a repaired copy."""
        weights = part_weights(parts, self.num_parts, self.node_weights)
        if weights.min() > 0 and weights.max() <= self.largest:
            return parts
        return repair(parts, self.csr, self.num_parts, self.largest, self.node_weights)

    def refined(self, parts: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
        """`balanced`, and where that moved nodes, what they cost in edges won back by local moving."""
        balanced = self.balanced(parts)
        if balanced is not parts:
            sizes = part_weights(balanced, self.num_parts, self.node_weights)
            move_locally(self.csr, self.weights, balanced, sizes, self.smallest, self.largest, ROUNDS)
        return balanced


@compiled
@no_type_check
def move_locally(csr, node_weights, labels, sizes, smallest, largest, rounds):
    """Give nodes, by ascending id, the most frequent label among their neighbours, by edges. In place.

    A label's size, the weight of its nodes, stays between `smallest` and `largest`; among equals a node keeps its own
    label, then takes the smallest, then the one met first. A round looks at the nodes next to those that have moved
    since; the rounds end once fewer than 1 % of all nodes move. int32 `labels` are quicker: more fit into the caches.
    """
    starts, neighbours, weights = csr
    num_nodes = len(starts) - 1
    shared = np.zeros(len(sizes), np.int64)  # weight of edges from the node at hand to each label, else zeros
    waiting = np.ones(num_nodes, np.bool_)
    for _ in range(rounds):
        num_moved = 0
        for node in range(num_nodes):
            if not waiting[node]:
                continue
            waiting[node] = False
            first, last, home = starts[node], starts[node + 1], labels[node]
            if sizes[home] - node_weights[node] < smallest:
                continue
            for index in range(first, last):
                shared[labels[neighbours[index]]] += weights[index]
            best, most = home, shared[home]
            shared[home] = 0
            for index in range(first, last):
                label = labels[neighbours[index]]
                if shared[label] == 0:
                    continue
                better = shared[label] > most or (shared[label] == most and best != home and sizes[label] < sizes[best])
                if better and sizes[label] + node_weights[node] <= largest:
                    best, most = label, shared[label]
                shared[label] = 0
            if best == home:
                continue
            labels[node] = best
            sizes[home] -= node_weights[node]
            sizes[best] += node_weights[node]
            num_moved += 1
            for index in range(first, last):
                if labels[neighbours[index]] != best:
                    waiting[neighbours[index]] = True
        if num_moved * 100 < num_nodes:
            break
