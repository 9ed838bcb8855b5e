"""Every partitioning method by its name, behind one call; METIS, and the method that tries the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from jaxtyping import Int64

from partitioners.balance import Problem
from partitioners.communities import communities
from partitioners.csr import check_num_parts, check_tolerance, checked_edges, checked_weights


def has_metis() -> bool:
    """True if pymetis is installed. `gst` depends on it, but a machine that only measures can do without.

    Examples:
        >>> has_metis()
        True
    """
    return find_spec("pymetis") is not None


def usual_method() -> str:
    """The method to cut by where any will do: METIS, and communities without pymetis.

    Examples:
        >>> usual_method()
        'metis'
    """
    return "metis" if has_metis() else "communities"


def contiguous(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node; parts ascend with node ids."""
    return ranges(problem.weights, problem.num_parts)


def ranges(weights: Int64[np.ndarray, " nodes"], num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node of a sequence, ascending, none empty.

    Part p begins with the first node whose middle lies beyond p / num_parts of all the weight."""
    num_nodes = len(weights)
    up_to = np.cumsum(weights)
    quotient, remainder = divmod(2 * int(up_to[-1]), num_parts)
    part = np.arange(num_parts)
    twice_due = part * quotient - (-part * remainder // num_parts)  # rounded up
    starts = np.searchsorted(2 * up_to - weights - 1, twice_due)
    starts = np.maximum.accumulate(starts - part) + part  # ascending by at least one
    starts = np.minimum(starts, num_nodes - num_parts + part)
    return np.repeat(part, np.diff(starts, append=num_nodes))


def uniform(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node: ranges of a random order of the nodes."""
    generator = np.random.default_rng([problem.seed, problem.num_parts])  # `seed` alone may have shuffled the ids
    order = generator.permutation(problem.num_nodes)
    parts = np.empty(problem.num_nodes, np.int64)
    parts[order] = ranges(problem.weights[order], problem.num_parts)
    return parts


def metis(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node, few edges cut, with parts as uneven as the tolerance allows.

    METIS wants both directions of every edge; one direction gives it a negative cut without an error. It draws from one
    generator per process: run several in processes, not in threads.
    """
    import pymetis

    if problem.num_parts == 1:
        return np.zeros(problem.num_nodes, np.int64)
    csr = problem.csr
    answer = pymetis.part_graph(
        problem.num_parts,
        pymetis.CSRAdjacency(csr.starts, csr.neighbours),
        vweights=problem.node_weights,
        eweights=csr.weights // max(1, np.gcd.reduce(csr.weights)),  # else doubled edges give other parts
        recursive=problem.num_parts <= 8 and problem.num_nodes < 100 * problem.num_parts,  # k-way empties tiny parts
        options=pymetis.Options(seed=int(problem.seed % 2**31), ufactor=max(1, round(1000 * problem.tolerance))),
    )
    return problem.refined(np.array(answer.vertex_part, dtype=np.int64))


def auto(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node, by the method whose parts, balanced, cut least by weight; the earlier in a tie.

    It tries all of `METHODS` but "random", which cuts most.
    """
    best, least = np.zeros(problem.num_nodes, np.int64), math.inf
    for name, method in METHODS.items():
        if least and name not in ("auto", "random"):
            parts = problem.balanced(method(problem))
            if (cut := problem.csr.cut(parts)) < least:
                best, least = parts, cut
    return best


Method = Callable[[Problem], Int64[np.ndarray, " nodes"]]


METHODS: dict[str, Method] = {
    "auto": auto,
    "contiguous": contiguous,
    "communities": communities,
    "metis": metis,
    "random": uniform,
}
"""Methods by name. Register another here: `auto` tries it, errors and `--help` name it."""


def partition(
    edges: Int64[np.ndarray, "2 edges"],
    num_nodes: int,
    num_parts: int,
    method: str = "metis",
    seed: int = 0,
    tolerance: float = 0.1,
    node_weights: Int64[np.ndarray, " nodes"] | None = None,
    edge_weights: Int64[np.ndarray, " edges"] | None = None,
) -> Int64[np.ndarray, " nodes"]:
    """Cut a graph into parts: the part of each node, none empty and none larger than `largest_part` allows.

    Args:
        edges: node ids; direction, order, repetition, self-loops and connectedness do not matter.
        num_nodes: at least 1; nodes without edges belong to a part too.
        num_parts: 1..num_nodes; `num_parts_for` gives it from the most nodes a part may hold.
        method: a key of `METHODS`. "auto" tries the others and keeps the least cut; "communities" cuts about as little
            as "metis" and is many times faster where hubs abound.
        seed: at least 0; equal arguments give equal parts. "communities" and "contiguous" draw nothing.
        tolerance: excess of a part over the mean, as a share of the mean; at least 0.
        node_weights: at least 1 each; parts then hold weight instead of nodes.
        edge_weights: at least 1 each: the cost of cutting an edge; parallel edges add up.

    Raises:
        ValueError: an argument is out of range; the message says which and what to ask for.

    Examples:
        >>> chain = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
        >>> partition(chain, num_nodes=6, num_parts=2, method="contiguous").tolist()
        [0, 0, 0, 1, 1, 1]
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; wanted one of {', '.join(METHODS)}: pick one")
    if seed < 0:
        raise ValueError(f"seed is {seed}; wanted an integer >= 0: pass 0")
    edges = checked_edges(edges, num_nodes)
    check_num_parts(num_nodes, num_parts)
    check_tolerance(tolerance)
    if node_weights is not None:
        node_weights = checked_weights(node_weights, num_nodes, "node_weights")
    if edge_weights is not None:
        edge_weights = checked_weights(edge_weights, edges.shape[1], "edge_weights")
    problem = Problem(edges, num_nodes, num_parts, seed, tolerance, node_weights, edge_weights)
    return problem.balanced(METHODS[method](problem))
