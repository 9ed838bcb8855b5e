"""The least time that passes before an operation can start on each device: chains of operations with transfers."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.placement.baselines.arrays import moved
from gst.util.compiled import compiled


@compiled
@no_type_check
def heads(times, devices, arrays):
    """Of each node on each of some devices, what passes at least before it starts (see `_least`).

    Args:
        times: of each node on each device; infinite where it may not be.
        devices: numbers of the devices.
        arrays: `gst.placement.baselines.arrays.Arrays`.
    """
    order = np.arange(times.shape[1])
    return _least(arrays.producer_indptr, arrays.producers, arrays.in_edges, order, False, times, devices, arrays)


@compiled
@no_type_check
def tails(times, devices, arrays):
    """Of each node on each of some devices, what passes at least after it ends; arguments as of `heads`."""
    order = np.arange(times.shape[1])[::-1].copy()
    return _least(arrays.indptr, arrays.consumers, arrays.out_edges, order, True, times, devices, arrays)


@compiled
@no_type_check
def _least(indptr, others, edges, order, backwards, times, devices, arrays):
    """An operation on a device starts when the values of its producers are there; some of these are on the same device,
    one after the other, and the others pay a transfer, whichever choice is best (as Papadimitriou and Yannakakis, SIAM
    J. Computing 19(2), 1990, for producers alone). Backwards it is the same for what comes after its end.

    Args:
        indptr, others, edges: whose values each node waits for (or, backwards, who waits for its value).
        order: of nodes, those first that others wait for.
    """
    nodes, count = len(order), len(devices)
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
