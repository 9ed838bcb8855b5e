"""One call of `partition`, its arguments checked, and the refinement that methods share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import no_type_check

import numpy as np
from jaxtyping import Int, Int64

from partitioners.balance import largest_part, part_weights, repair
from partitioners.compiled import compiled
from partitioners.csr import Csr, symmetric_csr

ROUNDS = 4  # of local moving after a repair


@dataclass(frozen=True, eq=False)
class Problem:
    """One call of `partition`, its arguments checked.

    Args:
        edges: node ids, as the caller gave them.
        num_nodes, num_parts, seed, tolerance, node_weights, edge_weights, time_limit: as in `partition`.
    """

    edges: Int64[np.ndarray, "2 edges"]
    num_nodes: int
    num_parts: int
    seed: int = 0
    tolerance: float = 0.1
    node_weights: Int64[np.ndarray, " nodes"] | None = None
    edge_weights: Int64[np.ndarray, " edges"] | None = None
    time_limit: float | None = None

    @cached_property
    def csr(self) -> Csr:
        return symmetric_csr(self.edges, self.num_nodes, self.edge_weights)

    @cached_property
    def weights(self) -> Int64[np.ndarray, " nodes"]:
        """Of the nodes; ones where none were given."""
        return np.ones(self.num_nodes, np.int64) if self.node_weights is None else self.node_weights

    @cached_property
    def total_weight(self) -> int:
        return int(self.weights.sum())

    @cached_property
    def largest(self) -> int:
        """Most weight that a part may hold."""
        return largest_part(self.num_nodes, self.num_parts, self.tolerance, self.node_weights)

    @property
    def smallest(self) -> int:
        """Least weight that local moving leaves a part: half the mean, but a node."""
        return max(1, self.total_weight // (2 * self.num_parts))

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
