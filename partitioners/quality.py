"""Quality of a partition in two numbers: edges cut and balance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from partitioners.balance import part_weights
from partitioners.csr import checked_edges, checked_weights, symmetric_csr


@dataclass(frozen=True)
class Quality:
    """Edge cut and balance of a partition. Parallel edges count each, self-loops not at all.

    Args:
        edge_cut: share of edges between different nodes whose ends lie in different parts, by weight, 0..1.
        balance: the largest part / the mean part, in nodes or in their weight; 1 is perfect.
        smallest, largest: nodes in the parts with fewest and with most nodes.
        heaviest: weight of the heaviest part, `largest` without node weights; at most `largest_part`.
    """

    num_parts: int
    edge_cut: float
    balance: float
    smallest: int
    largest: int
    heaviest: int


def quality(
    edges: Int64[np.ndarray, "2 edges"],
    parts: Int64[np.ndarray, " nodes"],
    num_parts: int | None = None,
    node_weights: Int64[np.ndarray, " nodes"] | None = None,
    edge_weights: Int64[np.ndarray, " edges"] | None = None,
) -> Quality:
    """Return edge cut and balance of `parts`; `num_parts` is needed only where the last parts may be empty.

    Raises:
        ValueError: edges name nodes without a part, a part is out of range, or weights are refused.

    Examples:
        >>> quality(np.array([[0, 1, 2], [1, 2, 3]]), np.array([0, 0, 0, 1])).balance
        1.5
    """
    edges = checked_edges(edges, len(parts))
    if num_parts is None:
        num_parts = int(parts.max()) + 1
    if parts.min() < 0 or parts.max() >= num_parts:
        raise ValueError(
            f"parts are {parts.min()}..{parts.max()}; wanted 0..{num_parts - 1}: renumber or pass num_parts"
        )
    csr = symmetric_csr(edges, len(parts), edge_weights)
    counts = np.bincount(parts, minlength=num_parts)
    weights = counts
    if node_weights is not None:
        weights = part_weights(parts, num_parts, checked_weights(node_weights, len(parts), "node_weights"))
    return Quality(
        num_parts=num_parts,
        edge_cut=csr.cut(parts) / max(1, int(csr.weights.sum()) // 2),  # both directions of each edge
        balance=float(weights.max() * num_parts / weights.sum()),
        smallest=int(counts.min()),
        largest=int(counts.max()),
        heaviest=int(weights.max()),
    )
