"""Copies of a simulated run: each value that goes to another memory, with its begin and end."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from gst.execution.costs import Costs
from gst.lowering.plan import Timeline
from partitioners.compiled import compiled


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
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=30, num_devices=2)
        >>> run = task.simulator.run(task.plan(np.arange(task.num_nodes) % 2))
        >>> copies = copies_of(task.costs, run)
        >>> bool((copies.begin_us >= run.end_us[copies.node]).all())
        True
    """
    names = list(dict.fromkeys(device.memory for device in costs.devices))
    memory = np.array([names.index(device.memory) for device in costs.devices])[run.device]
    edges = costs.edges[:, costs.computed[costs.edges[0]]]
    producers, consumers = edges[:, memory[edges[0]] != memory[edges[1]]]
    order = np.lexsort((consumers, run.end_us[consumers], run.begin_us[consumers], memory[consumers], producers))
    key = producers[order] * len(names) + memory[consumers[order]]
    first = order[np.unique(key, return_index=True)[1]]
    node, reader = producers[first], consumers[first]
    in_lane = np.lexsort((
        reader, run.end_us[reader], run.begin_us[reader], node, run.end_us[node], run.begin_us[node], memory[node],
    ))  # fmt: skip
    node, reader = node[in_lane], reader[in_lane]
    here, there = run.device[node], run.device[reader]
    latency, took = costs.latency_us[here, there], costs.output_bytes[node] / costs.bytes_per_us[here, there]
    begin = run.end_us[node]
    end = begin + latency + took
    if costs.copies_queue:
        begin, end = _in_turn(memory[node], begin, latency, took, len(names))
    # By rounding a copy may end after its first reader began, which had waited for it.
    return Copies(node, there, begin, np.minimum(end, np.maximum(run.begin_us[reader], begin)))


@compiled
@no_type_check
def _in_turn(lane, made, latency, took, lanes):
    """Return begin and end of copies: each begins after its value is made and the copy before it in its lane has
    ended."""
    begin, end, free = np.empty(len(lane)), np.empty(len(lane)), np.zeros(lanes)
    for copy in range(len(lane)):
        begin[copy] = max(made[copy], free[lane[copy]])
        end[copy] = begin[copy] + latency[copy] + took[copy]
        free[lane[copy]] = end[copy]
    return begin, end
