"""Every partitioning method by its name, behind one call; METIS, and the method that tries the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from jaxtyping import Int64

from partitioners.balance import Problem
from partitioners.communities import communities
from partitioners.csr import check_num_parts, check_time_limit, check_tolerance, checked_edges, checked_weights
from partitioners.orders import contiguous, fennel, linear_deterministic_greedy, topological, uniform


def has_metis() -> bool:
    """True if pymetis is installed. `gst` depends on it, but a machine that only measures can do without.

    Examples:
        >>> has_metis()
        True
    """
    return find_spec("pymetis") is not None


def usual_method() -> str:
    """The method to cut by where any will do: METIS, and Fennel without pymetis.

    Examples:
        >>> usual_method()
        'metis'
    """
    return "metis" if has_metis() else "fennel"


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


HOPELESS = 1.5  # LDG at this many times the least cut: Fennel, which streams as LDG does, is not worth its time


def auto(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node, by the method whose parts, balanced, cut least by weight; the earlier one in a tie.

    In turn: contiguous, communities, LDG, Fennel (only where LDG came within 1.5 times the least cut so far),
    topological, METIS. A method is left out where its expected time would take the sum beyond
    `problem.time_limit`. That time is computed, not measured: from sizes, for METIS also from the least cut so
    far, and constants measured on one core with graphs of a million nodes whose ids have no order. So the choice
    depends on the arguments alone, and the limit is kept as closely as the machine resembles that one.
    """
    best = problem.balanced(contiguous(problem))
    least = problem.csr.cut(best)
    time_left = math.inf if problem.time_limit is None else problem.time_limit
    cut_of: dict[Method, int] = {}
    for method, expected_seconds in CANDIDATES.items():
        seconds = expected_seconds(problem, least)
        hopeless = method is fennel and cut_of.get(linear_deterministic_greedy, 0) > HOPELESS * least
        if least == 0 or hopeless or seconds > time_left:
            continue
        time_left -= seconds
        parts = problem.balanced(method(problem))
        cut_of[method] = problem.csr.cut(parts)
        if cut_of[method] < least:
            best, least = parts, cut_of[method]
    return best


Method = Callable[[Problem], Int64[np.ndarray, " nodes"]]


def _per_entry(seconds: float) -> Callable[[Problem, int], float]:
    """Time linear in nodes and adjacencies."""
    return lambda problem, least: seconds * (problem.num_nodes + len(problem.csr.neighbours))


def _metis_seconds(problem: Problem, least: int) -> float:
    """METIS refines along the border of its parts, so what it takes grows with the edges it cuts."""
    edges_cut = len(problem.csr.neighbours) / 2 * least / max(1, problem.csr.weights.sum() / 2)
    return 2e-7 * (problem.num_nodes + len(problem.csr.neighbours)) + 2.4e-5 * edges_cut


CANDIDATES: dict[Method, Callable[[Problem, int], float]] = {
    communities: _per_entry(2.6e-7),
    linear_deterministic_greedy: _per_entry(7e-8),
    fennel: _per_entry(7e-8),
    topological: _per_entry(1.2e-7),
    metis: _metis_seconds,
}


METHODS: dict[str, Method] = {
    "auto": auto,
    "metis": metis,
    "communities": communities,
    "ldg": linear_deterministic_greedy,
    "fennel": fennel,
    "topological": topological,
    "contiguous": contiguous,
    "random": uniform,
}
SEEDED = ("auto", "metis", "random")
"""Methods whose parts depend on the seed."""


def partition(
    edges: Int64[np.ndarray, "2 edges"],
    num_nodes: int,
    num_parts: int,
    method: str = "metis",
    seed: int = 0,
    tolerance: float = 0.1,
    node_weights: Int64[np.ndarray, " nodes"] | None = None,
    edge_weights: Int64[np.ndarray, " edges"] | None = None,
    time_limit: float | None = None,
) -> Int64[np.ndarray, " nodes"]:
    """Cut a graph into parts: the part of each node, none empty and none larger than `largest_part` allows.

    Args:
        edges: node ids; direction, order, repetition, self-loops and connectedness do not matter, but for
            "topological" and "auto", which heed directions.
        num_nodes: at least 1; nodes without edges belong to a part too.
        num_parts: 1..num_nodes; `num_parts_for` gives it from the most nodes a part may hold.
        method: a key of `METHODS`. "auto" tries the others and keeps the least cut, in up to twice the time of
            "metis"; "communities" cuts about as little as "metis" and is many times faster where hubs abound.
        seed: at least 0; equal arguments give equal parts. Those of `SEEDED` depend on it.
        tolerance: how much larger than the mean a part may be, as a share of it; at least 0.
        node_weights: at least 1 each; what parts hold is then weight instead of nodes. Where a node outweighs
            what the tolerance allows, `largest_part` says what is guaranteed instead.
        edge_weights: at least 1 each: what cutting an edge costs; parallel edges add up.
        time_limit: seconds that "auto" may take, as its docstring says; no limit by default.

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
    check_time_limit(time_limit, method)
    if node_weights is not None:
        node_weights = checked_weights(node_weights, num_nodes, "node_weights")
    if edge_weights is not None:
        edge_weights = checked_weights(edge_weights, edges.shape[1], "edge_weights")
    problem = Problem(edges, num_nodes, num_parts, seed, tolerance, node_weights, edge_weights, time_limit)
    return problem.balanced(METHODS[method](problem))
