"""Fused groups of a program, compiled and measured here, as single operations of a task that a search places."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from gst.graphs.graph import Graph
from gst.lowering.costs import profiled_costs
from gst.lowering.fusion import fusion_groups, pointwise_chains
from gst.lowering.plan import ExecutionError, Plan
from gst.lowering.rewrite import CompiledGroup, rewritten
from gst.placement.machines import VIEW_US
from gst.placement.objectives import PlanRunner
from gst.placement.task import Task, check_same
from gst.util.progress import Progress, no_progress
from gst.util.untrusted import read_object
from gst.util.writing import atomic_write

AT_ONCE = 4  # groups in one request: each may have to be compiled


@dataclass(frozen=True, eq=False)
class FusedTask:
    """A task in which each group of a program is one operation.

    Args:
        task: searched for plans.
        node_of: for each operation of the program the node of `task` that computes it.
        groups: of the program, as of `Plan.fusion`.
    """

    task: Task
    node_of: Int64[np.ndarray, " nodes"]
    groups: Int64[np.ndarray, " nodes"]

    def unfold(self, plan: Plan) -> Plan:
        """Turn a plan of `task` into one of the program."""
        priority = None if plan.priority is None else plan.priority[self.node_of]
        return Plan(plan.devices, plan.placement[self.node_of], priority, self.groups)


def chains(task: Task) -> Int64[np.ndarray, " nodes"]:
    """Group element-wise operations of a task's program, see `pointwise_chains`."""
    assert task.program is not None
    return numbered(pointwise_chains(task.program, np.zeros(task.num_nodes, np.int64)))


def numbered(fusion: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Number the groups of at least two nodes 0, 1, ... in the order of their first nodes; -1 for other nodes.

    Examples:
        >>> numbered(np.array([7, 3, 5, 3, 7])).tolist()
        [0, 1, -1, 1, 0]
    """
    number, first, index, counts = np.unique(fusion, return_index=True, return_inverse=True, return_counts=True)
    groups = np.flatnonzero((number >= 0) & (counts >= 2))
    new = np.full(len(number), -1, np.int64)
    new[groups[np.argsort(first[groups])]] = np.arange(len(groups))
    return new[index.reshape(-1)]


def fused_task(
    task: Task,
    runner: PlanRunner,
    groups: Int64[np.ndarray, " nodes"],
    progress: Progress = no_progress,
    cache: Path | None = None,
) -> FusedTask | None:
    """Compile groups for each kind of device, and make those one operation that are faster on some device.

    A group takes the share of its operations' profiled time that it took when both ran alternately, with warm caches.
    On a device where a group is not faster its operations run one by one. None if no group is faster.

    Args:
        task: of a program, as profiled.
        runner: entered; of the program, on the devices of the task.
        groups: that may be fused, legal together, such as `chains`.
        cache: file of the times of the groups of this task, read if it exists and written otherwise.

    Raises:
        ValueError: the file is of another task, or damaged.
    """
    if cache is not None and cache.exists():
        record = read_object(cache)
        check_same(cache, record, {"task": task.key, "devices": list(task.names)})
        shares = np.array(record["shares"], np.float64)
    else:
        shares = _shares(task, groups, runner, progress)
        if cache is not None:
            with atomic_write(cache) as file:
                file.write(json.dumps({"task": task.key, "devices": list(task.names), "shares": shares.tolist()}))
    faster = np.flatnonzero(shares.min(0, initial=1.0) < 1.0)
    if not len(faster):
        return None
    return contracted(task, numbered(np.where(np.isin(groups, faster), groups, -1)), shares[:, faster])


def contracted(
    task: Task, groups: Int64[np.ndarray, " nodes"], shares: Float64[np.ndarray, "devices groups"]
) -> FusedTask:
    """Make each group one operation of the task, followed by an item for each of its values if there are several.

    Args:
        groups: legal together, numbered 0, 1, ... in the order of their first nodes; -1 for other nodes.
        shares: time of each group on each device / that of its operations one by one.

    Raises:
        ValueError: a group can run on none of the devices.
    """
    assert task.program is not None
    plan = Plan(task.names, np.zeros(task.num_nodes, np.int64), None, groups)
    placeholders = {each: CompiledGroup(Path("none"), len(each.nodes)) for each in fusion_groups(task.program, plan)}
    new = rewritten(task.program, placeholders)
    program, node_of, origin, inside = new.program, new.node_of, new.origin, groups >= 0
    size, members = program.num_nodes, node_of[inside]
    is_group = np.zeros(size, bool)
    is_group[members] = True
    is_item = node_of[origin] != np.arange(size)
    share = np.ones((len(task.devices), size))
    share[:, members] = shares[:, groups[inside]]
    one_by_one_us = np.stack([np.bincount(members, row[inside], size) for row in task.times_us])
    times_us = np.where(is_group, share * one_by_one_us, task.times_us[:, origin])
    times_us[:, is_item] = VIEW_US
    costs = profiled_costs(program, task.devices, times_us, (task.costs.latency_us, task.costs.bytes_per_us))
    own_bytes = np.where(is_group, program.output_bytes, task.costs.own_bytes[:, origin])
    costs = replace(costs, own_bytes=own_bytes, copies_queue=task.costs.copies_queue, load=task.costs.load)
    graph = Graph(task.graph.node_features[origin], costs.edges, task.graph.opcodes[origin], name=task.graph.name)
    key = hashlib.sha256(task.key.encode() + groups.tobytes()).hexdigest()[:16]
    resident_bytes = task.resident_bytes[origin]
    fused = Task(
        task.name, graph, costs, program.colocation, resident_bytes, task.contention, program, assigned_key=key
    )
    return FusedTask(fused, node_of, groups)


def whole_step(task: Task) -> Plan:
    """Fuse everything into one operation, on the device with most threads that can run all, then the fastest alone.

    Compiling it takes a minute or more for a large program.
    """
    alone_us = task.times_us.sum(1)
    widest = min(
        range(len(task.devices)),
        key=lambda device: (np.isinf(alone_us[device]), -task.devices[device].threads, alone_us[device]),
    )
    return replace(task.plan(np.full(task.num_nodes, widest)), fusion=np.zeros(task.num_nodes, np.int64))


def _shares(
    task: Task, groups: Int64[np.ndarray, " nodes"], runner: PlanRunner, progress: Progress
) -> Float64[np.ndarray, "devices groups"]:
    """Measure the share of its operations' time that each group takes on each kind of device."""
    first = np.unique(groups, return_index=True)[1][int(groups.min(initial=0) < 0) :]
    shares = np.ones((len(task.devices), len(first)))
    kind_of = [(device.kind, device.description, device.threads) for device in task.devices]
    kinds = sorted(set(kind_of))

    def measured(begin: int, end: int, placement: Int64[np.ndarray, " nodes"]) -> dict[int, float]:
        """Measure groups together, or one by one if they fail; one that ends its process is left out."""
        within = np.where((groups >= begin) & (groups < end), groups, -1)
        try:
            return runner.groups(replace(task.plan(placement), fusion=within))
        except ExecutionError:
            alone = range(begin, min(end, len(first))) if end > begin + 1 else ()
            return {node: share for one in alone for node, share in measured(one, one + 1, placement).items()}

    for row, kind in enumerate(kinds):
        device = kind_of.index(kind)
        placement = np.full(task.num_nodes, device)
        for start in range(0, len(first), AT_ONCE):
            progress("compiling groups", row * len(first) + start, len(kinds) * len(first))
            ratios = measured(start, start + AT_ONCE, placement)
            shares[device, np.searchsorted(first, list(ratios))] = list(ratios.values())
        shares[[each == kind for each in kind_of]] = shares[device]
    progress("compiled groups", len(kinds) * len(first), len(kinds) * len(first))
    return shares
