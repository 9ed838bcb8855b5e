"""Copies of a simulated run: each value that goes to another memory, with its begin and end."""

from __future__ import annotations

from typing import NamedTuple, no_type_check
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.costs import Costs
from gst.lowering.plan import Timeline
from gst.lowering.stream_program import Rows, rows
from gst.simulation.queues import precedes
from gst.util.compiled import compiled


class Copies(NamedTuple):
    """Values that are copied from memory to memory, each once for each memory where it is read.

    Args:
        node: of the value.
        device: of its first reader there.
        begin_us, end_us: of the copy.
    """

    node: Int64[np.ndarray, " copies"]
    device: Int64[np.ndarray, " copies"]
    begin_us: Float64[np.ndarray, " copies"]
    end_us: Float64[np.ndarray, " copies"]


def copies_of(costs: Costs, run: Timeline) -> Copies:
    """Return the copies of a simulated run, in the order of its stream program: by the begin of the operation that made
    the value, then by that of the first reader.

    Examples:
        >>> from gst.placement.machines import generated_task
        >>> task = generated_task(0, num_nodes=30, num_devices=2)
        >>> run = task.simulator.run(task.plan(np.arange(task.num_nodes) % 2))
        >>> copies = copies_of(task.costs, run)
        >>> bool((copies.begin_us >= run.end_us[copies.node]).all())
        True
    """
    names = list(dict.fromkeys(device.memory for device in costs.devices))
    memory = np.array([names.index(device.memory) for device in costs.devices])
    return Copies(*_copies(
        run.order, run.begin_us, run.end_us, run.device, memory, len(names), *_readers(costs), costs.latency_us,
        costs.bytes_per_us, costs.output_bytes, costs.copies_queue,
    ))  # fmt: skip


_READERS: WeakKeyDictionary[Costs, Rows] = WeakKeyDictionary()


def _readers(costs: Costs) -> Rows:
    """Return the nodes that read each value that is computed."""
    if costs not in _READERS:
        made, reader = costs.edges[:, costs.computed[costs.edges[0]]]
        _READERS[costs] = rows(made, reader, costs.num_nodes)
    return _READERS[costs]


@compiled
@no_type_check
def _copies(
    order, begin, end, device, memory, memories, indptr, consumers, latency, bandwidth, num_bytes, queue
):  # fmt: skip
    """Return what `Copies` holds; `memory` is that of each device, and `order` the nodes by begin, end and number."""
    nodes, seen = len(order), np.full(memories, -1)  # the last value that each memory reads
    place = np.zeros(memories + 1, np.int64)  # of the next copy that leaves each memory
    for node in range(nodes):
        here = memory[device[node]]
        for position in range(indptr[node], indptr[node + 1]):
            there = memory[device[consumers[position]]]
            if there != here and seen[there] != node:
                seen[there] = node
                place[here + 1] += 1
    for here in range(memories):
        place[here + 1] += place[here]
    count = place[memories]
    value, target = np.empty(count, np.int64), np.empty(count, np.int64)
    begun, ended = np.empty(count), np.empty(count)
    reader, away = np.empty(memories, np.int64), np.empty(memories, np.int64)  # first readers; where they are
    free = np.zeros(memories)
    for there in range(memories):
        seen[there] = -1
    for node in order:
        here, num_away = memory[device[node]], 0
        for position in range(indptr[node], indptr[node + 1]):
            consumer = consumers[position]
            there = memory[device[consumer]]
            if there == here:
                continue
            if seen[there] != node:
                seen[there], reader[there], away[num_away] = node, consumer, there
                num_away += 1
            elif precedes(consumer, reader[there], begin, end):
                reader[there] = consumer
        for number in range(num_away):
            least = number
            for other in range(number + 1, num_away):
                if precedes(reader[away[other]], reader[away[least]], begin, end):
                    least = other
            away[number], away[least] = away[least], away[number]
            first = reader[away[number]]
            made = max(end[node], free[here]) if queue else end[node]  # links that never queue are free at any time
            arrived = made + latency[device[node], device[first]]
            arrived += num_bytes[node] / bandwidth[device[node], device[first]]
            free[here] = arrived
            value[place[here]], target[place[here]], begun[place[here]] = node, device[first], made
            # By rounding a copy may end after its first reader began, which had waited for it.
            ended[place[here]] = min(arrived, max(begin[first], made))
            place[here] += 1
    return value, target, begun, ended
