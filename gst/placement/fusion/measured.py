"""Groups of a program compiled here, as single operations of a task: what a search places with them fused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.grouping import convex_segments, pointwise_chains
from gst.lowering.legality import fusion_groups
from gst.lowering.plan import ExecutionError, Plan
from gst.lowering.rewrite import CompiledGroup, rewritten
from gst.placement.baselines.portfolio import portfolio
from gst.placement.fusion.costs import Contraction, contract, numbered
from gst.placement.machines import VIEW_US
from gst.placement.objectives import PlanRunner, SimulatedObjective
from gst.placement.task import Task, check_same
from gst.util.progress import Progress, no_progress
from gst.util.untrusted import read_object
from gst.util.writing import atomic_write

NUM_SEGMENTS = 24  # of equal work
AT_ONCE = 4  # groups that are asked about at once: each may have to be compiled


@dataclass(frozen=True, eq=False)
class FusedTask:
    """A task of the program in which each group that pays is one operation.

    Args:
        task: what is searched.
        node_of: for each operation of the program the node of `task` that computes it.
        groups: of the program, as of `Plan.fusion`.
    """

    task: Task
    node_of: Int64[np.ndarray, " nodes"]
    groups: Int64[np.ndarray, " nodes"]

    def unfold(self, plan: Plan) -> Plan:
        """A plan of `task` as one of the program. What picks an item of a group goes where the group is."""
        priority = None if plan.priority is None else plan.priority[self.node_of]
        return Plan(plan.devices, plan.placement[self.node_of], priority, self.groups)


def chains(task: Task) -> Int64[np.ndarray, " nodes"]:
    """Groups of element-wise operations of a task's program, see `pointwise_chains`."""
    assert task.program is not None
    return numbered(pointwise_chains(task.program, np.zeros(task.num_nodes, np.int64)))


def segments(task: Task) -> Int64[np.ndarray, " nodes"]:
    """Groups of all kinds of operations of a task's program, see `convex_segments`. The work of an operation is its
    time on the device of fewest threads that can run all; if none can, on the device that takes least for it."""
    assert task.program is not None
    can_run_all = np.flatnonzero(np.isfinite(task.times_us).all(1)).tolist()
    fewest = min(can_run_all, key=lambda device: task.devices[device].threads, default=None)
    work_us = task.times_us.min(0) if fewest is None else task.times_us[fewest]
    return numbered(convex_segments(task.program, work_us, NUM_SEGMENTS))


def share_in_parallel(task: Task, groups: Int64[np.ndarray, " nodes"]) -> float:
    """The simulated time of the best of a few plans in which each group is one operation that takes as long as its
    operations do, as a share of what the fastest device takes for all of them; NaN if none of the plans can run.
    Nothing is compiled."""
    contracted = _contracted(task, groups, np.ones((len(task.devices), int(groups.max(initial=-1)) + 1))).task
    if np.isinf(contracted.times_us).all(0).any():  # two of its operations run on no device both
        return float("nan")
    expected_ms = SimulatedObjective(contracted)(list(portfolio(contracted).values()))
    best_ms = np.min(expected_ms[np.isfinite(expected_ms)], initial=np.inf)
    return float(best_ms * 1e3 / contracted.least_alone_us) if np.isfinite(best_ms) else float("nan")


def fused_task(
    task: Task,
    runner: PlanRunner,
    groups: Int64[np.ndarray, " nodes"],
    progress: Progress = no_progress,
    cache: Path | None = None,
) -> FusedTask | None:
    """Compile groups for each kind of device of a task, and make those one operation that are faster for it somewhere.
    On a device where a group is not faster its operations run one by one.

    A group takes of its operations' profiled time the part that it took when both were measured in turns, hot.

    Args:
        task: of a program, as profiled.
        runner: entered; of the program, on the devices of the task.
        groups: that may run as one, legal together, as `chains` and `segments` return them.
        progress: told of groups, as each may have to be compiled.
        cache: file of the times of groups of this task, read if it is there and written if not.

    Returns:
        None if no group is faster.

    Raises:
        ValueError: the file is of another task, or damaged.
    """
    if cache is not None and cache.exists():
        shares = _read_shares(cache, task)
    else:
        shares = _shares(task, groups, runner, progress)
        if cache is not None:
            with atomic_write(cache) as file:
                file.write(json.dumps({"task": task.key, "devices": list(task.names), "shares": shares.tolist()}))
    pays = np.flatnonzero(shares.min(0, initial=1.0) < 1.0)
    if not len(pays):
        return None
    groups = numbered(np.where(np.isin(groups, pays), groups, -1))
    contracted = _contracted(task, groups, shares[:, pays])
    return FusedTask(_with_program(task, contracted, groups), contracted.node_of, groups)


def _contracted(
    task: Task, groups: Int64[np.ndarray, " nodes"], shares: Float64[np.ndarray, "devices groups"]
) -> Contraction:
    """The task with each group as one operation that takes these shares of the time of its own."""

    def times_us(
        group: Int64[np.ndarray, " nodes"], traffic: Float64[np.ndarray, " new_nodes"]
    ) -> Float64[np.ndarray, "devices new_nodes"]:
        inside, size = group >= 0, len(traffic)
        whole = np.stack([np.bincount(group[inside], row[inside], size) for row in task.times_us])
        part = np.ones_like(whole)
        part[:, group[inside]] = shares[:, groups[inside]]
        return whole * part

    contracted = contract(task, groups, times_us, np.full(len(task.devices), VIEW_US))
    assert contracted is not None, "legal groups never wait for each other"
    return contracted


def whole_step(task: Task) -> Plan:
    """Everything compiled into one, on the device of most threads that can run all, of several the one that takes least
    time for all of it alone: what `torch.compile` does where all cores are one device. Operations that gain nothing by
    a second thread one by one gain by it compiled. Compiling takes a minute or more for a large program."""
    alone_us = task.times_us.sum(1)
    widest = min(
        range(len(task.devices)),
        key=lambda device: (np.isinf(alone_us[device]), -task.devices[device].threads, alone_us[device]),
    )
    return replace(task.plan(np.full(task.num_nodes, widest)), fusion=np.zeros(task.num_nodes, np.int64))


def _read_shares(path: Path, task: Task) -> Float64[np.ndarray, "devices groups"]:
    record = read_object(path)
    check_same(path, record, {"task": task.key, "devices": list(task.names)})
    return np.array(record["shares"], np.float64)


def _shares(
    task: Task, groups: Int64[np.ndarray, " nodes"], runner: PlanRunner, progress: Progress
) -> Float64[np.ndarray, "devices groups"]:
    """What part of its operations' time each group takes on each device; devices of one kind and number of threads are
    alike."""
    first = np.unique(groups, return_index=True)[1][int(groups.min(initial=0) < 0) :]
    shares = np.ones((len(task.devices), len(first)))
    kind_of = [(device.kind, device.description, device.threads) for device in task.devices]
    kinds = sorted(set(kind_of))

    def ask(begin: int, end: int, placement: Int64[np.ndarray, " nodes"]) -> dict[int, float]:
        """One by one where they fail together; one that ends the process that compiles or runs it is left alone."""
        within = np.where((groups >= begin) & (groups < end), groups, -1)
        try:
            return runner.groups(replace(task.plan(placement), fusion=within))
        except ExecutionError:
            alone = range(begin, min(end, len(first))) if end > begin + 1 else ()
            return {node: share for one in alone for node, share in ask(one, one + 1, placement).items()}

    for row, kind in enumerate(kinds):
        device = kind_of.index(kind)
        placement = np.full(task.num_nodes, device)
        for start in range(0, len(first), AT_ONCE):
            progress("compiling groups", row * len(first) + start, len(kinds) * len(first))
            ratios = ask(start, start + AT_ONCE, placement)
            shares[device, np.searchsorted(first, list(ratios))] = list(ratios.values())
        shares[[each == kind for each in kind_of]] = shares[device]
    progress("compiled groups", len(kinds) * len(first), len(kinds) * len(first))
    return shares


def _with_program(task: Task, contracted: Contraction, groups: Int64[np.ndarray, " nodes"]) -> Task:
    """The contracted task with the program rewritten likewise, whose operations are numbered as its nodes are."""
    assert task.program is not None
    plan = Plan(task.names, np.zeros(task.num_nodes, np.int64), None, groups)
    placeholders = {each: CompiledGroup(Path("none"), len(each.nodes)) for each in fusion_groups(task.program, plan)}
    program = rewritten(task.program, placeholders).program
    key = hashlib.sha256(task.key.encode() + groups.tobytes()).hexdigest()[:16]
    return replace(contracted.task, program=program, colocation=program.colocation, assigned_key=key)
