"""On which device each operation is, as a mixed-integer program: a lower bound of the makespan, and a plan.

The program knows chains of operations with their transfers, the work of each device, and its memory. It does not know
the order of operations on a device, so its optimum is a lower bound. Devices of one kind without a memory limit are one
place of the program, of as many devices; a device with a memory limit is a place of its own, unless the program would
be too large. HEFT makes a plan of a solution.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array

from experiments.reproductions.public_problems.baselines import list_schedule, topological
from experiments.reproductions.public_problems.bounds import alike, transfers
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.schedules import Schedule
from gst.placement.baselines.arrays import upward_rank

MOST_ENTRIES = 100_000  # shares of the program
TOLERANCE = 1e-6  # of its solution
GAP = 1e-3  # between the bound and the solution, at which the solver stops


class Solution(NamedTuple):
    """Solution of the integer program.

    Args:
        bound: what no plan is below, in `problem.graph.unit`; 0 if nothing was proved.
        plan: made of the best solution; None if there is none, or if HEFT finds no room for it.
    """

    bound: float
    plan: Schedule | None


def solve(problem: Problem, seconds: float) -> Solution:
    """Solve the program of a problem, by HiGHS.

    Only where there are several places does it say more than `bounds.lower_bound`; nothing where there is one, or where
    the program is larger than `MOST_ENTRIES`.

    Args:
        seconds: after which the solver stops with what it has.
    """
    place = places(problem)
    width, groups = int(place.max()) + 1, len(problem.arrays.sizes)
    if width < 2 or _entries(problem, width) > MOST_ENTRIES or seconds <= 0:
        return Solution(0.0, None)
    program, unit = _program(problem, place)
    solved = milp(**program, options={"time_limit": seconds, "mip_rel_gap": GAP})
    bound = getattr(solved, "mip_dual_bound", None)
    least = 0.0 if bound is None or not np.isfinite(bound) else float(bound) * unit * (1 - TOLERANCE)
    plan = None
    if solved.x is not None:
        plan = _plan(problem, place, solved.x[: width * groups].reshape(width, groups).argmax(0))
    return Solution(max(least, 0.0) / problem.graph.scale, plan)


def places(problem: Problem) -> Int64[np.ndarray, " devices"]:
    """The number of the place of each device, in the order of first devices."""
    classes = alike(problem)
    apart = np.where(np.isfinite(problem.arrays.limits), len(classes) + np.arange(len(classes)), classes)
    place = np.unique(apart, return_inverse=True)[1].reshape(-1)
    return place if _entries(problem, int(place.max()) + 1) <= MOST_ENTRIES else classes


def _entries(problem: Problem, width: int) -> int:
    return len(problem.arrays.sizes) * width + len(problem.arrays.amounts) * width**2


def _plan(
    problem: Problem, place: Int64[np.ndarray, " devices"], chosen: Int64[np.ndarray, " groups"]
) -> Schedule | None:
    """The list schedule with every operation on a device of the place that was chosen for its colocation group."""
    elsewhere = np.where(place[:, None] == chosen, 0.0, np.inf)[:, problem.arrays.groups]
    rank = upward_rank(problem.mean_times, problem.mean_transfers, problem.arrays)
    return list_schedule(problem, topological(problem, rank), bias=elsewhere)


def _program(problem: Problem, place: Int64[np.ndarray, " devices"]) -> tuple[dict[str, Any], float]:
    """Arguments of `scipy.optimize.milp`, and the unit of its times in the file's own numbers.

    Columns: shares of groups (place after place), shares of edges (pair after pair), starts of nodes, the makespan.
    """
    arrays = problem.arrays
    _, first, count = np.unique(place, return_index=True, return_counts=True)
    width = len(first)
    nodes, edges, groups = problem.num_nodes, len(arrays.amounts), len(arrays.sizes)
    times = arrays.times[first]
    unit = max(float(np.where(np.isfinite(times), times, 0.0).min(0).sum()) / nodes, 1e-300)
    able = np.isfinite(problem.group_times[first])
    took = np.where(np.isfinite(times), times, 0.0) / unit
    share = np.arange(width * groups).reshape(width, groups)
    flow = share.size + np.arange(width**2 * edges).reshape(width, width, edges)
    start = share.size + flow.size + np.arange(nodes)
    span = share.size + flow.size + nodes
    producers, consumers = problem.graph.edges
    every, edge = np.arange(nodes), np.arange(edges)
    less: list[tuple[Any, Any, Any]] = []  # (row, column, value) of rows of which each is at most its limit
    same: list[tuple[Any, Any, Any]] = [(np.tile(np.arange(groups), width), share.reshape(-1), np.ones(share.size))]
    for here in range(width):
        less += [(edge, share[here, arrays.groups[producers]], took[here, producers])]
        for there in range(width):
            if there != here:
                moved = transfers(problem, int(first[here]), int(first[there])) / unit
                less += [(edge, flow[here, there], moved)]
        less += [(edges + every, share[here, arrays.groups], took[here])]
        work = np.bincount(arrays.groups, took[here], groups)
        less += [(edges + nodes + np.full(groups, here), share[here], work)]
        less += [(edges + nodes + np.array([here]), np.array([span]), -np.array([float(count[here])]))]
        if np.isfinite(limit := arrays.limits[first[here]]):
            size = max(float(limit) * count[here], 1e-300)
            less += [(edges + nodes + width + np.full(groups, here), share[here], arrays.sizes / size)]
        rows = groups + here * edges + edge  # what leaves a producer of the place, then what reaches a consumer of it
        same += [(rows, flow[here, there], np.ones(edges)) for there in range(width)]
        same += [(rows, share[here, arrays.groups[producers]], -np.ones(edges))]
        rows = groups + (width + here) * edges + edge
        same += [(rows, flow[there, here], np.ones(edges)) for there in range(width)]
        same += [(rows, share[here, arrays.groups[consumers]], -np.ones(edges))]
    less += [(edge, start[producers], np.ones(edges)), (edge, start[consumers], -np.ones(edges))]
    less += [(edges + every, start, np.ones(nodes)), (edges + every, np.full(nodes, span), -np.ones(nodes))]
    limits = np.repeat([0.0, 1.0], [edges + nodes + width, width])
    most = np.full(span + 1, np.inf)
    most[share.reshape(-1)] = able.reshape(-1)
    whole = np.zeros(span + 1)
    whole[share.reshape(-1)] = 1.0
    objective = np.zeros(span + 1)
    objective[span] = 1.0
    totals = np.repeat([1.0, 0.0], [groups, 2 * width * edges])
    constraints = [
        LinearConstraint(_table(less, edges + nodes + 2 * width, span + 1), -np.inf, limits),
        LinearConstraint(_table(same, groups + 2 * width * edges, span + 1), totals, totals),
    ]
    return {"c": objective, "integrality": whole, "bounds": Bounds(0.0, most), "constraints": constraints}, unit


def _table(parts: list[tuple[Any, Any, Any]], height: int, width: int) -> csr_array:
    rows, columns, values = (np.concatenate([part[position] for part in parts]) for position in range(3))
    return coo_array((values, (rows, columns)), shape=(height, width)).tocsr()
