"""Arrays of a placement problem for compiled schedulers and bounds, places of groups, and ranks of operations."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.util.compiled import compiled


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
