"""The network of the constructive policy: its features, its weights and their file, and the tables of a task."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from gst.placement.baselines.arrays import Scheduled, downward_rank, mean_times, optimistic_costs, upward_rank
from gst.util.untrusted import read_arrays
from partitioners.compiled import compiled

PRIORITIES = (
    "upward_rank", "downward_rank", "optimistic_cost", "time", "transfer_out", "num_consumers", "transfers_in",
    "ready_since",
)  # fmt: skip
"""Features of an operation that order the ready ones; computed once, when it becomes ready."""

FEATURES = (
    "rank", "rank_below_first", "sufferage", "transfer_out", "num_consumers", "consumers_waiting_for_it_alone", "time",
    "ready_before_devices", "group_to_come", "start", "finish_of_its_own", "finish", "idle_gap", "wait_for_device",
    "finish_and_optimistic", "finish_and_optimistic_of_its_own", "way_to_the_end", "slower_than_best",
    "inputs_here", "bytes_to_move", "inputs_of_consumers_here", "inputs_of_consumers_elsewhere", "start_of_consumer",
    "device_busy", "device_over_mean", "memory_left", "work_left", "num_ready", "transfers_to_times", "first_come",
)  # fmt: skip
"""Features of a ready operation on a device, in the order in which `roll_out` computes them."""

HIDDEN = 16
NUM_FEATURES, NUM_PRIORITIES = len(FEATURES), len(PRIORITIES)
LAYER = NUM_PRIORITIES + NUM_FEATURES  # where the first layer begins, (HIDDEN, NUM_FEATURES + 1), biases last
OUTPUT = LAYER + HIDDEN * (NUM_FEATURES + 1)  # where the weights of the hidden units begin
NUM_WEIGHTS = OUTPUT + HIDDEN
SHIPPED = "constructive.npz"

Weights = Float32[np.ndarray, " weights"]


def shipped_weights() -> Weights:
    """Return the weights of the package."""
    with resources.as_file(resources.files("gst.placement.policies.constructive") / SHIPPED) as path:
        return np.asarray(read_arrays(path)["weights"], np.float32)


MOST_CONSUMERS = 4  # of an operation that its features look at: those with the longest way to go


class Tables(NamedTuple):
    """Numbers of a task that no decision changes.

    Args:
        mean_times: of each node over the devices that can run it.
        transfers: of each amount that moves, the mean over pairs of different devices.
        rank: upward rank, transfers included.
        optimistic: time from the end of each node on each device to the end, if every later node has its best device
            (the optimistic cost table of PEFT, Arabnejad and Barbosa, 2014).
        priorities: `PRIORITIES` without the last.
        outgoing: the longest transfer of the value of each node.
        incoming: the sum of the transfers of the values that each node reads.
        heads: of each node, `MOST_CONSUMERS` places in the list of its consumers, -1 where it has fewer.
        group_times: mean times of all nodes of each group.
        able: True where a device can run all nodes of a group.
        shares: True where two devices share a core, so that one is busy while the other runs.
        is_view_free: True if operations that take no time need no free device.
        scale: mean time of a node, > 0: the unit of differences between devices.
        horizon: the longer of the longest path and all work shared evenly, > 0: the unit of time.
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


def tables_of(what: Scheduled, transfers: Float64[np.ndarray, " amounts"], is_view_free: bool = False) -> Tables:
    """Return the tables of operations and devices; `transfers` and `is_view_free` as in `Tables`."""
    arrays, use = what.arrays, what.use
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
    """Compute the longest transfer out of each node, the sum of transfers into it, and its chief consumers."""
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
