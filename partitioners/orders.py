"""Partitions that follow an order of the nodes: ranges by id or random, and streams (LDG, Fennel)."""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np
from jaxtyping import Int64

from partitioners.balance import Problem, sift_down
from partitioners.compiled import compiled


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


def linear_deterministic_greedy(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node by LDG: most edges to the part, times the share of it that is free.

    Stanton and Kliot, "Streaming graph partitioning for large distributed graphs" (2012), section 3.
    """
    return _streamed(problem, fullness=1.0 / problem.largest, crowding=0.0)


def fennel(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Part of each node by Fennel: edges to the part less the growth of alpha * size ** 1.5.

    Tsourakakis et al., "FENNEL: streaming graph partitioning for massive scale graphs" (2014), sections 3 and 4:
    gamma = 3/2 and alpha = sqrt(parts) * edges / nodes ** 1.5, edges and nodes by weight here.
    """
    num_edges = problem.csr.weights.sum() / 2
    alpha = math.sqrt(problem.num_parts) * num_edges / float(problem.total_weight) ** 1.5
    return _streamed(problem, fullness=0.0, crowding=1.5 * alpha)


def _streamed(problem: Problem, fullness: float, crowding: float) -> Int64[np.ndarray, " nodes"]:
    return _stream(problem.csr, problem.weights, problem.num_parts, problem.largest, fullness, crowding)


@compiled
@no_type_check
def _stream(csr, node_weights, num_parts, largest, fullness, crowding):
    """Score of a part with room: shared * (1 - fullness * size) - node weight * crowding * sqrt(size).

    The best wins, then the lightest, then the lowest. Among parts without a neighbour the lightest is best, which a
    heap tells. Where no part has room, the lightest is taken."""
    starts, neighbours, weights = csr
    num_nodes, sizes = len(starts) - 1, np.zeros(num_parts, np.int64)
    parts = np.full(num_nodes, -1, np.int64)
    shared = np.zeros(num_parts, np.int64)  # weight of edges from the node at hand into each part, else zeros
    heap, slots = np.arange(num_parts), np.arange(num_parts)
    for node in range(num_nodes):
        weight = node_weights[node]
        for index in range(starts[node], starts[node + 1]):
            part = parts[neighbours[index]]
            if part >= 0:
                shared[part] += weights[index]
        best = heap[0]
        best_score = shared[best] * (1.0 - fullness * sizes[best]) - weight * crowding * math.sqrt(sizes[best])
        for index in range(starts[node], starts[node + 1]):
            part = parts[neighbours[index]]
            if part < 0 or shared[part] == 0:
                continue
            score = shared[part] * (1.0 - fullness * sizes[part]) - weight * crowding * math.sqrt(sizes[part])
            shared[part] = 0
            lighter = sizes[part] < sizes[best] or (sizes[part] == sizes[best] and part < best)
            if (score > best_score or (score == best_score and lighter)) and sizes[part] + weight <= largest:
                best, best_score = part, score
        parts[node] = best
        sizes[best] += weight
        sift_down(heap, slots, sizes, num_parts, slots[best])
    return parts
