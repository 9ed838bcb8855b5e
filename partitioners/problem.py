"""What every method is given, and what all of them share: the undirected graph is built once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64

from partitioners.balance import largest_part, part_weights, repair
from partitioners.coarsening import move_locally
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
