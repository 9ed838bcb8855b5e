"""Arrays of a placement problem for compiled schedulers and bounds, places of groups, and ranks of operations."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.stream_program import rows
from gst.util.compiled import compiled


class EdgeLists(NamedTuple):
    """Edges from both of their ends, in compressed rows: consumers and producers of each node, and the number of each
    amount that moves to or from them.
    """

    indptr: Int64[np.ndarray, " nodes_plus_one"]
    consumers: Int64[np.ndarray, " edges"]
    out_edges: Int64[np.ndarray, " edges"]
    producer_indptr: Int64[np.ndarray, " nodes_plus_one"]
    producers: Int64[np.ndarray, " edges"]
    in_edges: Int64[np.ndarray, " edges"]


def edge_lists(edges: Int64[np.ndarray, "2 edges"], num_nodes: int, by_node: bool = False) -> EdgeLists:
    """Return the lists of edges, producer -> consumer.

    Args:
        by_node: an amount has the number of its producer, instead of that of its edge.

    Examples:
        >>> lists = edge_lists(np.array([[0, 0, 1], [1, 2, 2]]), 3)
        >>> lists.consumers.tolist(), lists.out_edges.tolist(), lists.in_edges.tolist()
        ([1, 2, 2], [0, 1, 2], [0, 1, 2])
    """
    number = edges[0] if by_node else np.arange(edges.shape[1])
    lists: list[Int64[np.ndarray, " _"]] = []
    for ends in (edges, edges[::-1]):
        lists += [*rows(ends[0], ends[1], num_nodes), rows(ends[0], number, num_nodes).items]
    return EdgeLists(*lists)


class Arrays(NamedTuple):
    """Operations, devices and links. Nodes are in topological order; the first six fields are those of `EdgeLists`.

    Args:
        times: of each node on each device; infinite where it cannot run.
        amounts: one for each edge, or for each node whose readers all read the whole value.
        fixed, per_amount: a transfer between two devices takes fixed + amount x per_amount; zeros on the diagonal.
        groups: of each node; the nodes of a group are on one device.
        sizes: bytes of each group.
        memory: number of the memory of each device.
    """

    indptr: Int64[np.ndarray, " nodes_plus_one"]
    consumers: Int64[np.ndarray, " edges"]
    out_edges: Int64[np.ndarray, " edges"]
    producer_indptr: Int64[np.ndarray, " nodes_plus_one"]
    producers: Int64[np.ndarray, " edges"]
    in_edges: Int64[np.ndarray, " edges"]
    times: Float64[np.ndarray, "devices nodes"]
    amounts: Float64[np.ndarray, " amounts"]
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
def moved(edge, here, there, arrays):
    """Return the time of amount number `edge` from a device to another."""
    if here == there:
        return 0.0
    return arrays.fixed[here, there] + arrays.amounts[edge] * arrays.per_amount[here, there]


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
def upward_rank(times, transfers, lists):
    """Return the time from the start of each node to the end along its longest path. (Topcuoglu, Hariri and Wu, IEEE
    TPDS 13(3), 2002, equation 8)

    Args:
        transfers: of each number of `lists`, `EdgeLists` or `Arrays`; zeros count operations alone.
    """
    rank = np.zeros(len(times))
    for node in range(len(times) - 1, -1, -1):
        longest = 0.0
        for position in range(lists.indptr[node], lists.indptr[node + 1]):
            longest = max(longest, transfers[lists.out_edges[position]] + rank[lists.consumers[position]])
        rank[node] = times[node] + longest
    return rank


@compiled
@no_type_check
def downward_rank(times, transfers, lists):
    """Return the time from the beginning to the start of each node along its longest path (ibid., equation 9)."""
    rank = np.zeros(len(times))
    for node in range(len(times)):
        for position in range(lists.producer_indptr[node], lists.producer_indptr[node + 1]):
            producer = lists.producers[position]
            way = rank[producer] + times[producer] + transfers[lists.in_edges[position]]
            rank[node] = max(rank[node], way)
    return rank
