"""Placement problems as the baselines see them: arrays for compiled schedulers and bounds, ranks of operations, units
that are placed as one, and repairs of plans that do not fit the memories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.plan import Plan
from gst.machine.devices import core_use, memories_of
from gst.placement.task import Task
from gst.util.compiled import compiled

MUCH_SLOWER = 2.0  # times the fastest device's time


class Arrays(NamedTuple):
    """Operations, devices and links. Nodes are in topological order; consumers and producers are in compressed rows.

    Args:
        times: of each node on each device; infinite where it cannot run.
        amounts: of the value of each node.
        fixed, per_amount: a transfer between two devices takes fixed + amount x per_amount; zeros on the diagonal.
        groups: of each node; the nodes of a group are on one device.
        sizes: bytes of each group.
        memory: number of the memory of each device.
    """

    indptr: Int64[np.ndarray, " nodes_plus_one"]
    consumers: Int64[np.ndarray, " edges"]
    producer_indptr: Int64[np.ndarray, " nodes_plus_one"]
    producers: Int64[np.ndarray, " edges"]
    times: Float64[np.ndarray, "devices nodes"]
    amounts: Float64[np.ndarray, " nodes"]
    fixed: Float64[np.ndarray, "devices devices"]
    per_amount: Float64[np.ndarray, "devices devices"]
    groups: Int64[np.ndarray, " nodes"]
    sizes: Float64[np.ndarray, " groups"]
    memory: Int64[np.ndarray, " devices"]


class Scheduled(NamedTuple):
    """Operations and the devices that run them, with the cores of each device in compressed rows.

    Args:
        computed: false for inputs and constants, which take no time.
        use: true where a device takes a core.
    """

    arrays: Arrays
    computed: Bool[np.ndarray, " nodes"]
    use: Bool[np.ndarray, "devices cores"]
    core_indptr: Int64[np.ndarray, " devices_plus_one"]
    cores: Int64[np.ndarray, " uses"]


class Places(NamedTuple):
    """Devices of groups so far, and copies of values; schedulers write all but `times`.

    Args:
        times: of each group on each device; infinite where it may not go.
        room: bytes left in each memory.
        device: of each group; -1 = undecided.
        arrived: arrival of the copy of each value in each memory; infinite before there is one.
        lane_free: end of the last copy from each memory; no entries where links never queue.
        lane_next: of the same length, for intermediate results.
    """

    times: Float64[np.ndarray, "devices groups"]
    room: Float64[np.ndarray, " memories"]
    device: Int64[np.ndarray, " groups"]
    arrived: Float64[np.ndarray, "values memories"]
    lane_free: Float64[np.ndarray, " lanes"]
    lane_next: Float64[np.ndarray, " lanes"]


def mean_times(times: Float64[np.ndarray, "devices nodes"]) -> Float64[np.ndarray, " nodes"]:
    """Return the mean time of each node over the devices that can run it; 0 if none can.

    Examples:
        >>> mean_times(np.array([[1.0, np.inf], [3.0, 5.0]])).tolist()
        [2.0, 5.0]
    """
    able = np.isfinite(times)
    return np.where(able, times, 0.0).sum(0) / np.maximum(able.sum(0), 1)


@compiled
@no_type_check
def moved(node, here, there, arrays):
    """Return the time of the value of a node from a device to another."""
    if here == there:
        return 0.0
    return arrays.fixed[here, there] + arrays.amounts[node] * arrays.per_amount[here, there]


@compiled
@no_type_check
def arrives(node, device, arrays, places, home, end, is_placed):
    """Return the time at which all values that a node reads are on a device. Where copies queue, a value crosses to
    another memory once, after the copies that left its memory before; copies are made if `is_placed`.
    """
    latest, there, queues = 0.0, arrays.memory[device], len(places.lane_free) > 0
    for lane in range(len(places.lane_free)):
        places.lane_next[lane] = places.lane_free[lane]
    for position in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
        producer = arrays.producers[position]
        lane = arrays.memory[home[producer]]
        arrival = end[producer]
        if not queues or lane == there:
            arrival += moved(producer, home[producer], device, arrays)
        elif places.arrived[producer, there] < np.inf:
            arrival = places.arrived[producer, there]
        else:
            arrival = max(arrival, places.lane_next[lane])
            arrival += moved(producer, home[producer], device, arrays)
            places.lane_next[lane] = arrival
            if is_placed:
                places.arrived[producer, there] = arrival
        latest = max(latest, arrival)
    for lane in range(len(places.lane_free) if is_placed else 0):
        places.lane_free[lane] = places.lane_next[lane]
    return latest


@compiled
@no_type_check
def free_at(device, what, free):
    """Return the time at which the last core of a device is free."""
    latest = 0.0
    for position in range(what.core_indptr[device], what.core_indptr[device + 1]):
        latest = max(latest, free[what.cores[position]])
    return latest


@compiled
@no_type_check
def may_take(device, group, arrays, places):
    """True if a group is on a device or can still go there."""
    if places.device[group] >= 0:
        return places.device[group] == device
    return places.times[device, group] < np.inf and arrays.sizes[group] <= places.room[arrays.memory[device]]


@compiled
@no_type_check
def take(device, group, arrays, places):
    """Put a group on a device, if it is not there already."""
    if places.device[group] < 0:
        places.device[group] = device
        places.room[arrays.memory[device]] -= arrays.sizes[group]


@compiled
@no_type_check
def upward_rank(times, transfers, indptr, consumers):
    """Return the time from the start of each node to the end along its longest path. (Topcuoglu, Hariri and Wu, IEEE
    TPDS 13(3), 2002, equation 8)

    Args:
        transfers: of the value of each node; zeros count operations alone.
        indptr, consumers: of each node, in compressed rows.
    """
    rank = np.zeros(len(times))
    for node in range(len(times) - 1, -1, -1):
        longest = 0.0
        for position in range(indptr[node], indptr[node + 1]):
            longest = max(longest, transfers[node] + rank[consumers[position]])
        rank[node] = times[node] + longest
    return rank


@compiled
@no_type_check
def downward_rank(times, transfers, indptr, producers):
    """Return the time from the beginning to the start of each node along its longest path (ibid., equation 9)."""
    rank = np.zeros(len(times))
    for node in range(len(times)):
        for position in range(indptr[node], indptr[node + 1]):
            producer = producers[position]
            rank[node] = max(rank[node], rank[producer] + times[producer] + transfers[producer])
    return rank


# Units ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Units:
    """Nodes that are placed as one.

    Args:
        of: unit of each node, 0 .. units - 1.
        times_us: sum of the times of each unit on each device; infinite where a part of it cannot run.
        load_bytes: bytes of each unit in the memory of its device at the peak, see `held_bytes`.
    """

    of: Int64[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices units"]
    load_bytes: Float64[np.ndarray, " units"]

    @property
    def count(self) -> int:
        return len(self.load_bytes)


def units_of(task: Task, of: Int64[np.ndarray, " nodes"]) -> Units:
    """Return the units with these numbers."""
    return Units(of, unit_times_us(task, of), np.bincount(of, held_bytes(task)))


def colocated(task: Task) -> Units:
    """Return colocation groups as units, in the order of their first operations."""
    return units_of(task, in_order(task, task.colocation))


def in_order(task: Task, unit: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Renumber units in the order of their first computed operations; those without any come last."""
    _, inverse = np.unique(unit, return_inverse=True)
    inverse = inverse.reshape(-1)
    first = np.full(int(inverse.max()) + 1, len(unit))
    computed = np.flatnonzero(task.costs.computed)
    np.minimum.at(first, inverse[computed], computed)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]


def unit_times_us(task: Task, unit: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, "devices units"]:
    """Return the sum of the times of each unit on each device."""
    return np.stack([np.bincount(unit, row) for row in task.times_us])


def smallest_units(task: Task) -> Units:
    """Return the smallest units in program order: colocation groups where these are a constraint (costs without a
    program), otherwise single operations, with inputs and constants joined to the first operation that reads them."""
    if task.program is None:
        return colocated(task)
    of = np.arange(task.num_nodes)
    producers, consumers = task.costs.edges[:, ~task.costs.computed[task.costs.edges[0]]]
    reader = np.full(task.num_nodes, task.num_nodes)
    np.minimum.at(reader, producers, consumers)
    read = reader < task.num_nodes
    of[read] = reader[read]
    return units_of(task, np.unique(of, return_inverse=True)[1].astype(np.int64))


def both_units(task: Task) -> tuple[Units, ...]:
    """Return the smallest units, and colocation groups if these are larger."""
    return (colocated(task),) if task.program is None else (smallest_units(task), colocated(task))


def held_bytes(task: Task) -> Float64[np.ndarray, " nodes"]:
    """Return the bytes of each node in its memory: resident ones, and the storages that it makes and that live at the
    peak of a run in program order. Their sum is the peak of that run, but for workspaces."""
    costs, nodes = task.costs, task.num_nodes
    last = np.arange(nodes)
    np.maximum.at(last, costs.edges[0], costs.edges[1])
    last[costs.kept] = nodes
    held, holder = costs.storages.held
    made, size = costs.storages.made_by, costs.storages.num_bytes.astype(np.float64)
    freed = made.copy()
    np.maximum.at(freed, held, last[holder])
    live = np.cumsum(np.bincount(made, size, nodes + 2) - np.bincount(freed + 1, size, nodes + 2))
    fullest = int(live.argmax())
    alive = (made <= fullest) & (freed >= fullest)
    return task.resident_bytes.astype(np.float64) + np.bincount(made[alive], size[alive], nodes)


def peers(task: Task) -> Int64[np.ndarray, " peers"]:
    """Return devices that share a program evenly: none shares a core with another (those of fewest cores are taken),
    and none takes more than twice the time of the fastest."""
    use = core_use(task.devices)
    taken = np.zeros(use.shape[1], bool)
    apart = []
    for device in np.argsort(use.sum(1), kind="stable"):
        if not (taken & use[device]).any():
            taken |= use[device]
            apart.append(int(device))
    chosen = np.sort(apart)
    times = task.times_us[chosen]
    total = times[:, np.isfinite(times).all(0)].sum(1)
    return chosen[total <= MUCH_SLOWER * total.min()]


MOST_ALONE = 64  # devices, each of which is tried alone


def quickest_devices(task: Task) -> Int64[np.ndarray, " quickest"]:
    """Return the `MOST_ALONE` devices on which the whole program takes least time, in order."""
    return np.sort(np.argsort(task.times_us.sum(1), kind="stable")[:MOST_ALONE])


MOST_ATTEMPTS = 4  # to make a plan that fits
MOST_SIMULATED = 400_000  # operations, to make one plan fit by moving a few at a time
MOST_STEPS = 60
NEAR = 8  # moves that are tried in a step

Rooms = Float64[np.ndarray, " memories"]
Assignment = Int64[np.ndarray, " units"]


def limits_bytes(task: Task) -> Rooms:
    """Return the limit of each of `task.memories`; infinite where there is none."""
    return np.array([np.inf if limit is None else limit for limit in task.memories.values()], np.float64)


def use_bytes(task: Task, plan: Plan) -> Rooms:
    """Return the peak of each of `task.memories` in a simulated run of a plan."""
    return np.array(list(task.memory_use(task.simulator.run(plan)).values()), np.float64)


def quickest(task: Task, plans: Iterable[Plan | None]) -> Plan | None:
    """Return the plan of least simulated makespan, the first of equal ones; None if there is none."""
    found = [plan for plan in plans if plan is not None]
    return min(found, key=lambda plan: task.simulator.run(plan).makespan_us, default=None)


def kept(task: Task, plan: Plan) -> Plan | None:
    """Return the plan if it keeps every limit in simulation, otherwise None."""
    limits = limits_bytes(task)
    return plan if np.isinf(limits).all() or (use_bytes(task, plan) <= limits).all() else None


def fitted(task: Task, parts: Units, make: Callable[[Rooms], Plan | None]) -> Plan | None:
    """Return a plan of `make` that keeps every limit in simulation, after moves of units if necessary; None if there is
    none.

    Args:
        parts: units that may move.
        make: returns a plan whose units' `load_bytes` add up to at most this in each memory, or None. A plan that needs
            more in simulation is `relieved`, and made again with less room: the faster one wins.
    """
    limits, memory = limits_bytes(task), memories_of(task.devices)[1]
    plan = make(limits)
    if plan is None or kept(task, plan):
        return plan
    found, room = [relieved(task, parts, plan)], limits.copy()
    for _ in range(MOST_ATTEMPTS):
        use, placed = use_bytes(task, plan), np.bincount(memory[plan.placement], held_bytes(task), len(limits))
        over = use > limits
        room[over] = np.minimum(room, placed)[over] * limits[over] / use[over]
        plan = make(room)
        if plan is None or kept(task, plan):
            found.append(plan)
            break
    return quickest(task, found)


def relieved(task: Task, parts: Units, plan: Plan) -> Plan | None:
    """Move units out of the fullest memory, step by step, until a plan keeps the limits; None if no move helps.

    Of the moves that help at least half as much as the best, the one with the fastest plan is taken.
    """
    limits = limits_bytes(task)
    assignment = np.zeros(parts.count, np.int64)
    assignment[parts.of] = plan.placement
    use, share = use_bytes(task, plan), 1.0
    for _ in range(min(MOST_STEPS, MOST_SIMULATED // (NEAR * task.num_nodes) + 1)):
        worst = int((use / limits).argmax())
        if use[worst] <= limits[worst]:
            return plan
        moves = list(_moves(task, parts, assignment, use, worst, share))
        plans = [task.plan(after[parts.of], plan.priority) for after in moves]
        runs = [task.simulator.run(candidate) for candidate in plans]
        uses = [np.array(list(task.memory_use(run).values()), np.float64) for run in runs]
        gains = [_excess(use, limits) - _excess(each, limits) for each in uses]
        if max(gains, default=0.0) > 0:
            good = [number for number, gain in enumerate(gains) if gain >= max(gains) / 2]
            best = min(good, key=lambda number: runs[number].makespan_us)
            plan, use, assignment = plans[best], uses[best], moves[best]
        elif share < 0.1:
            return None
        else:
            share /= 2
    return kept(task, plan)


def _excess(use: Rooms, limits: Rooms) -> float:
    return float(np.maximum(use / limits - 1, 0).sum())


def _moves(
    task: Task, parts: Units, assignment: Assignment, use: Rooms, worst: int, share: float
) -> Iterator[Assignment]:
    """Yield assignments in which units of the worst memory, of about the excess times `share`, go to another one:
    consecutive units, or those that lose least time for their load."""
    limits, memory = limits_bytes(task), memories_of(task.devices)[1]
    here = np.flatnonzero(memory[assignment] == worst)
    load, wanted = parts.load_bytes[here], share * (use[worst] - limits[worst])
    others = [each for each in np.argsort(use / limits, kind="stable") if each != worst][:2]
    if not load.any():
        return
    before = np.concatenate([[0.0], np.cumsum(load)])
    latest = np.searchsorted(before, max(before[-1] - wanted, 0.0))
    starts = np.minimum(np.unique(np.linspace(0, latest, NEAR // 2 - 1).astype(int)), len(here) - 1)
    stretches = [here[start : max(np.searchsorted(before, before[start] + wanted), start + 1)] for start in starts]
    for other in others:
        devices = np.flatnonzero(memory == other)
        times = parts.times_us[np.ix_(devices, here)].min(0) - parts.times_us[assignment[here], here]
        cheap = np.argsort(np.where(load > 0, times / np.maximum(load, 1), np.inf), kind="stable")
        enough = np.searchsorted(np.cumsum(load[cheap]), wanted) + 1
        for moving in [*stretches, here[cheap[:enough]]]:
            times = parts.times_us[np.ix_(devices, moving)].sum(1)
            if np.isfinite(times).any():
                after = assignment.copy()
                after[moving] = devices[times.argmin()]
                yield after


def repaired(task: Task, parts: Units, assignment: Assignment, room: Rooms) -> Assignment | None:
    """Move units that their device cannot run, or that a full memory cannot hold; None if there is no room for them.

    Those that lose least time for their load leave first, to the fastest device that has room.
    """
    assignment, memory = assignment.copy(), memories_of(task.devices)[1]
    left = room - np.bincount(memory[assignment], parts.load_bytes, len(room))
    times = parts.times_us[assignment, np.arange(parts.count)]
    elsewhere = np.where(memory[:, None] == memory[assignment], np.inf, parts.times_us).min(0)
    unable = np.isinf(times)
    lost = np.where(unable, 0.0, elsewhere - np.where(unable, 0.0, times)) / np.maximum(parts.load_bytes, 1)
    suspects = np.flatnonzero(unable | (left[memory[assignment]] < 0))
    for unit in suspects[np.lexsort((-parts.load_bytes[suspects], lost[suspects], ~unable[suspects]))]:
        source, load = memory[assignment[unit]], parts.load_bytes[unit]
        if not unable[unit] and (left[source] >= 0 or load == 0):
            continue
        left[source] += load
        choice = np.flatnonzero(np.isfinite(parts.times_us[:, unit]) & (left[memory] >= load))
        if len(choice):
            best = np.lexsort((-left[memory[choice]], parts.times_us[choice, unit]))[0]
            assignment[unit] = choice[best]
        elif unable[unit]:
            return None
        left[memory[assignment[unit]]] -= load
    return assignment if (left >= 0).all() else None
