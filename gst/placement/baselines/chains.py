"""The least time that passes before an operation can start on each device: chains of operations with transfers."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from partitioners.compiled import compiled


class Chains(NamedTuple):
    """What chains are made of.

    Args:
        times: of each node on each device; infinite where it cannot run.
        groups: of each node; nodes of one are on one device.
        amounts: of each edge.
        fixed, per_amount: a transfer between two devices takes fixed + amount x per_amount.
        table: time of each edge between two kinds of devices, in place of those two; no entries where there is none.
        kind: of each device.
    """

    times: Float64[np.ndarray, "devices nodes"]
    groups: Int64[np.ndarray, " nodes"]
    amounts: Float64[np.ndarray, " edges"]
    fixed: Float64[np.ndarray, "devices devices"]
    per_amount: Float64[np.ndarray, "devices devices"]
    table: Float64[np.ndarray, "pairs kinds kinds"]
    kind: Int64[np.ndarray, " devices"]


@compiled
@no_type_check
def moved(edge, here, there, arrays):
    """Time that the value of an edge takes from a device to another."""
    if here == there:
        return 0.0
    if len(arrays.table):
        return arrays.table[edge, arrays.kind[here], arrays.kind[there]]
    return arrays.fixed[here, there] + arrays.amounts[edge] * arrays.per_amount[here, there]


@compiled
@no_type_check
def heads(indptr, others, edges, order, devices, backwards, arrays):
    """Of each node on each of some devices, what passes at least before it starts (or, backwards, after it ends).

    An operation on a device starts when the values of its producers are there; some of these are on the same device,
    one after the other, and the others pay a transfer, whichever choice is best (as Papadimitriou and Yannakakis, SIAM
    J. Computing 19(2), 1990, for producers alone).

    Args:
        indptr, others, edges: whose values each node waits for (or, backwards, who waits for its value).
        order: of nodes, those first that others wait for.
        devices: numbers of the devices.
        arrays: `Chains`, or `gst.placement.public.problem.Arrays`.
    """
    nodes, count, times = len(order), len(devices), arrays.times
    head = np.zeros((count, nodes))
    for node in order:
        first, degree = indptr[node], indptr[node + 1] - indptr[node]
        if degree == 0:
            continue
        away, near, here = np.empty(degree), np.empty(degree), np.empty(degree)
        for mine in range(count):
            for number in range(degree):
                other, edge = others[first + number], edges[first + number]
                away[number] = np.inf
                for there in range(count):
                    if there == mine or arrays.groups[other] == arrays.groups[node]:
                        continue
                    if backwards:
                        transfer = moved(edge, devices[mine], devices[there], arrays)
                    else:
                        transfer = moved(edge, devices[there], devices[mine], arrays)
                    away[number] = min(away[number], head[there, other] + times[devices[there], other] + transfer)
                near[number], here[number] = head[mine, other], times[devices[mine], other]
            dearest, soonest = np.argsort(-away), np.argsort(near)
            rank = np.empty(degree, np.int64)
            rank[dearest] = np.arange(degree)
            low, high = 0, degree  # how many of the dearest are near: the least for which they take as long as the rest
            least = np.inf
            while low <= high:
                middle = (low + high) // 2
                limit = away[dearest[middle]] if middle < degree else 0.0
                taken = 0.0
                for number in soonest:
                    if rank[number] < middle:
                        taken = max(taken, near[number]) + here[number]
                least = min(least, max(taken, limit))
                if taken >= limit:
                    high = middle - 1
                else:
                    low = middle + 1
            head[mine, node] = least
    return head
