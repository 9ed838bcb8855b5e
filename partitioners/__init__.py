"""Where does each node belong? Edges -> part of each node. Plain numpy; `quality` compares methods."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from partitioners.arguments import check_num_parts, check_tolerance, checked_edges
from partitioners.balance import largest_part, num_parts_for, repair
from partitioners.contiguous import contiguous
from partitioners.csr import Csr, symmetric_csr
from partitioners.metis import metis
from partitioners.quality import Quality, quality
from partitioners.uniform import uniform

__all__ = [
    "METHODS",
    "Csr",
    "Quality",
    "largest_part",
    "num_parts_for",
    "partition",
    "quality",
    "repair",
    "symmetric_csr",
]

# edges, num_nodes, num_parts, seed, tolerance -> part of each node
METHODS: dict[str, Callable[[np.ndarray, int, int, int, float], np.ndarray]] = {
    "metis": metis,
    "contiguous": lambda edges, num_nodes, num_parts, seed, tolerance: contiguous(num_nodes, num_parts),
    "random": lambda edges, num_nodes, num_parts, seed, tolerance: uniform(num_nodes, num_parts, seed),
}


def partition(
    edges: Int64[np.ndarray, "2 edges"],
    num_nodes: int,
    num_parts: int,
    method: str = "metis",
    seed: int = 0,
    tolerance: float = 0.1,
) -> Int64[np.ndarray, " nodes"]:
    """Part of each node, 0..num_parts-1; no part is empty or holds more than `largest_part` allows.

    Args:
        edges: node ids; direction, order, self-loops and connectedness do not matter.
        num_nodes: at least 1; nodes without edges belong to a part too.
        num_parts: 1..num_nodes; `num_parts_for` gives it from the most nodes a part may hold.
        method: a key of `METHODS`. METIS usually cuts least, but not when ids already follow the data flow:
            try "contiguous" too and keep the one whose `quality` is better.
        seed: at least 0; equal arguments give equal parts.
        tolerance: how much larger than the mean a part may be, as a share of it; at least 0.

    Raises:
        ValueError: an argument is out of range; the message says which and what to ask for.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; wanted one of {', '.join(METHODS)}: pick one")
    if seed < 0:
        raise ValueError(f"seed is {seed}; wanted an integer >= 0: pass 0")
    edges = checked_edges(edges, num_nodes)
    check_num_parts(num_nodes, num_parts)
    check_tolerance(tolerance)
    return METHODS[method](edges, num_nodes, num_parts, seed, tolerance)
