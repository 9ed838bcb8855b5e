"""Lower bounds of the makespan of published problems, with transfers; and proofs by CP-SAT for small ones."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array

from gst.placement.baselines.bounds import priced_work, window_bound
from gst.placement.baselines.chains import heads, moved
from gst.placement.public.problem import Problem
from gst.placement.public.schedules import Schedule

MOST_PROVED, MOST_CHOICES = 120, 2_000  # operations that CP-SAT is asked about, and choices of a device for one

MOST_ENTRIES = 100_000  # shares of the linear program
TOLERANCE = 1e-6  # of its solution


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
    arrays, classes, chosen = problem.arrays, _alike(problem), []
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


def _alike(problem: Problem) -> Int64[np.ndarray, " devices"]:
    """The number of the class of each device: those of one may be exchanged for each other."""
    return np.unique(np.stack([problem.kind, problem.arrays.limits]), axis=1, return_inverse=True)[1].reshape(-1)


def relaxed_bound(problem: Problem, seconds: float) -> float:
    """What no plan is below even if operations may be shared by kinds of devices, in `problem.graph.unit`: a linear
    program of chains with transfers between kinds, of the work of each kind, and of its memory.

    Only where kinds of devices differ does it say more than `lower_bound`; 0 where they do not, where the program is
    larger than `MOST_ENTRIES`, or where it is not solved in time.
    """
    arrays, classes = problem.arrays, _alike(problem)
    kinds, first, count = np.unique(classes, return_index=True, return_counts=True)
    nodes, edges, groups, width = problem.num_nodes, len(arrays.amounts), len(arrays.sizes), len(kinds)
    if width < 2 or groups * width + edges * width**2 > MOST_ENTRIES or seconds <= 0:
        return 0.0
    times = arrays.times[first]
    unit = max(float(np.where(np.isfinite(times), times, 0.0).min(0).sum()) / nodes, 1e-300)
    able = np.stack([np.bincount(arrays.groups, np.isinf(row), groups) == 0 for row in times])
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


def _transfers(problem: Problem, here: int, there: int) -> Float64[np.ndarray, " edges"]:
    """Time of each edge from a device to another."""
    arrays = problem.arrays
    if len(arrays.table):
        return arrays.table[:, arrays.kind[here], arrays.kind[there]]
    return arrays.fixed[here, there] + arrays.amounts * arrays.per_amount[here, there]


def proved_bound(
    problem: Problem, seconds: float, hint: Schedule | None = None, seed: int = 0
) -> tuple[float, Schedule | None]:
    """What CP-SAT proves that no plan is below, and the best plan that it comes upon; 0 and None where the package
    ortools is not installed, the problem is too large (`MOST_PROVED`, `MOST_CHOICES`), or there is no time.

    Args:
        hint: a plan to begin with.
    """
    try:
        from ortools.sat.python import cp_model as cp
    except ImportError:
        return 0.0, None
    if problem.num_nodes > MOST_PROVED or len(problem.devices) * problem.num_nodes > MOST_CHOICES or seconds <= 0:
        return 0.0, None
    arrays, devices, nodes = problem.arrays, range(len(problem.devices)), range(problem.num_nodes)
    slowest = float(np.where(np.isfinite(arrays.times), arrays.times, 0).max(0).sum()) + sum(
        float(_most_moved(problem, edge)) for edge in range(len(arrays.amounts))
    )
    unit = max(slowest, 1e-300) / 2**40  # times are whole numbers of this, rounded down, so that the bound holds
    least = lambda value: int(value / unit)  # noqa: E731
    model: Any = cp.CpModel()
    horizon = 2**40 if hint is None else min(2**40, least(hint.makespan * problem.graph.scale) + len(nodes) + 1)
    here = [[model.new_bool_var("") for _ in devices] for _ in arrays.sizes]
    start = [model.new_int_var(0, horizon, "") for _ in nodes]
    span = model.new_int_var(least(lower_bound(problem) * problem.graph.scale), horizon, "")
    of = [here[group] for group in arrays.groups.tolist()]
    took = [
        sum(least(arrays.times[d, n]) * of[n][d] for d in devices if np.isfinite(arrays.times[d, n])) for n in nodes
    ]
    for literals in here:
        model.add_exactly_one(literals)
    for device in devices:
        for node in np.flatnonzero(np.isinf(arrays.times[device])).tolist():
            model.add(of[node][device] == 0)
        if np.isfinite(arrays.limits[device]):
            model.add(sum(int(size) * each[device] for size, each in zip(arrays.sizes, here, strict=True))
                      <= int(arrays.limits[device]))  # fmt: skip
        parts = [n for n in nodes if 0 < arrays.times[device, n] < np.inf]
        model.add_no_overlap([
            model.new_optional_fixed_size_interval_var(start[n], least(arrays.times[device, n]), of[n][device], "")
            for n in parts
        ])  # fmt: skip
        model.add(sum(least(arrays.times[device, n]) * of[n][device] for n in parts) <= span)
    classes = _alike(problem)
    for one, other in pairwise(devices):  # of devices alike, the first takes the first group
        if classes[one] == classes[other]:
            for group in range(len(here)):
                model.add(here[group][other] <= sum(here[earlier][one] for earlier in range(group)))
    for node in nodes:
        model.add(start[node] + took[node] <= span)
        for position in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
            producer, edge = int(arrays.producers[position]), int(arrays.in_edges[position])
            model.add(start[producer] + took[producer] <= start[node])
            _add_transfers(model, problem, edge, of[producer], of[node], start[producer] + took[producer], start[node],
                           least)  # fmt: skip
    if hint is not None:
        _add_hint(model, problem, hint, here, start, least)
    model.minimize(span)
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, 1
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    bound = max(solver.best_objective_bound, 0.0) * unit / problem.graph.scale
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return (0.0 if status == cp.MODEL_INVALID or hint is None else min(bound, hint.makespan)), None
    home = np.array([[solver.value(each) for each in of[node]] for node in nodes]).argmax(1)
    begin = np.array([solver.value(each) for each in start], np.float64)
    return bound, Schedule(problem, home, np.argsort(begin, kind="stable"))


def _most_moved(problem: Problem, edge: int) -> float:
    """The longest time that an edge takes between two devices."""
    arrays = problem.arrays
    if len(arrays.table):
        return float(arrays.table[edge].max())
    return float((arrays.fixed + arrays.amounts[edge] * arrays.per_amount).max())


def _add_transfers(
    model: Any, problem: Problem, edge: int, here: list[Any], there: list[Any], end: Any, start: Any, least: Any
) -> None:
    devices = range(len(problem.devices))
    durations: dict[int, list[tuple[int, int]]] = {}
    for one in devices:
        for other in devices:
            if duration := least(moved(edge, one, other, problem.arrays)):
                durations.setdefault(duration, []).append((one, other))
    for duration, pairs in durations.items():
        crosses = model.new_bool_var("")
        for one in {one for one, _ in pairs}:
            model.add(here[one] + sum(there[other] for first, other in pairs if first == one) <= 1 + crosses)
        model.add(end + duration * crosses <= start)


def _add_hint(
    model: Any, problem: Problem, hint: Schedule, here: list[list[Any]], start: list[Any], least: Any
) -> None:
    """Devices alike are numbered by their first groups, as the model wants them."""
    classes, leader = _alike(problem), np.unique(problem.arrays.groups, return_index=True)[1]
    homes = hint.home[leader].tolist()
    rename: dict[int, int] = {}
    for number in range(int(classes.max()) + 1):
        mine = np.flatnonzero(classes == number).tolist()
        used = [each for each in dict.fromkeys(homes) if each in mine]
        rename |= dict(zip([*used, *(each for each in mine if each not in used)], mine, strict=True))
    for group, literals in enumerate(here):
        for device, literal in enumerate(literals):
            model.add_hint(literal, int(rename[homes[group]] == device))
    for node, variable in enumerate(start):
        model.add_hint(variable, least(hint.begin[node]))
