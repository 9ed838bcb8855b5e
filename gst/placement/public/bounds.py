"""Lower bounds of the makespan of published problems, with transfers and memory limits."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64

from gst.placement.baselines.bounds import priced_work, window_bound
from gst.placement.baselines.branching import Branched, branched_bound
from gst.placement.baselines.branching_kernels import Placing
from gst.placement.baselines.chains import heads
from gst.placement.baselines.prices import prices
from gst.placement.public.problem import Problem


def lower_bound(problem: Problem) -> float:
    """What every plan takes at least, in `problem.graph.unit`, whatever its order.

    The greater of two bounds. The first is of chains with transfers (`gst.placement.baselines.chains.heads`). The
    second adds the work that devices share between such heads and tails, see `gst.placement.baselines.bounds`.

    Examples:
        >>> from pathlib import Path
        >>> from gst.data.public_graphs import read_public_graph
        >>> from gst.placement.public.problem import public_problem
        >>> _ = Path("two.txt").write_text("2\\n\\n0\\n1\\n30000000000,10000000000\\n20000000000,0\\n")
        >>> lower_bound(public_problem(read_public_graph(Path("two.txt")), "gpus:2"))
        5.0
    """
    arrays, classes, chosen = problem.arrays, alike(problem), []
    for number in range(int(classes.max()) + 1):  # two of those alike stand for all: here, and elsewhere
        chosen += np.flatnonzero(classes == number)[:2].tolist()
    some = np.array(chosen, np.int64)
    head = heads(
        arrays.producer_indptr, arrays.producers, arrays.in_edges, np.arange(problem.num_nodes), some, False, arrays
    )
    tail = heads(
        arrays.indptr, arrays.consumers, arrays.out_edges, np.arange(problem.num_nodes)[::-1].copy(), some, True, arrays
    )
    times = arrays.times[some]
    chains = np.where(np.isfinite(times), head + times + tail, np.inf).min(0)
    kinds, first = np.unique(classes, return_index=True)
    capacity = np.array([(classes == kind).sum() for kind in kinds], np.float64)
    work = priced_work(arrays.times[first], capacity)
    return max(float(chains.max()), window_bound(head.min(0), tail.min(0), work)) / problem.graph.scale


def alike(problem: Problem) -> Int64[np.ndarray, " devices"]:
    """The number of the class of each device: those of one may be exchanged for each other."""
    return np.unique(np.stack([problem.kind, problem.arrays.limits]), axis=1, return_inverse=True)[1].reshape(-1)


def searched_bound(
    problem: Problem, least: float, most: float, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Branched:
    """What a search over placements finds that no plan is below, in `problem.graph.unit`, with transfers and memory
    limits; see `gst.placement.baselines.branching.branched_bound`.

    Args:
        least: what is known that no plan is below.
        most: what a plan takes.
        seconds: of search.
        clock: that counts them.
    """
    arrays, devices, scale = problem.arrays, len(problem.devices), problem.graph.scale
    kinds_of = alike(problem)
    times = np.stack([np.bincount(arrays.groups, row, len(arrays.sizes)) for row in arrays.times])
    placing = Placing(
        arrays.indptr, arrays.consumers, arrays.out_edges, arrays.producer_indptr, arrays.producers, arrays.in_edges,
        arrays.times, arrays.groups, arrays.amounts, arrays.fixed, arrays.per_amount, arrays.table, arrays.kind,
        arrays.member_indptr, arrays.members, np.eye(devices, dtype=bool), arrays.sizes, np.arange(devices),
        arrays.limits, *prices(times, arrays.sizes, arrays.limits, kinds_of), np.zeros(devices),
        kinds_of,
    )  # fmt: skip
    found = branched_bound(placing, least * scale, most * scale, seconds, clock)
    return found._replace(bound=found.bound / scale)


def transfers(problem: Problem, here: int, there: int) -> Float64[np.ndarray, " edges"]:
    """Time of each edge from a device to another."""
    arrays = problem.arrays
    if len(arrays.table):
        return arrays.table[:, arrays.kind[here], arrays.kind[there]]
    return arrays.fixed[here, there] + arrays.amounts * arrays.per_amount[here, there]
