"""The best partitioner depends on the graph: run those that may win, and keep what is measured to cut least."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from partitioners.communities import communities
from partitioners.contiguous import contiguous
from partitioners.metis import metis
from partitioners.problem import Problem
from partitioners.streaming import fennel, linear_deterministic_greedy
from partitioners.topological import topological

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
