"""What a simulated run waited for, and how long the way is from each operation to the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from gst.data.measured_plans import core_use
from gst.devices.execute.costs import Costs
from gst.devices.execute.timeline import Simulation
from gst.devices.simulate.orders import neighbour_lists
from partitioners.compiled import compiled

FIRST, VALUE, CROSSING, BUSY = range(4)
"""What an operation waited for: nothing, a value of its device, a value of another device, its device."""


@dataclass(frozen=True, eq=False)
class Waits:
    """A chain of operations, the last first, each of which began as soon as the next in the chain let it.

    Args:
        nodes: of the chain.
        cause: what each waited for.
    """

    nodes: Int64[np.ndarray, " chain"]
    cause: Int64[np.ndarray, " chain"]


class Timelines:
    """Questions about simulated runs of one program.

    Args:
        costs: of the program.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        edges = costs.edges[:, costs.computed[costs.edges[0]] & costs.computed[costs.edges[1]]]
        self._readers = neighbour_lists(edges, costs.num_nodes)
        self._producers = neighbour_lists(edges[::-1], costs.num_nodes)
        self._bytes = costs.output_bytes.astype(np.float64)
        self._use = core_use(costs.devices)

    def tails_us(self, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " nodes"]:
        """From the begin of each operation to the end of the program along its longest way, transfers included, as it
        is placed: the upward rank of Topcuoglu et al. (2002) of a placement that is already known."""
        costs = self.costs
        return _tails(home, *self._readers, costs.times_us, self._bytes, costs.latency_us, costs.bytes_per_us)

    def waits(self, run: Simulation) -> Waits:
        """The chain that ends with the operation that ends last."""
        costs = self.costs
        order = np.argsort(run.begin_us, kind="stable")
        nodes, cause = _waits(
            run.device, run.begin_us, run.end_us, costs.computed, order, *self._producers, self._use, self._bytes,
            costs.latency_us, costs.bytes_per_us,
        )  # fmt: skip
        return Waits(nodes, cause)


@compiled
@no_type_check
def _tails(home, indptr, consumers, times, num_bytes, latency, bandwidth):
    nodes = len(home)
    tail = np.zeros(nodes)
    for node in range(nodes - 1, -1, -1):
        here, longest = home[node], 0.0
        for position in range(indptr[node], indptr[node + 1]):
            there = home[consumers[position]]
            moved = latency[here, there] + num_bytes[node] / bandwidth[here, there]
            longest = max(longest, moved + tail[consumers[position]])
        tail[node] = longest + times[here, node]
    return tail


@compiled
@no_type_check
def _waits(home, begin, end, computed, order, indptr, producers, use, num_bytes, latency, bandwidth):
    nodes, cores = len(home), use.shape[1]
    before = np.full(nodes, -1)  # the operation that left the cores of each one last
    last = np.full(cores, -1)
    final = -1
    for node in order:
        if not computed[node]:
            continue
        if final < 0 or end[node] > end[final]:
            final = node
        for core in range(cores):
            if use[home[node], core]:
                if last[core] >= 0 and (before[node] < 0 or end[last[core]] > end[before[node]]):
                    before[node] = last[core]
                last[core] = node
    chain, cause = np.empty(nodes, np.int64), np.full(nodes, FIRST)
    size, node = 0, final
    while node >= 0 and size < nodes:
        maker, arrived = -1, -1.0
        for position in range(indptr[node], indptr[node + 1]):
            producer = producers[position]
            there = end[producer] + latency[home[producer], home[node]]
            there += num_bytes[producer] / bandwidth[home[producer], home[node]]
            if there > arrived:
                maker, arrived = producer, there
        chain[size] = node
        if before[node] >= 0 and end[before[node]] > arrived:
            cause[size] = BUSY
            node = before[node]
        elif maker >= 0:
            cause[size] = CROSSING if home[maker] != home[node] else VALUE
            node = maker
        else:
            node = -1
        size += 1
    return chain[:size], cause[:size]
