"""Communities of bounded size, found level by level: the cut of METIS in a fraction of its time where hubs abound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Int64

from partitioners.balance import part_weights
from partitioners.coarsening import contract, move_locally
from partitioners.csr import Csr
from partitioners.growing import grow
from partitioners.problem import Problem

NODES_PER_PART = 60  # of the coarsest graph: enough freedom to balance, few enough to be quick
COMMUNITIES_PER_PART = 16  # at least: a community weighs at most 1 / 16 of a part
ROUNDS_OF_CLUSTERING = 3
ROUNDS_OF_REFINEMENT = 4


@dataclass(frozen=True, eq=False)
class Level:
    """A graph of the hierarchy.

    Args:
        csr: its edges.
        node_weights: summed over the nodes of the given graph that each node stands for.
        community: which of its nodes each node of the finer graph became; None for the given graph itself.
    """

    csr: Csr
    node_weights: Int64[np.ndarray, " nodes"]
    community: Int[np.ndarray, " finer_nodes"] | None


def communities(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node, by local moving of nodes on every level of a hierarchy of communities.

    As in Louvain's method, nodes join the neighbouring community they share most edges with, while it stays
    under a bound on size, and communities become the nodes of a coarser graph. Parts grow on the coarsest one;
    then nodes move between parts on every level, from coarse to fine. After Meyerhenke, Sanders and Schulz,
    "Partitioning complex networks via size-constrained clustering" (2014), sections 3 and 4.
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
