"""Graphs of every awkward kind, for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

unhurried = settings(deadline=None)  # the first example waits for numba


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 40) -> tuple[np.ndarray, int]:
    """Edges and number of nodes: disconnected, loops, parallel and reversed edges, hubs, none at all."""
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    kind = draw(st.sampled_from(["any", "star", "path", "cliques", "none"]))
    if kind == "any":
        pairs = draw(st.lists(st.tuples(node, node), max_size=3 * num_nodes))
    elif kind == "star":
        pairs = [(0, leaf) for leaf in range(1, num_nodes)]
    elif kind == "path":
        pairs = [(head, head + 1) for head in range(num_nodes - 1)]
    elif kind == "cliques":
        pairs = [(low, high) for high in range(num_nodes) for low in range(high) if low % 3 == high % 3]
    else:
        pairs = []
    if pairs and draw(st.booleans()):
        pairs = pairs + pairs[: len(pairs) // 2] + [(high, low) for low, high in pairs[::3]] + [(0, 0)]
    return np.array(pairs, np.int64).reshape(-1, 2).T.copy(), num_nodes


def weights(count: int) -> st.SearchStrategy[np.ndarray]:
    """`count` weights, at least 1 each: mostly alike, or some that outweigh all others together."""
    weight = st.one_of(st.integers(1, 9), st.sampled_from([1, 1000]))
    return st.lists(weight, min_size=count, max_size=count).map(lambda drawn: np.array(drawn, np.int64))


def grid(side: int) -> np.ndarray:
    """The edges of a square grid, one direction only; ids row by row."""
    ids = np.arange(side * side).reshape(side, side)
    across = np.stack([ids[:, :-1].ravel(), ids[:, 1:].ravel()])
    down = np.stack([ids[:-1].ravel(), ids[1:].ravel()])
    return np.concatenate([across, down], axis=1)


def neighbours_of(edges: np.ndarray, num_nodes: int, edge_weights: np.ndarray | None = None) -> list[dict[int, int]]:
    """For each node, the weight of the edges to each neighbour, in either direction."""
    shared: list[dict[int, int]] = [{} for _ in range(num_nodes)]
    each = np.ones(edges.shape[1], np.int64) if edge_weights is None else edge_weights
    for source, target, weight in zip(*edges.tolist(), each.tolist(), strict=True):
        if source != target:
            shared[source][target] = shared[source].get(target, 0) + weight
            shared[target][source] = shared[target].get(source, 0) + weight
    return shared
