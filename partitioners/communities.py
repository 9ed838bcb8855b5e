"""Communities of bounded size, found level by level: the cut of METIS in a fraction of its time where hubs abound."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Int, Int64

from partitioners.balance import Problem, move_locally, part_weights, place_on_lightest, sift_down, sift_up
from partitioners.compiled import compiled
from partitioners.csr import Csr

NODES_PER_PART = 60  # of the coarsest graph: enough freedom to balance, few enough to be quick
COMMUNITIES_PER_PART = 16  # at least: a community weighs at most 1 / 16 of a part
ROUNDS_OF_CLUSTERING = 3
ROUNDS_OF_REFINEMENT = 4


class Level(NamedTuple):
    """A graph of the hierarchy, and the node of it that each node of the finer graph became."""

    csr: Csr
    node_weights: Int64[np.ndarray, " nodes"]
    community: Int[np.ndarray, " finer_nodes"] | None


def communities(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node, by local moving of nodes on every level of a hierarchy of communities.

    As in Louvain's method, nodes join the neighbouring community they share most edges with, within a bound on size,
    and communities become the nodes of a coarser graph. Parts grow on the coarsest one; then nodes move between parts
    on every level. After Meyerhenke, Sanders and Schulz, "Partitioning complex networks via size-constrained
    clustering" (2014), sections 3 and 4.
    """
    levels = _coarsened(problem)
    parts = grow(levels[-1].csr, levels[-1].node_weights, problem.num_parts, problem.largest)
    sizes = part_weights(parts, problem.num_parts, levels[-1].node_weights)
    for level in reversed(levels):
        move_locally(
            level.csr, level.node_weights, parts, sizes, problem.smallest, problem.largest, ROUNDS_OF_REFINEMENT
        )
        if level.community is not None:
            parts = parts[level.community]
    return problem.refined(parts)


def _coarsened(problem: Problem) -> list[Level]:
    """From the given graph to one small enough to grow parts on, or one whose communities no longer shrink it."""
    levels = [Level(problem.csr, problem.weights, None)]
    largest = max(1, problem.largest // COMMUNITIES_PER_PART)
    while levels[-1].csr.num_nodes > max(NODES_PER_PART * problem.num_parts, 2000):
        csr, weights = levels[-1].csr, levels[-1].node_weights
        labels = np.arange(csr.num_nodes, dtype=np.int32 if csr.num_nodes < 2**31 else np.int64)
        move_locally(csr, weights, labels, weights.copy(), 0, largest, ROUNDS_OF_CLUSTERING)
        coarser = Level(*contract(csr, weights, labels))
        if coarser.csr.num_nodes > 0.95 * csr.num_nodes:
            break
        levels.append(coarser)
    return levels


def contract(
    csr: Csr, node_weights: Int64[np.ndarray, " nodes"], labels: Int[np.ndarray, " nodes"]
) -> tuple[Csr, Int64[np.ndarray, " labels"], Int[np.ndarray, " nodes"]]:
    """Return the graph of labels, the weight of each of its nodes, and the one that each node became.

    Nodes are numbered in the order in which labels first appear; edges between two labels become one of summed weight.
    """
    compact, num_labels = _compact(labels)
    arrays, label_weights = _contract(csr, node_weights, compact, num_labels)
    return Csr(*arrays), label_weights, compact


@compiled
@no_type_check
def _compact(labels):
    """Labels as 0, 1, 2, ... in the order in which they first appear, and their number."""
    num_labels = 0
    number = np.full_like(labels, -1)
    compact = np.empty_like(labels)
    for node in range(len(labels)):
        if number[labels[node]] < 0:
            number[labels[node]] = num_labels
            num_labels += 1
        compact[node] = number[labels[node]]
    return compact, num_labels


@compiled
@no_type_check
def _contract(csr, node_weights, labels, num_labels):
    starts, neighbours, weights = csr
    num_nodes = len(starts) - 1
    label_weights = np.zeros(num_labels, np.int64)
    member_starts = np.zeros(num_labels + 1, np.int64)
    for node in range(num_nodes):
        label_weights[labels[node]] += node_weights[node]
        member_starts[labels[node] + 1] += 1
    member_starts = np.cumsum(member_starts)
    members = np.empty(num_nodes, np.int64)
    ends = member_starts[:-1].copy()
    for node in range(num_nodes):
        members[ends[labels[node]]] = node
        ends[labels[node]] += 1

    coarse_starts = np.zeros(num_labels + 1, np.int64)
    coarse_neighbours = np.empty(len(neighbours), np.int64)
    coarse_weights = np.empty(len(neighbours), np.int64)
    place = np.full(num_labels, -1, np.int64)  # of each label in `coarse_neighbours`, where it was last written
    total = 0
    for label in range(num_labels):
        coarse_starts[label] = total
        for member in range(member_starts[label], member_starts[label + 1]):
            node = members[member]
            for index in range(starts[node], starts[node + 1]):
                other = labels[neighbours[index]]
                if other == label:
                    continue
                if place[other] >= coarse_starts[label]:
                    coarse_weights[place[other]] += weights[index]
                else:
                    place[other] = total
                    coarse_neighbours[total] = other
                    coarse_weights[total] = weights[index]
                    total += 1
    coarse_starts[num_labels] = total
    return (coarse_starts, coarse_neighbours[:total].copy(), coarse_weights[:total].copy()), label_weights


def grow(
    csr: Csr, node_weights: Int64[np.ndarray, " nodes"], num_parts: int, largest: int
) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node: a first guess for local moving, its sizes only near the mean.

    A part takes the node with the greatest share of its edges inside the part, those into earlier parts counted half,
    until it holds its share of the rest. Nodes that were too heavy go to the lightest part.
    """
    parts, sizes = _grow(csr, node_weights, num_parts, largest)
    rest = np.flatnonzero(parts < 0)
    place_on_lightest(rest[np.argsort(-node_weights[rest], kind="stable")], node_weights, parts, sizes)
    return parts


@compiled
@no_type_check
def _grow(csr, node_weights, num_parts, largest):
    """Part of each node, -1 where none had room in its turn, and the sizes of the parts."""
    starts, neighbours, weights = csr
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
