"""Arrays of a placement problem for compiled schedulers and bounds; ranks of operations."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from gst.simulation.simulator import neighbour_lists
from gst.util.compiled import compiled


class EdgeLists(NamedTuple):
    """Edges from both of their ends, in compressed rows.

    Args:
        indptr, consumers, out_edges: consumers of each node, and the number of each amount that moves to them.
        producer_indptr, producers, in_edges: producers of each node, likewise.
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
    rows = []
    for ends in (edges, edges[::-1]):
        rows += [*neighbour_lists(ends, num_nodes), neighbour_lists(np.stack([ends[0], number]), num_nodes)[1]]
    return EdgeLists(*rows)


class Arrays(NamedTuple):
    """Operations, devices and links. Nodes are in topological order.

    Args:
        indptr, consumers, out_edges, producer_indptr, producers, in_edges: see `EdgeLists`; numbers of `amounts`.
        times: of each node on each device; infinite where it cannot run.
        amounts: one for each edge, or for each node whose readers all read the whole value.
        fixed, per_amount: a transfer between two devices takes fixed + amount x per_amount; zeros on the diagonal.
        table: time of each amount between two kinds of devices, instead of these two; may have no entries.
        kind: of each device.
        groups: of each node; the nodes of a group are on one device.
        member_indptr, members: nodes of each group.
        sizes: bytes of each group.
        memory: of each device.
        limits: bytes of each memory.
        file_rank: position of each node in the file.
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
    table: Float64[np.ndarray, "pairs kinds kinds"]
    kind: Int64[np.ndarray, " devices"]
    groups: Int64[np.ndarray, " nodes"]
    member_indptr: Int64[np.ndarray, " groups_plus_one"]
    members: Int64[np.ndarray, " nodes"]
    sizes: Float64[np.ndarray, " groups"]
    memory: Int64[np.ndarray, " devices"]
    limits: Float64[np.ndarray, " memories"]
    file_rank: Int64[np.ndarray, " nodes"]


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
    """Return the time of amount number `edge` from a device to another; `arrays` are `Arrays`."""
    if here == there:
        return 0.0
    if len(arrays.table):
        return arrays.table[edge, arrays.kind[here], arrays.kind[there]]
    return arrays.fixed[here, there] + arrays.amounts[edge] * arrays.per_amount[here, there]


@compiled
@no_type_check
def upward_rank(times, transfers, lists):
    """Return the time from the start of each node to the end along its longest path. (Topcuoglu, Hariri and Wu, IEEE
    TPDS 13(3), 2002, equation 8)

    Args:
        times: of each node, mean over devices for the rank of HEFT.
        transfers: of each number of the lists; zeros count operations alone.
        lists: `EdgeLists` or `Arrays`.
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
    """Return the time from the beginning to the start of each node along its longest path (ibid., equation 9).
    Arguments are those of `upward_rank`."""
    rank = np.zeros(len(times))
    for node in range(len(times)):
        for position in range(lists.producer_indptr[node], lists.producer_indptr[node + 1]):
            producer = lists.producers[position]
            way = rank[producer] + times[producer] + transfers[lists.in_edges[position]]
            rank[node] = max(rank[node], way)
    return rank


@compiled
@no_type_check
def optimistic_costs(transfers, arrays):
    """Return the optimistic cost table of PEFT (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014): (devices, nodes), the
    time from the end of each node on each device to the end, with all later nodes on their best devices."""
    times, (devices, nodes) = arrays.times, arrays.times.shape
    costs = np.zeros((devices, nodes))
    for node in range(nodes - 1, -1, -1):
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            consumer, transfer = arrays.consumers[position], transfers[arrays.out_edges[position]]
            away = np.inf
            for there in range(devices):
                if times[there, consumer] < np.inf:
                    away = min(away, costs[there, consumer] + times[there, consumer])
            for here in range(devices):
                least = away + transfer
                if times[here, consumer] < np.inf:
                    least = min(least, costs[here, consumer] + times[here, consumer])
                costs[here, node] = max(costs[here, node], least)
    return costs
