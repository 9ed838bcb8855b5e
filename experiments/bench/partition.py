"""What every partitioner cuts and how long it takes: is "auto" as good as the best, in at most twice METIS's time?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64

from experiments.bench.graph_kinds import KINDS
from partitioners import METHODS, largest_part, partition, quality, symmetric_csr

Result = TypeVar("Result")
QUICK_SECONDS = 5.0  # what takes less is timed three times, in turn


def run(
    nodes: int = 1_000_000,
    parts: int = 200,
    seed: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Cut each kind of graph by each method, on one core.

    Args:
        nodes: of each graph, about.
        parts: per graph.
        seed: of the graphs and of the methods.
        progress: called with what comes next, how much is done, and of how much.

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
