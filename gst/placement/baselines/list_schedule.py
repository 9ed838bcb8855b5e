"""List schedule, compiled: operations are placed one after the other, each on its best device given those before it.
The first operation of a group decides the device of the group."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.placement.baselines.arrays import Arrays, moved
from gst.util.compiled import compiled


class Scheduled(NamedTuple):
    """Operations and the devices that run them, with the cores of each device.

    Args:
        arrays: operations, devices, links, groups and memories.
        computed: false for inputs and constants, which take no time.
        use: true where a device takes a core.
        core_indptr, cores: the cores of each device, in compressed rows.
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


def places(
    times: Float64[np.ndarray, "devices groups"],
    room: Float64[np.ndarray, " memories"],
    device: Int64[np.ndarray, " groups"] | None = None,
    queued: int = 0,
) -> Places:
    """Return the places of groups before anything has run.

    Args:
        times, room, device: see `Places`; all groups are undecided if `device` is None.
        queued: number of values whose copies queue.
    """
    lanes = len(room) if queued else 0
    decided = np.full(times.shape[1], -1) if device is None else device
    return Places(times, room, decided, np.full((queued, lanes), np.inf), np.zeros(lanes), np.zeros(lanes))


class Rule(NamedTuple):
    """Choices of a list schedule.

    Args:
        fill: fill gaps between operations placed before (insertion); only if no device shares a core.
        by_start: take the least start, instead of the least finish.
        by_group: count the whole group in the finish of its first operation.
        is_view_free: operations that take no time need no core.
    """

    fill: bool = True
    by_start: bool = False
    by_group: bool = False
    is_view_free: bool = False


def scheduled(
    arrays: Arrays, use: Bool[np.ndarray, "devices cores"], computed: Bool[np.ndarray, " nodes"] | None = None
) -> Scheduled:
    """Return `Scheduled` of arrays and cores; all nodes are computed if `computed` is None."""
    every = np.ones(arrays.times.shape[1], bool) if computed is None else computed
    return Scheduled(arrays, every, use, np.append(0, np.cumsum(use.sum(1))), np.nonzero(use)[1].astype(np.int64))


@compiled
@no_type_check
def arrives(node, device, arrays, places, home, end, is_placed):
    """Return the time at which all values that a node reads are on a device. Where copies queue, a value crosses to
    another memory once, after the copies that left its memory before.

    Args:
        is_placed: the node is placed there, so that its copies are made.
    """
    latest, there, queues = 0.0, arrays.memory[device], len(places.lane_free) > 0
    places.lane_next[:] = places.lane_free
    for position in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
        producer = arrays.producers[position]
        lane = arrays.memory[home[producer]]
        arrival = end[producer]
        if not queues or lane == there:
            arrival += moved(arrays.in_edges[position], home[producer], device, arrays)
        elif places.arrived[producer, there] < np.inf:
            arrival = places.arrived[producer, there]
        else:
            arrival = max(arrival, places.lane_next[lane])
            arrival += moved(arrays.in_edges[position], home[producer], device, arrays)
            places.lane_next[lane] = arrival
            if is_placed:
                places.arrived[producer, there] = arrival
        latest = max(latest, arrival)
    if is_placed:
        places.lane_free[:] = places.lane_next
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
def place_in_order(order, what, places, rule, bias, home, begin):
    """Place nodes in the order given, each on the device where it would finish first: HEFT, if the order is that of
    upward ranks (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002).

    Args:
        order: all nodes, producers before consumers.
        what: `Scheduled`.
        places: `Places`, written.
        rule: `Rule`.
        bias: (devices, nodes), added to the finish of each node on each device; may have no entries.
        home, begin: device and start of each computed node, written.

    Returns:
        True if every node has a device that can run it, within the limits of the memories.
    """
    arrays, computed, core_indptr, cores = what.arrays, what.computed, what.core_indptr, what.cores
    times, groups, nodes = arrays.times, arrays.groups, len(order)
    devices = times.shape[0]
    end, free = np.zeros(nodes), np.zeros(what.use.shape[1])
    slots = nodes if rule.fill else 0
    starts, ends, count = np.empty((devices, slots)), np.empty((devices, slots)), np.zeros(devices, np.int64)
    for node in order:
        if not computed[node]:
            continue
        group = groups[node]
        best, least, best_start = -1, np.inf, 0.0
        for device in range(devices):
            if not may_take(device, group, arrays, places):
                continue
            took = times[device, node]
            start = arrives(node, device, arrays, places, home, end, False)
            if rule.fill:
                start = _gap(starts[device], ends[device], count[device], start, took)
            elif took > 0 or not rule.is_view_free:
                start = max(start, free_at(device, what, free))
            if rule.by_group and places.device[group] < 0:
                took = places.times[device, group]
            score = start if rule.by_start else start + took
            if len(bias):
                score += bias[device, node]
            if score < least:
                best, least, best_start = device, score, start
        if best < 0:
            return False
        take(best, group, arrays, places)
        arrives(node, best, arrays, places, home, end, True)
        took = times[best, node]
        home[node], begin[node], end[node] = best, best_start, best_start + took
        if rule.fill:
            _insert(starts[best], ends[best], count[best], best_start, end[node])
            count[best] += 1
        elif took > 0 or not rule.is_view_free:
            for position in range(core_indptr[best], core_indptr[best + 1]):
                free[cores[position]] = end[node]
    return True


@compiled
@no_type_check
def _gap(starts, ends, count, ready, took):
    """Return the first time from `ready` on at which a device is free for `took`, given the sorted starts and ends of
    its `count` operations."""
    gap = ready
    for slot in range(np.searchsorted(ends[:count], ready, side="right"), count):
        if gap + took <= starts[slot]:
            return gap
        gap = ends[slot]
    return max(ready, ends[count - 1] if count else 0.0)


@compiled
@no_type_check
def _insert(starts, ends, count, start, end):
    """Insert an operation into those of a device."""
    slot = count
    while slot > 0 and starts[slot - 1] >= start:
        if starts[slot - 1] == start and ends[slot - 1] <= end:
            break
        starts[slot], ends[slot] = starts[slot - 1], ends[slot - 1]
        slot -= 1
    starts[slot], ends[slot] = start, end
