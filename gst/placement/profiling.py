"""Tasks by costs that are measured on the devices: of operations, and of fused groups that a search places as one."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, profiled_costs, shortest_us
from gst.lowering.fusion import CompiledGroup, fusion_groups, numbered, pointwise_chains, rewritten
from gst.lowering.plan import ExecutionError, Plan, RunsInTurns
from gst.machine.devices import Device, this_machine
from gst.machine.load import LoadGate, repeated_while_busy
from gst.placement.baselines.portfolio import single
from gst.placement.machines import STREAMS, VIEW_US
from gst.placement.objectives import PlanRunner
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task, check_same
from gst.programs import Program
from gst.simulation.simulator import UNCALIBRATED, Contention, fit
from gst.util.progress import Progress, no_progress, notice
from gst.util.untrusted import read_object
from gst.util.writing import atomic_write

COSTS = "costs.json"
MOST_ALONE = 16  # devices that are measured alone each; of more the first of each kind and number of threads
NUM_CALIBRATION = 12  # plans from which contention is fitted
CALIBRATION_RUNS = 5  # of each, alternating
LEAST_CALIBRATION = 2  # plans, and runs of each, however short the time
NO_WAIT = LoadGate(patience_s=0.0)
NO_RUNS = RunsInTurns([], 0.0)


def profiled_task(
    program: Program, runner: PlanRunner, seed: int, patience_s: float, progress: Progress, seconds: float = math.inf
) -> Task:
    """Measure the costs of a program as soon as the cores are quiet, or `patience_s` ends; see `measured_task`."""
    gate = NO_WAIT
    if patience_s > 0:
        gate = LoadGate(patience_s=patience_s, progress=progress)
        spent, _ = gate.wait()
        gate = replace(gate, patience_s=patience_s - spent)
    return measured_task(program, runner, seed, gate, progress, seconds)


def measured_task(
    program: Program, runner: PlanRunner, seed: int, gate: LoadGate = NO_WAIT, progress: Progress = no_progress,
    seconds: float = math.inf,
) -> Task:  # fmt: skip
    """Measure the costs of operations, and fit contention to a few plans that use several devices at once.

    A machine's speed drifts between the profile and the runs of these plans, which would count as contention. So runs
    on each device alone (`representatives`) alternate with the plans, and an operation costs its least time there. A
    single device, and devices that do not record when operations begin, are profiled alone, once.

    Args:
        runner: entered.
        seed: of the plans from which contention is fitted.
        gate: waits for quiet cores before more runs, if other processes were busy during all runs before. `load` of
            the costs is the share of the cores that they took while they took least.
        seconds: of the runs of plans, about: fewer plans run, and less often, if these are short.
    """
    progress("profiling", 0, 1)
    profiled = runner.costs()
    for words in dict.fromkeys(_cannot_run(program, profiled)):
        notice(words)
    delays = STREAMS if any(device.is_accelerator for device in profiled.devices) else UNCALIBRATED
    task = Task.of_program(program, profiled, delays)
    if len(task.devices) < 2:
        return task
    chosen, like = representatives(task.devices)
    alone = [single(task, device) for device in chosen]
    alone_keys = {plan.key for plan in alone}
    num_runs = min(1e6 * seconds / task.least_alone_us, CALIBRATION_RUNS * (len(alone) + NUM_CALIBRATION))
    repetitions = max(int(num_runs / (len(alone) + NUM_CALIBRATION)), LEAST_CALIBRATION)
    count = min(max(int(num_runs / repetitions) - len(alone), LEAST_CALIBRATION), NUM_CALIBRATION)
    plans = list(islice((plan for _, plan in random_plans(task, seed) if plan.key not in alone_keys), count))

    def measure() -> RunsInTurns:
        progress("profiling", 0, 1)
        try:
            timelines = runner.timelines([*alone, *plans], repetitions)
        except ExecutionError:
            return NO_RUNS
        return timelines if timelines.runs else NO_RUNS

    attempts = [timelines for timelines in repeated_while_busy(measure, gate) if timelines.runs]
    if not attempts:
        return task
    timelines = reduce(RunsInTurns.with_more, attempts)
    alone_us = np.stack([shortest_us(of_device) for of_device in timelines.runs[: len(alone)]])
    costs = replace(task.costs, times_us=alone_us[like], load=timelines.load)
    contention = fit(costs, timelines.runs[len(alone) :], task.contention) if plans else task.contention
    return Task.of_program(program, costs, contention)


def _cannot_run(program: Program, costs: Costs) -> Iterator[str]:
    """Yield a sentence for each device that cannot run some operations."""
    for device, times_us in zip(costs.devices, costs.times_us, strict=True):
        nodes = np.flatnonzero(np.isinf(times_us))
        if len(nodes):
            yield (
                f"{device.torch_device} cannot run {len(nodes)} of {costs.computed.sum()} operations, "
                f"{program.operations[nodes[0]].target} first; they are placed elsewhere"
            )


def representatives(devices: Sequence[Device]) -> tuple[list[int], list[int]]:
    """Return positions of the devices to measure alone, and for each device the index of its representative there.

    Up to `MOST_ALONE` devices represent themselves; of more, the first of each kind and number of threads does.

    Examples:
        >>> cores = [Device(f"cpu:{core}", "cpu", (core,), 1 + core % 2, "host", "example") for core in range(20)]
        >>> representatives(cores)[0]
        [0, 1]
    """
    if len(devices) <= MOST_ALONE:
        return list(range(len(devices))), list(range(len(devices)))
    kinds = [(device.kind, device.threads) for device in devices]
    distinct = list(dict.fromkeys(kinds))
    return [kinds.index(kind) for kind in distinct], [distinct.index(kind) for kind in kinds]


def cached_task(
    program: Program, devices: Sequence[Device], out: Path, make: Callable[[], Task],
    machine: Mapping[str, Any] | None = None,
) -> Task:  # fmt: skip
    """Read the task with its costs from `out`, or measure it by `make` and write it there: baselines would plan
    differently with other costs.

    Args:
        machine: record of the host that measures; None = this machine.

    Raises:
        ValueError: `out` has costs of another program, machine or release, of other devices, or they are damaged.
    """
    path, machine = out / COSTS, machine or this_machine()
    check_costs(program, devices, out, machine)
    if not path.exists():
        task = make()
        names = {
            "program": program.key, "devices": list(task.names), "contention": task.contention._asdict(),
            "machine": machine,
        }  # fmt: skip
        with atomic_write(path) as file:
            file.write(json.dumps(names | costs_record(task.costs), allow_nan=False))
    record = read_object(path)
    try:
        return Task.of_program(program, costs_of(program, devices, record), Contention(**record["contention"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or of another release; give an empty directory") from error


def check_costs(program: Program, devices: Sequence[Device], out: Path, machine: Mapping[str, Any]) -> None:
    """Raise ValueError if `out` has costs of another program, other devices or another machine."""
    if (path := out / COSTS).exists():
        now = {"program": program.key, "devices": [device.name for device in devices], "machine": machine}
        check_same(path, read_object(path), now)


def costs_record(costs: Costs) -> dict[str, Any]:
    """Return measured costs for JSON, which has no infinite times and speeds; `costs_of` reads them."""
    return {
        "times_us": [[None if math.isinf(each) else each for each in row] for row in costs.times_us.tolist()],
        "own_bytes": costs.own_bytes.tolist(),
        "load": costs.load,
        "latency_us": costs.latency_us.tolist(),
        "us_per_byte": (1 / costs.bytes_per_us).tolist(),
    }


def costs_of(program: Program, devices: Sequence[Device], record: Mapping[str, Any]) -> Costs:
    """Read the costs of a program on devices from a record of `costs_record`."""
    times_us = np.array(record["times_us"], np.float64)  # null becomes NaN
    times_us[np.isnan(times_us)] = np.inf
    with np.errstate(divide="ignore"):
        links = np.array(record["latency_us"], np.float64), 1 / np.array(record["us_per_byte"], np.float64)
    costs = profiled_costs(program, devices, times_us, links)
    own_bytes = np.array(record["own_bytes"], np.int64)
    return replace(costs, own_bytes=own_bytes, load=record.get("load"))


GROUPS_AT_ONCE = 4  # groups in one request: each may have to be compiled


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
    return pointwise_chains(task.program, np.zeros(task.num_nodes, np.int64))


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
    groups = np.where(np.isin(groups, faster), groups, -1)
    return contracted(task, numbered(groups, np.zeros_like(groups)), shares[:, faster])


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
        for start in range(0, len(first), GROUPS_AT_ONCE):
            progress("compiling groups", row * len(first) + start, len(kinds) * len(first))
            ratios = measured(start, start + GROUPS_AT_ONCE, placement)
            shares[device, np.searchsorted(first, list(ratios))] = list(ratios.values())
        shares[[each == kind for each in kind_of]] = shares[device]
    progress("compiled groups", len(kinds) * len(first), len(kinds) * len(first))
    return shares
