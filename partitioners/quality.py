"""How good a partition is, in the two numbers that matter: edges cut and balance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from partitioners.arguments import checked_edges


@dataclass(frozen=True)
class Quality:
    """Measured on the edges as given: parallel edges count each, self-loops not at all.

    Args:
        num_parts: number of parts, empty ones included.
        edge_cut: share of edges between different nodes whose ends lie in different parts, 0..1; 0 without
            edges.
        balance: nodes of the largest part / mean nodes per part; 1 is perfect.
        smallest: nodes in the smallest part.
        largest: nodes in the largest part.
    """

    num_parts: int
    edge_cut: float
    balance: float
    smallest: int
    largest: int


def quality(
    edges: Int64[np.ndarray, "2 edges"], parts: Int64[np.ndarray, " nodes"], num_parts: int | None = None
) -> Quality:
    """Measure `parts`.

    Args:
        edges: node ids, in either direction or both.
        parts: part of each node, 0..num_parts-1.
        num_parts: needed only where the last parts may be empty; otherwise the greatest part named, plus one.

    Raises:
        ValueError: edges name nodes without a part, or a part is out of range.
    """
    sources, targets = checked_edges(edges, len(parts))
    if num_parts is None:
        num_parts = int(parts.max()) + 1
    if parts.min() < 0 or parts.max() >= num_parts:
        raise ValueError(
            f"parts are {parts.min()}..{parts.max()}; wanted 0..{num_parts - 1}: renumber or pass num_parts"
        )
    sizes = np.bincount(parts, minlength=num_parts)
    num_links = np.count_nonzero(sources != targets)
    num_cut = np.count_nonzero(parts[sources] != parts[targets])
    return Quality(
        num_parts=num_parts,
        edge_cut=float(num_cut / num_links) if num_links else 0.0,
        balance=float(sizes.max() * num_parts / len(parts)),
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
    )
