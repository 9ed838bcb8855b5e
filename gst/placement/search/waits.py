"""Longest paths and waits in simulated runs, compiled."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.costs import Costs
from gst.lowering.plan import Timeline
from gst.lowering.stream_program import rows
from gst.machine.devices import core_use
from gst.simulation.copies import copies_of
from gst.util.compiled import compiled

FIRST, VALUE, CROSSING, BUSY = range(4)
"""Cause of a wait: none, a value of the same device, a value of another device, the device itself."""


class Waits(NamedTuple):
    """A chain of operations, the last first, each of which began as soon as the next one let it, and the causes."""

    nodes: Int64[np.ndarray, " chain"]
    cause: Int64[np.ndarray, " chain"]


class _CostArrays(NamedTuple):
    """Costs as the kernels read them, with edges between computed nodes only."""

    indptr: Int64[np.ndarray, " nodes_plus_one"]
    consumers: Int64[np.ndarray, " edges"]
    producer_indptr: Int64[np.ndarray, " nodes_plus_one"]
    producers: Int64[np.ndarray, " edges"]
    computed: Bool[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices nodes"]
    num_bytes: Float64[np.ndarray, " nodes"]
    latency_us: Float64[np.ndarray, "devices devices"]
    bytes_per_us: Float64[np.ndarray, "devices devices"]
    use: Bool[np.ndarray, "devices cores"]
    memory: Int64[np.ndarray, " devices"]


class Timelines:
    """Longest paths and waits in simulated runs of one program."""

    def __init__(self, costs: Costs) -> None:
        edges = costs.edges[:, costs.computed[costs.edges[0]] & costs.computed[costs.edges[1]]]
        self._all_costs = costs
        self._costs = _CostArrays(
            *rows(edges[0], edges[1], costs.num_nodes),
            *rows(edges[1], edges[0], costs.num_nodes),
            computed=costs.computed,
            times_us=costs.times_us,
            num_bytes=costs.output_bytes.astype(np.float64),
            latency_us=costs.latency_us,
            bytes_per_us=costs.bytes_per_us,
            use=core_use(costs.devices),
            memory=np.unique([device.memory for device in costs.devices], return_inverse=True)[1],
        )

    def tails_us(self, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " nodes"]:
        """Return the longest path from the begin of each operation to the end of the program, transfers included: the
        upward rank of Topcuoglu et al. (2002) of a placement."""
        return _tails(home, self._costs)

    def waits(self, run: Timeline) -> Waits:
        """Return the chain that ends with the operation that ends last."""
        arrived = np.zeros((0, 0))
        if self._all_costs.copies_queue:
            copies = copies_of(self._all_costs, run)
            arrived = np.zeros((len(run.device), int(self._costs.memory.max()) + 1))
            arrived[copies.node, self._costs.memory[copies.device]] = copies.end_us
        return Waits(*_waits(run.device, run.begin_us, run.end_us, run.order, arrived, self._costs))


@compiled
@no_type_check
def _tails(home, costs):
    nodes = len(home)
    tail = np.zeros(nodes)
    for node in range(nodes - 1, -1, -1):
        here, longest = home[node], 0.0
        for position in range(costs.indptr[node], costs.indptr[node + 1]):
            there = home[costs.consumers[position]]
            moved = costs.latency_us[here, there] + costs.num_bytes[node] / costs.bytes_per_us[here, there]
            longest = max(longest, moved + tail[costs.consumers[position]])
        tail[node] = longest + costs.times_us[here, node]
    return tail


@compiled
@no_type_check
def _waits(home, begin, end, order, copied, costs):
    use = costs.use
    nodes, cores = len(home), use.shape[1]
    before = np.full(nodes, -1)  # the operation that left the cores of each one last
    last = np.full(cores, -1)
    final = -1
    for node in order:
        if not costs.computed[node]:
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
        for position in range(costs.producer_indptr[node], costs.producer_indptr[node + 1]):
            producer = costs.producers[position]
            there = end[producer] + costs.latency_us[home[producer], home[node]]
            there += costs.num_bytes[producer] / costs.bytes_per_us[home[producer], home[node]]
            if len(copied) and home[producer] != home[node]:  # copies queue
                there = max(there, copied[producer, costs.memory[home[node]]])
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
