"""Baselines for published problems: plans that need no search, by name."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float64, Int64

from experiments.reproductions.public_problems.list_schedule import Rule, place_in_order
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.schedules import Schedule
from gst.placement.baselines.arrays import downward_rank, optimistic_costs, places, scheduled, upward_rank
from partitioners import has_metis, partition

WHOLE = 10**8  # sum of the integer weights that METIS is given
DRAWS = 50  # of ties of DOPPLER's critical-path heuristic: its num_episode
INSERTION = Rule()
MANY = 20_000  # operations, above which subsets of devices and further draws are not tried


def baselines(problem: Problem, seed: int = 0) -> dict[str, Schedule]:
    """Every baseline by name; one whose plan is not admitted says why (`Schedule.reason`).

    `single:DEVICE` is one device of each kind alone, `round_robin` gives operations in topological order to the devices
    in turn, `chunks` cuts that order into pieces of equal time. `heft` and `cpop` are those of Topcuoglu, Hariri and Wu
    (IEEE TPDS 13(3), 2002), `peft` that of Arabnejad and Barbosa (IEEE TPDS 25(3), 2014), `min_eft` takes operations in
    topological order where each ends first, `heft:few` is HEFT on the number of devices that suits it best.
    `critical_path` takes the ready operation of the longest way to go where it can start first: DOPPLER's heuristic
    (the best of `DRAWS` draws of its ties) where its rules hold. `metis` is the best cut into 2 parts up to one for
    each device, `expert` the published split.

    Examples:
        >>> from pathlib import Path
        >>> from experiments.reproductions.public_problems.formats import read_public_graph
        >>> from experiments.reproductions.public_problems.problem import public_problem
        >>> _ = Path("two.txt").write_text("2\\n\\n\\n\\n30000000000,0\\n20000000000,0\\n")
        >>> problem = public_problem(read_public_graph(Path("two.txt")), "gpus:2")
        >>> plans = baselines(problem)
        >>> plans[f"single:{problem.devices[0]}"].makespan, plans["heft"].makespan
        (5.0, 3.0)
    """
    nodes, devices = problem.num_nodes, len(problem.devices)
    rank = upward_rank(problem.mean_times, problem.mean_transfers, problem.arrays)
    by_rank = topological(problem, rank)
    plans: dict[str, Schedule | None] = {}
    for device in sorted(np.unique(problem.kind, return_index=True)[1].tolist()):
        plans[f"single:{problem.devices[device]}"] = Schedule(problem, np.full(nodes, device))
    if devices > 1:
        plans["round_robin"] = _ordered(problem, _of_groups(problem, np.arange(nodes) % devices), by_rank)
        plans["chunks"] = _ordered(problem, _of_groups(problem, _chunks(problem)), by_rank)
        plans["min_eft"] = list_schedule(problem, np.arange(nodes))
        plans["heft"] = list_schedule(problem, by_rank)
        plans["cpop"] = _cpop(problem, rank)
        plans["peft"] = _peft(problem)
        if devices > 2 and nodes <= MANY:
            plans["heft:few"] = _best(list_schedule(problem, by_rank, _first(problem, k)) for k in _counts(devices - 1))
        if problem.graph.first_come:
            plans["critical_path"] = _best(_critical_path(problem, seed))
        else:
            plans["critical_path"] = list_schedule(problem, by_rank, rule=Rule(fill=False, by_start=True))
        if has_metis():
            plans["metis"] = _best(_ordered(problem, home, by_rank) for home in _metis(problem, seed))
    if problem.graph.split is not None:
        plans["expert"] = _expert(problem, by_rank)
    return {name: plan for name, plan in plans.items() if plan is not None}


def topological(problem: Problem, priority: Float64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Of the operations whose producers are all there, the one of greatest priority is next."""
    arrays = problem.arrays
    waiting = np.diff(arrays.producer_indptr)
    ready = [(-priority[node], node) for node in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)[1]
        order.append(node)
        for consumer in arrays.consumers[arrays.indptr[node] : arrays.indptr[node + 1]].tolist():
            waiting[consumer] -= 1
            if not waiting[consumer]:
                heapq.heappush(ready, (-priority[consumer], consumer))
    return np.array(order, np.int64)


def list_schedule(
    problem: Problem,
    order: Int64[np.ndarray, " nodes"],
    allowed: Bool[np.ndarray, " devices"] | None = None,
    rule: Rule = INSERTION,
    bias: Float64[np.ndarray, "devices nodes"] | None = None,
    home: Int64[np.ndarray, " nodes"] | None = None,
) -> Schedule | None:
    """The list schedule of an order (see `place_in_order`); None if it finds no room for an operation.

    Args:
        allowed: devices that may be used; all if None.
        home: device of each node, -1 = undecided; decided ones stay.
    """
    arrays, nodes, groups = problem.arrays, problem.num_nodes, len(problem.arrays.sizes)
    placed, begin, device = np.full(nodes, -1), np.zeros(nodes), np.full(groups, -1)
    room, times = arrays.limits.copy(), problem.group_times
    if home is not None:
        device[arrays.groups[home >= 0]] = home[home >= 0]
        room -= np.bincount(device[device >= 0], arrays.sizes[device >= 0], len(room))
    if allowed is not None:
        times = np.where(allowed[:, None], times, np.inf)
    none = np.zeros((0, 0)) if bias is None else bias
    each = scheduled(arrays, np.eye(len(room), dtype=bool))
    if not place_in_order(order, each, places(times, room, device), rule, none, placed, begin):
        return None
    return Schedule(problem, placed, np.argsort(begin, kind="stable"))


def _ordered(
    problem: Problem, home: Int64[np.ndarray, " nodes"], order: Int64[np.ndarray, " nodes"]
) -> Schedule | None:
    """The plan of a placement, with the order that a list schedule gives it; or one that says why it is none."""
    return list_schedule(problem, order, home=home) or Schedule(problem, home)


def _best(plans: Iterator[Schedule | None]) -> Schedule | None:
    admitted = [plan for plan in plans if plan is not None and not plan.reason]
    return min(admitted, key=lambda plan: plan.makespan, default=None)


def _counts(most: int) -> list[int]:
    """Numbers of devices to be tried: all up to 8, then those that are twice as many, and all."""
    return [count for count in range(1, most + 1) if count <= 8 or count & (count - 1) == 0 or count == most]


def _first(problem: Problem, count: int) -> Bool[np.ndarray, " devices"]:
    """The devices that run everything quickest, so many of them."""
    times = problem.arrays.times
    order = np.argsort(np.where(np.isfinite(times), times, times[np.isfinite(times)].max()).sum(1), kind="stable")
    return np.isin(np.arange(len(order)), order[:count])


def _of_groups(problem: Problem, home: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Each group where its first node is; a device that cannot run one of its nodes leaves it to one that can."""
    arrays = problem.arrays
    chosen = home[np.unique(arrays.groups, return_index=True)[1]]
    able = np.isfinite(problem.group_times)
    chosen = np.where(able[chosen, np.arange(len(chosen))], chosen, able.argmax(0))
    return chosen[arrays.groups].astype(np.int64)


def _chunks(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    share = np.cumsum(problem.mean_times) - problem.mean_times / 2
    return np.minimum(share * len(problem.devices) / max(share[-1], 1e-300), len(problem.devices) - 1).astype(np.int64)


def _cpop(problem: Problem, rank: Float64[np.ndarray, " nodes"]) -> Schedule | None:
    """Critical path on a processor: the operations of the longest way go to the device that runs them quickest."""
    arrays = problem.arrays
    priority = rank + downward_rank(problem.mean_times, problem.mean_transfers, arrays)
    sources = np.flatnonzero(np.diff(arrays.producer_indptr) == 0)
    node = int(sources[priority[sources].argmax()])
    path = [node]
    while arrays.indptr[node] < arrays.indptr[node + 1]:
        consumers = arrays.consumers[arrays.indptr[node] : arrays.indptr[node + 1]]
        node = int(consumers[priority[consumers].argmax()])
        path.append(node)
    members = np.isin(arrays.groups, arrays.groups[path])
    device = int(arrays.times[:, members].sum(1).argmin())
    if not np.isfinite(arrays.times[device, members]).all():
        return list_schedule(problem, topological(problem, priority))
    home = np.where(members, device, -1)
    return list_schedule(problem, topological(problem, priority), home=home)


def _peft(problem: Problem) -> Schedule | None:
    """Predict earliest finish time: optimistic costs of what is still to come count beside the finish."""
    table = optimistic_costs(problem.mean_transfers, problem.arrays)
    return list_schedule(problem, topological(problem, table.mean(0)), bias=table)


def _critical_path(problem: Problem, seed: int) -> Iterator[Schedule]:
    """DOPPLER's critical-path heuristic (scheduler/rl_agent.py, env/env.py, cp_utils.py): of the ready operations one
    of the longest way to go, transfers included, goes to one of the devices where it can start first. A device is taken
    to be busy for the sum of what it was given, without waiting, as there."""
    arrays, nodes, devices = problem.arrays, problem.num_nodes, len(problem.devices)
    times = arrays.times[0]
    leaves, producers = np.zeros(nodes), problem.graph.edges[0]
    np.maximum.at(leaves, producers, arrays.amounts)
    level = upward_rank(times, leaves[producers], arrays)
    for draw in range(DRAWS if nodes <= MANY else 1):
        generator = np.random.default_rng([seed, draw])
        waiting = np.diff(arrays.producer_indptr)
        lots = generator.random(nodes)  # among equals the least is drawn
        ready = [(-level[node], lots[node], node) for node in np.flatnonzero(waiting == 0).tolist()]
        heapq.heapify(ready)
        home, end, busy = np.full(nodes, -1), np.zeros(nodes), np.zeros(devices)
        while ready:
            node = heapq.heappop(ready)[2]
            start = busy.copy()
            for position in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
                producer, edge = arrays.producers[position], arrays.in_edges[position]
                arrival = np.full(devices, end[producer] + arrays.amounts[edge])
                arrival[home[producer]] = end[producer]
                np.maximum(start, arrival, out=start)
            home[node] = generator.choice(np.flatnonzero(start == start.min()))
            busy[home[node]] += times[node]
            end[node] = busy[home[node]]
            for consumer in arrays.consumers[arrays.indptr[node] : arrays.indptr[node + 1]].tolist():
                waiting[consumer] -= 1
                if not waiting[consumer]:
                    heapq.heappush(ready, (-level[consumer], lots[consumer], consumer))
        yield Schedule(problem, home)


def _metis(problem: Problem, seed: int) -> Iterator[Int64[np.ndarray, " nodes"]]:
    """Placements of METIS (Karypis and Kumar, 1998): groups weighted by time, edges by their mean transfer."""
    arrays, count = problem.arrays, len(problem.arrays.sizes)
    ends = arrays.groups[problem.graph.edges]
    crossing = ends[0] != ends[1]
    weights = [np.bincount(arrays.groups, problem.mean_times, count), problem.mean_transfers[crossing]]
    whole = [np.maximum(1, np.rint(WHOLE * each / max(each.sum(), 1e-300))).astype(np.int64) for each in weights]
    for parts in _counts(min(len(problem.devices), count))[1:]:
        part = partition(ends[:, crossing], count, parts, "metis", seed, node_weights=whole[0], edge_weights=whole[1])
        chosen = np.flatnonzero(_first(problem, parts))
        yield _of_groups(problem, chosen[part][arrays.groups])


def _expert(problem: Problem, order: Int64[np.ndarray, " nodes"]) -> Schedule | None:
    """The published split, its devices in turn where the machine has fewer."""
    split = problem.graph.split
    assert split is not None
    if problem.graph.format != "msr":
        return _ordered(problem, _of_groups(problem, split % len(problem.devices)), order)
    first = int(np.sum([name.startswith("cpu:") for name in problem.devices]))
    usable = len(problem.devices) - first
    if ((split < 0).any() and not first) or ((split >= 0).any() and not usable):
        return None
    return _ordered(problem, np.where(split < 0, 0, first + split % max(usable, 1)), order)
