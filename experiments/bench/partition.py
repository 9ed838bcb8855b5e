"""Edge cuts and times of every partitioner on four kinds of graphs: "auto" compared with METIS and the best.

python -m experiments.bench partition --nodes 100000
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64

from gst.util.progress import Progress, no_progress
from partitioners import METHODS, largest_part, partition, quality, symmetric_csr

Result = TypeVar("Result")
QUICK_SECONDS = 5.0  # what takes less is timed three times, in turn


HELP = {"nodes": "of each graph", "parts": "of each graph"}


def run(nodes: int = 1_000_000, parts: int = 200, seed: int = 0, progress: Progress = no_progress) -> dict[str, Any]:
    """Cut each kind of graph by each method, on one core.

    Args:
        nodes: of each graph, about.
        parts: per graph.
        seed: of the graphs and of the methods.

    Returns:
        For each kind of graph: `auto_cut`, `best_cut` (least share of edges cut by any method), `seconds` and
        `metis_seconds` (medians for "auto" and METIS, edges in, parts out), `csr_seconds` (of them, for building
        the undirected graph), `empty_parts` and `largest_over_limit`
        (over all methods: parts without a node, and nodes beyond `largest_part`), `chosen` (what "auto" took), and
        `methods` (`cut` and `seconds` of each).
    """
    _compile()
    results: dict[str, Any] = {"nodes": nodes, "parts": parts, "seed": seed}
    total = len(KINDS) * len(METHODS)
    for number, (kind, make) in enumerate(KINDS.items()):
        edges, num_nodes = make(nodes, np.random.default_rng(seed))
        found, seconds = {}, {"csr": [_timed(symmetric_csr, edges, num_nodes)[1] for _ in range(3)]}
        for index, method in enumerate(METHODS):
            progress(f"{kind}: {method}", number * len(METHODS) + index, total)
            found[method], taken = _timed(partition, edges, num_nodes, parts, method, seed)
            seconds[method] = [taken]
        if max(seconds["auto"]) < QUICK_SECONDS:
            for method in ("metis", "auto", "metis", "auto"):
                seconds[method].append(_timed(partition, edges, num_nodes, parts, method, seed)[1])
        results[kind] = _summary(edges, num_nodes, parts, found, seconds)
    progress("done", total, total)
    return results


def _compile() -> None:
    edges = np.random.default_rng(0).integers(0, 3000, (2, 6000))
    for method in METHODS:
        partition(edges, 3000, 3, method)


def _timed(call: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    started = time.perf_counter()
    result = call(*arguments)
    return result, time.perf_counter() - started


def _summary(
    edges: Int64[np.ndarray, "2 edges"],
    num_nodes: int,
    num_parts: int,
    found: dict[str, Int64[np.ndarray, " nodes"]],
    seconds: dict[str, list[float]],
) -> dict[str, Any]:
    measured = {method: quality(edges, parts, num_parts) for method, parts in found.items()}
    cuts = {method: each.edge_cut for method, each in measured.items()}
    empty = sum(np.count_nonzero(np.bincount(parts, minlength=num_parts) == 0) for parts in found.values())
    limit = largest_part(num_nodes, num_parts)
    return {
        "auto_cut": cuts["auto"],
        "best_cut": min(cuts.values()),
        "seconds": statistics.median(seconds["auto"]),
        "metis_seconds": statistics.median(seconds["metis"]),
        "csr_seconds": statistics.median(seconds["csr"]),
        "empty_parts": int(empty),
        "largest_over_limit": max(0, *(each.largest - limit for each in measured.values())),
        "chosen": next(name for name in METHODS if name != "auto" and np.array_equal(found[name], found["auto"])),
        "nodes": num_nodes,
        "edges": edges.shape[1],
        "methods": {name: {"cut": cuts[name], "seconds": statistics.median(seconds[name])} for name in METHODS},
    }


# Four kinds of graphs on which partitioners differ most ------------------------------------------------------------

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
