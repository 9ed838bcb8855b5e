"""Every way to cut a graph, by name, behind one call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from partitioners.arguments import check_num_parts, check_time_limit, check_tolerance, checked_edges, checked_weights
from partitioners.auto import auto
from partitioners.communities import communities
from partitioners.contiguous import contiguous
from partitioners.metis import metis
from partitioners.problem import Problem
from partitioners.streaming import fennel, linear_deterministic_greedy
from partitioners.topological import topological
from partitioners.uniform import uniform

METHODS: dict[str, Callable[[Problem], Int64[np.ndarray, " nodes"]]] = {
    "auto": auto,
    "metis": metis,
    "communities": communities,
    "ldg": linear_deterministic_greedy,
    "fennel": fennel,
    "topological": topological,
    "contiguous": contiguous,
    "random": uniform,
}


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
    """Part of each node, 0..num_parts-1; no part is empty or holds more than `largest_part` allows.

    Args:
        edges: node ids; direction, order, repetition, self-loops and connectedness do not matter, but for
            "topological" and "auto", which heed directions.
        num_nodes: at least 1; nodes without edges belong to a part too.
        num_parts: 1..num_nodes; `num_parts_for` gives it from the most nodes a part may hold.
        method: a key of `METHODS`. "auto" tries the others and keeps the least cut, in up to twice the time of
            "metis"; "communities" cuts about as little as "metis" and is many times faster where hubs abound.
        seed: at least 0; equal arguments give equal parts. "metis", "random" and "auto" depend on it.
        tolerance: how much larger than the mean a part may be, as a share of it; at least 0.
        node_weights: at least 1 each; what parts hold is then weight instead of nodes. Where a node outweighs
            what the tolerance allows, `largest_part` says what is guaranteed instead.
        edge_weights: at least 1 each: what cutting an edge costs; parallel edges add up.
        time_limit: seconds that "auto" may take, as its docstring says; no limit by default.

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
    check_time_limit(time_limit, method)
    if node_weights is not None:
        node_weights = checked_weights(node_weights, num_nodes, "node_weights")
    if edge_weights is not None:
        edge_weights = checked_weights(edge_weights, edges.shape[1], "edge_weights")
    problem = Problem(edges, num_nodes, num_parts, seed, tolerance, node_weights, edge_weights, time_limit)
    return problem.balanced(METHODS[method](problem))
