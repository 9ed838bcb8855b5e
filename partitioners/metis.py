"""METIS (Karypis and Kumar, 1998), given the input it needs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partitioners.problem import Problem


def metis(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node, few edges cut (parallel edges count each), with parts as uneven as the tolerance allows.

    METIS wants both directions of every edge; one direction gives it a negative cut without an error, so
    the graph is symmetrised first. It draws from one generator per process: run several in processes, not
    in threads.
    """
    import pymetis

    if problem.num_parts == 1:
        return np.zeros(problem.num_nodes, np.int64)
    csr = problem.csr
    found = pymetis.part_graph(
        problem.num_parts,
        pymetis.CSRAdjacency(csr.starts, csr.neighbours),
        vweights=problem.node_weights,
        eweights=csr.weights // max(1, np.gcd.reduce(csr.weights)),  # else doubled edges give other parts
        recursive=problem.num_parts <= 8 and problem.num_nodes < 100 * problem.num_parts,  # k-way empties tiny parts
        options=pymetis.Options(seed=int(problem.seed % 2**31), ufactor=max(1, round(1000 * problem.tolerance))),
    )
    return problem.refined(np.array(found.vertex_part, dtype=np.int64))
