"""What the constructive policy knows of a problem before its first decision: ranks, optimistic costs, shares."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from experiments.reproductions.public_problems.problem import Problem
from gst.placement.baselines.arrays import Arrays, mean_times
from gst.placement.baselines.ranks import downward_rank, optimistic_costs, upward_rank
from gst.util.compiled import compiled

MOST_CONSUMERS = 4  # of an operation that its features look at: those with the longest way to go


class Tables(NamedTuple):
    """Numbers of a problem that no decision changes.

    Args:
        mean_times: of each node over the devices that can run it.
        transfers: of each amount that moves, the mean over pairs of different devices.
        rank: time from the start of each node to the end along its longest way, transfers included (upward rank).
        optimistic: time from the end of each node on each device to the end, if all that follows goes where it suits
            best (the optimistic cost table of PEFT, Arabnejad and Barbosa, 2014).
        priorities: of each node, features that say which ready operation is looked at first.
        outgoing: of each node, the longest of the transfers of its value.
        incoming: of each node, the sum of the transfers of the values it reads.
        heads: of each node, `MOST_CONSUMERS` places in the list of its consumers, -1 where it has fewer.
        group_times: mean times of all nodes of each group.
        able: whether each device can run all nodes of each group.
        shares: whether two devices share a core, so that one is busy while the other runs; each does with itself.
        is_view_free: whether operations that take no time need no device that is free.
        scale: mean time of a node, > 0: the unit of differences between devices.
        horizon: the longer of the longest way and all work shared evenly, > 0: the unit of time.
        ratio: all transfers divided by all times.
    """

    mean_times: Float64[np.ndarray, " nodes"]
    transfers: Float64[np.ndarray, " amounts"]
    rank: Float64[np.ndarray, " nodes"]
    optimistic: Float64[np.ndarray, "devices nodes"]
    priorities: Float64[np.ndarray, "priorities nodes"]
    outgoing: Float64[np.ndarray, " nodes"]
    incoming: Float64[np.ndarray, " nodes"]
    heads: Int64[np.ndarray, "nodes heads"]
    group_times: Float64[np.ndarray, " groups"]
    able: Bool[np.ndarray, "devices groups"]
    shares: Bool[np.ndarray, "devices devices"]
    is_view_free: bool
    scale: float
    horizon: float
    ratio: float


def tables_of(problem: Problem) -> Tables:
    """The tables of a problem.

    Examples:
        >>> from experiments.reproductions.public_problems.generated import generated_problem
        >>> tables = tables_of(generated_problem(0, nodes=30, devices=2))
        >>> tables.optimistic.shape, bool((tables.rank >= tables.mean_times).all())
        ((2, 30), True)
    """
    return tables_of_arrays(problem.arrays, problem.mean_transfers, np.eye(len(problem.devices), dtype=bool))


def tables_of_arrays(
    arrays: Arrays, transfers: Float64[np.ndarray, " amounts"], use: Bool[np.ndarray, "devices cores"],
    is_view_free: bool = False,
) -> Tables:  # fmt: skip
    """The tables of what these arrays say.

    Args:
        transfers: of each amount, the mean over pairs of different devices.
        use: which device takes which core.
        is_view_free: see `Tables`.
    """
    mean = mean_times(arrays.times)
    rank, depth = upward_rank(mean, transfers, arrays), downward_rank(mean, transfers, arrays)
    optimistic = optimistic_costs(transfers, arrays)
    outgoing, incoming, heads = _around(rank, transfers, arrays)
    num_groups = len(arrays.sizes)
    able = np.stack([np.bincount(arrays.groups, ~each, num_groups) == 0 for each in np.isfinite(arrays.times)])
    scale = float(mean.mean()) or float(transfers.mean() if len(transfers) else 0.0) or 1.0
    least, least_work = arrays.times.min(0), (arrays.times * use.sum(1)[:, None]).min(0)
    horizon = max(float(optimistic.min(0).max() + least.max()), float(least_work.sum()) / use.shape[1], 1e-300)
    longest = max(float(rank.max()), 1e-300)
    fan = np.diff(arrays.indptr)
    priorities = np.stack([
        rank / longest, depth / longest, optimistic.mean(0) / horizon, _squashed(mean / scale),
        _squashed(outgoing / scale), _squashed(fan / 4.0), _squashed(incoming / scale),
    ])  # fmt: skip
    ratio = float(transfers[arrays.out_edges].sum()) / max(float(mean.sum()), 1e-300)
    return Tables(
        mean, transfers, rank, optimistic, priorities, outgoing, incoming, heads,
        np.bincount(arrays.groups, mean, num_groups), able, (use.astype(np.int64) @ use.T.astype(np.int64)) > 0,
        is_view_free, scale, horizon, min(ratio, 1e6),
    )  # fmt: skip


def _squashed(values: Float64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " nodes"]:
    return values / (1.0 + values)


@compiled
@no_type_check
def _around(rank, transfers, arrays):
    """Longest transfer out of each node, sum of transfers into it, and its chief consumers."""
    nodes = len(rank)
    outgoing, incoming = np.zeros(nodes), np.zeros(nodes)
    heads, ways = np.full((nodes, MOST_CONSUMERS), -1), np.empty(MOST_CONSUMERS)
    for node in range(nodes - 1, -1, -1):
        count = 0
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            consumer, transfer = arrays.consumers[position], transfers[arrays.out_edges[position]]
            way = transfer + rank[consumer]
            outgoing[node] = max(outgoing[node], transfer)
            incoming[consumer] += transfer
            place = count  # insertion by the length of the way, the first of equals first
            while place > 0 and ways[place - 1] < way:
                place -= 1
            if place < MOST_CONSUMERS:
                for later in range(min(count, MOST_CONSUMERS - 1), place, -1):
                    ways[later], heads[node, later] = ways[later - 1], heads[node, later - 1]
                ways[place], heads[node, place] = way, position
                count = min(count + 1, MOST_CONSUMERS)
    return outgoing, incoming, heads
