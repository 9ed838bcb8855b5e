"""What a constructive method places as one, where that can run, and what it takes of a memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from gst.data.measured_plans import core_use
from gst.placement.task import Task

MUCH_SLOWER = 2.0  # times the fastest device's time


@dataclass(frozen=True, eq=False)
class Units:
    """Nodes that are placed as one.

    Args:
        of: unit of each node, 0 .. units - 1.
        times_us: sum of the times of each unit on each device; infinite where a part of it cannot run.
        load_bytes: what each unit takes of the memory of its device when that is fullest, see `held_bytes`.
    """

    of: Int64[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices units"]
    load_bytes: Float64[np.ndarray, " units"]

    @property
    def count(self) -> int:
        return len(self.load_bytes)


def units_of(task: Task, of: Int64[np.ndarray, " nodes"]) -> Units:
    """The units that these numbers say."""
    count = int(of.max()) + 1
    times = np.stack([np.bincount(of, row, count) for row in task.times_us])
    return Units(of, times, np.bincount(of, held_bytes(task), count))


def colocated(task: Task) -> Units:
    """Each colocation group is a unit; they are numbered in the order of their first operations."""
    first = np.full(task.num_groups, task.num_nodes)
    computed = np.flatnonzero(task.costs.computed)
    np.minimum.at(first, task.colocation[computed], computed)
    number = np.empty(task.num_groups, np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(task.num_groups)
    return units_of(task, number[task.colocation])


def smallest_units(task: Task) -> Units:
    """The least that may be placed, in program order: colocation groups where these are a constraint (costs without a
    program), otherwise single operations, with inputs and constants beside the first operation that reads them."""
    if task.program is None:
        return colocated(task)
    of = np.arange(task.num_nodes)
    producers, consumers = task.costs.edges[:, ~task.costs.computed[task.costs.edges[0]]]
    reader = np.full(task.num_nodes, task.num_nodes)
    np.minimum.at(reader, producers, consumers)
    read = reader < task.num_nodes
    of[read] = reader[read]
    return units_of(task, np.unique(of, return_inverse=True)[1].astype(np.int64))


def both_units(task: Task) -> tuple[Units, ...]:
    """The smallest units, and colocation groups where those are smaller."""
    return (colocated(task),) if task.program is None else (smallest_units(task), colocated(task))


def held_bytes(task: Task) -> Float64[np.ndarray, " nodes"]:
    """Bytes by which each node fills its memory: what is resident, and the storages that it makes and that live at the
    fullest moment of a run of all in program order. Their sum is the peak of that run, but for workspaces."""
    costs, nodes = task.costs, task.num_nodes
    last = np.arange(nodes)
    np.maximum.at(last, costs.edges[0], costs.edges[1])
    last[costs.kept] = nodes
    held, holder = costs.storages.held
    made, size = costs.storages.made_by, costs.storages.num_bytes.astype(np.float64)
    freed = made.copy()
    np.maximum.at(freed, held, last[holder])
    live = np.cumsum(np.bincount(made, size, nodes + 2) - np.bincount(freed + 1, size, nodes + 2))
    fullest = int(live.argmax())
    alive = (made <= fullest) & (freed >= fullest)
    return task.resident_bytes.astype(np.float64) + np.bincount(made[alive], size[alive], nodes)


def memory_of(task: Task) -> Int64[np.ndarray, " devices"]:
    """Position in `task.memories` of the memory of each device."""
    names = list(task.memories)
    return np.array([names.index(device.memory) for device in task.devices])


def peers(task: Task) -> Int64[np.ndarray, " peers"]:
    """The devices that share a program evenly: none shares a core with another (of those that do the ones of fewest
    cores are taken), and none takes more than twice the time of the fastest."""
    use = core_use(task.devices)
    taken = np.zeros(use.shape[1], bool)
    apart = []
    for device in np.argsort(use.sum(1), kind="stable"):
        if not (taken & use[device]).any():
            taken |= use[device]
            apart.append(int(device))
    chosen = np.sort(apart)
    times = task.times_us[chosen]
    total = times[:, np.isfinite(times).all(0)].sum(1)
    return chosen[total <= MUCH_SLOWER * total.min()]
