"""The least makespan of a tiny task, by trying every placement and every order."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.machine.devices import core_use
from gst.placement.task import Task
from partitioners.compiled import compiled


def least_us(task: Task) -> float:
    """Microseconds of the best of all schedules in which operations cost each other nothing; infinite if none fits."""
    costs, nodes = task.costs, task.num_nodes
    reads = np.zeros((nodes, nodes), bool)
    reads[costs.edges[1], costs.edges[0]] = True
    moved = np.stack([costs.latency_us + size / costs.bytes_per_us for size in costs.output_bytes])
    names = list(task.memories)
    memory = np.array([names.index(device.memory) for device in task.devices])
    room = np.array([np.inf if limit is None else limit for limit in task.memories.values()], np.float64)
    sizes = np.bincount(task.colocation, task.resident_bytes.astype(np.float64), task.num_groups)
    cheapest, tail = task.times_us.min(0), np.zeros(nodes)
    for node in reversed(range(nodes)):
        tail[node] = max((cheapest[reader] + tail[reader] for reader in np.flatnonzero(reads[:, node])), default=0.0)
    best = np.array([np.inf])
    use = core_use(task.devices)
    _append(
        0.0, np.full(nodes, -1.0), np.full(nodes, -1), np.full(task.num_groups, -1), np.zeros(use.shape[1]), room, best,
        task.times_us, use, reads, moved, task.colocation, sizes, memory, tail,
    )  # fmt: skip
    return float(best[0])


@compiled
@no_type_check
def _append(last, end, home, place, free, room, best, times, use, reads, moved, groups, sizes, memory, tail):
    """Append each operation whose producers are there, on each device, in the order of starts: every schedule in which
    nothing could start earlier comes up."""
    nodes, done = len(end), 0
    for node in range(nodes):
        done += end[node] >= 0
    if done == nodes:
        best[0] = min(best[0], end.max())
        return
    for node in range(nodes):
        ready = end[node] < 0
        for producer in range(nodes):
            ready = ready and (not reads[node, producer] or end[producer] >= 0)
        if not ready:
            continue
        group = groups[node]
        for device in range(times.shape[0]):
            is_first = place[group] < 0
            if times[device, node] == np.inf or (not is_first and place[group] != device):
                continue
            if is_first and sizes[group] > room[memory[device]]:
                continue
            start = 0.0
            for core in range(use.shape[1]):
                if use[device, core]:
                    start = max(start, free[core])
            for producer in range(nodes):
                if reads[node, producer]:
                    start = max(start, end[producer] + moved[producer, home[producer], device])
            finish = start + times[device, node]
            if start < last or finish + tail[node] >= best[0]:
                continue
            before = free.copy()
            free[use[device]] = finish
            end[node], home[node] = finish, device
            if is_first:
                place[group] = device
                room[memory[device]] -= sizes[group]
            _append(start, end, home, place, free, room, best, times, use, reads, moved, groups, sizes, memory, tail)
            end[node], home[node] = -1.0, -1
            free[:] = before
            if is_first:
                place[group] = -1
                room[memory[device]] += sizes[group]
