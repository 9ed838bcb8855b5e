"""Ranks of operations: longest ways to the end and from the beginning, and the optimistic costs of PEFT."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.util.compiled import compiled


@compiled
@no_type_check
def upward_rank(times, transfers, lists):
    """Time from the start of each node to the end along its longest way (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3),
    2002, equation 8), in the unit of the times.

    Args:
        times: of each node, mean over devices for the rank of HEFT.
        transfers: of each number of the lists; zeros count operations alone.
        lists: `EdgeLists` or `Arrays` of `gst.placement.baselines.arrays`.
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
    """Time from the beginning to the start of each node along its longest way (ibid., equation 9); arguments as of
    `upward_rank`."""
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
    """(devices, nodes): time from the end of each node on each device to the end, if all that follows goes where it
    suits best: the optimistic cost table of PEFT (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014)."""
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
