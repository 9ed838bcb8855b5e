"""Four kinds of graphs on which partitioners differ most: none is the best on all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

Edges = Int64[np.ndarray, "2 edges"]


def grid(num_nodes: int, generator: np.random.Generator) -> tuple[Edges, int]:
    """Edges and number of nodes of the largest square grid of at most `num_nodes` nodes; ids row by row."""
    side = int(num_nodes**0.5)
    ids = np.arange(side * side).reshape(side, side)
    across = np.stack([ids[:, :-1].ravel(), ids[:, 1:].ravel()])
    down = np.stack([ids[:-1].ravel(), ids[1:].ravel()])
    return np.concatenate([across, down], axis=1), side * side


def netlist(num_nodes: int, generator: np.random.Generator) -> tuple[Edges, int]:
    """Cells along a line whose ids hide their order: two edges a cell, 4 % to anywhere, the others over distances
    with the tail of Rent's rule, P(distance > d) ~ d ** -0.6."""
    sources = np.repeat(np.arange(num_nodes), 2)
    distances = np.ceil(np.minimum(generator.pareto(0.6, len(sources)), num_nodes)).astype(np.int64)
    targets = sources + distances
    anywhere = generator.random(len(sources)) < 0.04
    targets[anywhere] = generator.integers(0, num_nodes, np.count_nonzero(anywhere))
    inside = targets < num_nodes
    hidden = generator.permutation(num_nodes)
    return hidden[np.stack([sources[inside], targets[inside]])], num_nodes


def powerlaw(num_nodes: int, generator: np.random.Generator) -> tuple[Edges, int]:
    """Preferential attachment, two edges a node (Barabasi and Albert 1999): degrees with a power-law tail.

    An edge leads to a random end of a random earlier edge, which is a node with probability proportional to its
    degree (Batagelj and Brandes 2005); chains of such references are followed by pointer doubling.
    """
    sources = np.repeat(np.arange(1, num_nodes), 2)
    edge = np.arange(len(sources))
    end = np.floor(generator.random(len(sources)) * 2 * edge).astype(
        np.int64
    )  # 2 * e: source of edge e, 2 * e + 1: target
    is_target = end % 2 == 1
    reference = np.where(is_target, end // 2, edge)  # edge whose target it shares; itself where it names a source
    while (reference[reference] != reference).any():
        reference = reference[reference]
    targets = np.where(is_target, 0, sources[end // 2])
    targets[0] = 0
    return np.stack([sources, targets[reference]]), num_nodes


def dag(num_nodes: int, generator: np.random.Generator) -> tuple[Edges, int]:
    """A program in the order of its execution: each operation uses the one before and one further back, over
    distances with a heavy tail, as skip connections do."""
    targets = np.arange(1, num_nodes)
    distances = np.ceil(np.minimum(40 * generator.pareto(1.0, len(targets)), targets)).astype(np.int64)
    further_back = np.stack([targets - np.maximum(distances, 1), targets])
    return np.concatenate([np.stack([targets - 1, targets]), further_back], axis=1), num_nodes


KINDS: dict[str, Callable[[int, np.random.Generator], tuple[Edges, int]]] = {
    "grid": grid,
    "netlist": netlist,
    "powerlaw": powerlaw,
    "dag": dag,
}
