"""Local moving of nodes between labels, and the graph whose nodes are the labels."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int, Int64

from partitioners.compiled import compiled
from partitioners.csr import Csr


def move_locally(
    csr: Csr,
    node_weights: Int64[np.ndarray, " nodes"],
    labels: Int[np.ndarray, " nodes"],
    sizes: Int64[np.ndarray, " labels"],
    smallest: int,
    largest: int,
    rounds: int,
) -> None:
    """Give nodes, by ascending id, the label among their neighbours that they share most edges with. In place.

    A label is taken only while its size, the weight of its nodes, stays at most `largest`, and left only while it
    stays at least `smallest`; among equals a node keeps its own, then takes the smallest, then the one met first.
    A round looks at the nodes next to what has moved since they were looked at last; the rounds end early once
    fewer than 1 % of all nodes move.
    int32 labels are quicker: what limits the speed is how many of them the processor's cache holds.
    """
    _move_locally(csr.starts, csr.neighbours, csr.weights, node_weights, labels, sizes, smallest, largest, rounds)


def contract(
    csr: Csr, node_weights: Int64[np.ndarray, " nodes"], labels: Int[np.ndarray, " nodes"]
) -> tuple[Csr, Int64[np.ndarray, " labels"], Int[np.ndarray, " nodes"]]:
    """The graph of labels, the weight of each of its nodes, and which of them each node became.

    Its nodes are numbered in the order in which labels first appear; edges between two labels become one, of
    their summed weight, edges within a label vanish; neighbours of a node are not sorted.
    """
    compact, num_labels = _compact(labels)
    starts, neighbours, weights, label_weights = _contract(
        csr.starts, csr.neighbours, csr.weights, node_weights, compact, num_labels
    )
    return Csr(starts, neighbours, weights), label_weights, compact


@compiled
@no_type_check
def _move_locally(starts, neighbours, weights, node_weights, labels, sizes, smallest, largest, rounds):
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
def _contract(starts, neighbours, weights, node_weights, labels, num_labels):
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
    return coarse_starts, coarse_neighbours[:total].copy(), coarse_weights[:total].copy(), label_weights
