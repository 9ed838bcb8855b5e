"""Lower bounds of the makespan of published problems, with transfers and memory limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array

from gst.placement.bounds.branching import Branched, branched_bound
from gst.placement.bounds.branching_kernels import Placing
from gst.placement.bounds.prices import prices
from gst.placement.bounds.work import chains_and_work
from gst.placement.public.problem import Problem

MOST_ENTRIES = 100_000  # shares of the linear program
TOLERANCE = 1e-6  # of its solution


def lower_bound(problem: Problem) -> float:
    """What every plan takes at least, in `problem.graph.unit`, whatever its order.

    It is the bound of chains and of work, see `gst.placement.bounds.work.chains_and_work`.

    Examples:
        >>> from pathlib import Path
        >>> from gst.data.public_graphs import read_public_graph
        >>> from gst.placement.public.problem import public_problem
        >>> _ = Path("two.txt").write_text("2\\n\\n0\\n1\\n30000000000,10000000000\\n20000000000,0\\n")
        >>> lower_bound(public_problem(read_public_graph(Path("two.txt")), "gpus:2"))
        5.0
    """
    arrays, classes = problem.arrays, alike(problem)
    _, first, count = np.unique(classes, return_index=True, return_counts=True)
    return chains_and_work(arrays, classes, arrays.times[first], count.astype(np.float64)) / problem.graph.scale


def alike(problem: Problem) -> Int64[np.ndarray, " devices"]:
    """The number of the class of each device: those of one may be exchanged for each other."""
    return np.unique(np.stack([problem.kind, problem.arrays.limits]), axis=1, return_inverse=True)[1].reshape(-1)


def relaxed_bound(problem: Problem, seconds: float) -> float:
    """What no plan is below even if operations may be shared by kinds of devices, in `problem.graph.unit`: a linear
    program of chains with transfers between kinds, of the work of each kind, and of its memory.

    Only where kinds of devices differ does it say more than `lower_bound`; 0 where they do not, where the program is
    larger than `MOST_ENTRIES`, or where it is not solved in time.
    """
    arrays, classes = problem.arrays, alike(problem)
    kinds, first, count = np.unique(classes, return_index=True, return_counts=True)
    nodes, edges, groups, width = problem.num_nodes, len(arrays.amounts), len(arrays.sizes), len(kinds)
    if width < 2 or groups * width + edges * width**2 > MOST_ENTRIES or seconds <= 0:
        return 0.0
    times = arrays.times[first]
    unit = max(float(np.where(np.isfinite(times), times, 0.0).min(0).sum()) / nodes, 1e-300)
    able = np.isfinite(problem.group_times[first])
    took = np.where(np.isfinite(times), times, 0.0) / unit
    # Columns: shares of groups (kind after kind), shares of edges (pair after pair), starts of nodes, the makespan.
    share = np.arange(width * groups).reshape(width, groups)
    flow = share.size + np.arange(width**2 * edges).reshape(width, width, edges)
    start = share.size + flow.size + np.arange(nodes)
    span = share.size + flow.size + nodes
    producers, consumers = problem.graph.edges
    transfer = np.zeros((width, width, edges))
    for here, there in product(range(width), repeat=2):
        if here != there:
            transfer[here, there] = _transfers(problem, int(first[here]), int(first[there])) / unit
    every, edge = np.arange(nodes), np.arange(edges)
    less: list[tuple[Any, Any, Any]] = []  # (row, column, value) of rows of which each is at most its limit
    same: list[tuple[Any, Any, Any]] = [(np.tile(np.arange(groups), width), share.reshape(-1), np.ones(share.size))]
    for kind in range(width):
        less += [(edge, share[kind, arrays.groups[producers]], took[kind, producers])]
        less += [(edge, flow[kind, other], transfer[kind, other]) for other in range(width)]
        less += [(edges + every, share[kind, arrays.groups], took[kind])]
        work = np.bincount(arrays.groups, took[kind], groups)
        less += [(edges + nodes + np.full(groups, kind), share[kind], work)]
        less += [(edges + nodes + np.array([kind]), np.array([span]), -np.array([float(count[kind])]))]
        if np.isfinite(limit := arrays.limits[first[kind]]):
            size = max(float(limit) * count[kind], 1e-300)
            less += [(edges + nodes + width + np.full(groups, kind), share[kind], arrays.sizes / size)]
        rows = groups + kind * edges + edge  # what leaves a producer of the kind, then what reaches a consumer of it
        same += [(rows, flow[kind, other], np.ones(edges)) for other in range(width)]
        same += [(rows, share[kind, arrays.groups[producers]], -np.ones(edges))]
        rows = groups + (width + kind) * edges + edge
        same += [(rows, flow[other, kind], np.ones(edges)) for other in range(width)]
        same += [(rows, share[kind, arrays.groups[consumers]], -np.ones(edges))]
    less += [(edge, start[producers], np.ones(edges)), (edge, start[consumers], -np.ones(edges))]
    less += [(edges + every, start, np.ones(nodes)), (edges + every, np.full(nodes, span), -np.ones(nodes))]
    limits = np.repeat([0.0, 1.0], [edges + nodes + width, width])
    most = np.full(span + 1, np.inf)
    most[share.reshape(-1)] = able.reshape(-1)
    objective = np.zeros(span + 1)
    objective[span] = 1.0
    table = lambda parts, height: coo_array(  # noqa: E731
        (np.concatenate([v for *_, v in parts]), tuple(np.concatenate([p[n] for p in parts]) for n in (0, 1))),
        shape=(height, span + 1),
    ).tocsr()  # fmt: skip
    solved = linprog(
        objective, table(less, edges + nodes + 2 * width), limits,
        table(same, groups + 2 * width * edges), np.repeat([1.0, 0.0], [groups, 2 * width * edges]),
        bounds=np.stack([np.zeros(span + 1), most], axis=1), method="highs", options={"time_limit": seconds},
    )  # fmt: skip
    return float(solved.fun) * unit / problem.graph.scale * (1 - TOLERANCE) if solved.status == 0 else 0.0


def searched_bound(
    problem: Problem, least: float, most: float, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Branched:
    """What a search over placements finds that no plan is below, in `problem.graph.unit`, with transfers and memory
    limits; see `gst.placement.bounds.branching.branched_bound`.

    Args:
        least: what is known that no plan is below.
        most: what a plan takes.
        seconds: of search.
        clock: that counts them.
    """
    arrays, devices, scale = problem.arrays, len(problem.devices), problem.graph.scale
    kinds_of = alike(problem)
    placing = Placing(
        arrays, np.eye(devices, dtype=bool),
        *prices(problem.group_times, arrays.sizes, arrays.limits, kinds_of), np.zeros(devices), kinds_of,
    )  # fmt: skip
    found = branched_bound(placing, least * scale, most * scale, seconds, clock)
    return found._replace(bound=found.bound / scale)


def _transfers(problem: Problem, here: int, there: int) -> Float64[np.ndarray, " edges"]:
    """Time of each edge from a device to another."""
    arrays = problem.arrays
    if len(arrays.table):
        return arrays.table[:, arrays.kind[here], arrays.kind[there]]
    return arrays.fixed[here, there] + arrays.amounts * arrays.per_amount[here, there]
