"""METIS (Karypis and Kumar, 1998), given the input it needs; empty and oversized parts repaired."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partitioners.balance import largest_part, repair
from partitioners.csr import symmetric_csr


def metis(
    edges: Int64[np.ndarray, "2 edges"], num_nodes: int, num_parts: int, seed: int = 0, tolerance: float = 0.1
) -> Int64[np.ndarray, " nodes"]:
    """Part of each node, few edges cut (parallel edges count each), equal for equal `seed` and equal edges.

    METIS wants both directions of every edge; one direction gives it a negative cut without an error, so
    the graph is symmetrised first. It draws from one generator per process: run several in processes, not
    in threads.
    """
    import pymetis

    csr = symmetric_csr(edges, num_nodes)
    if num_parts == 1:
        return np.zeros(num_nodes, np.int64)
    found = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(csr.starts, csr.neighbours),
        eweights=csr.weights,
        options=pymetis.Options(seed=seed % 2**31),
    )
    parts = np.array(found.vertex_part, dtype=np.int64)
    return repair(parts, csr, num_parts, largest_part(num_nodes, num_parts, tolerance))
