"""A placement task: operations of a program, with their costs on each device; and files of plans for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, profiled_costs
from gst.lowering.plan import Plan, Timeline, positions_of_nodes
from gst.machine.devices import Device, memories_of
from gst.placement.measured_plans import Profiled
from gst.programs import Program
from gst.simulation.copies import peak_bytes
from gst.simulation.simulator import Contention, Simulator
from gst.util.untrusted import plain, read_object
from gst.util.writing import atomic_write


@dataclass(frozen=True, eq=False)
class Task:
    """Operations to be placed on devices. Nodes are in topological order: every edge leads to a greater number.

    Args:
        graph: the program without configurations: opcodes and features of the nodes of `costs`.
        costs: time of each operation on each device, size of its value, and speed of the links.
        colocation: group of each node, 0 .. groups - 1; a group is placed as one.
        resident_bytes: bytes that each node holds in the memory of its device all the time: parameters, inputs.
        contention: delays between operations.
        program: the program to execute; None if there are only costs.
        sizes_hold_values: True if `resident_bytes` include the values of a run.
        assigned_key: `key`, where it differs from that of the program.
    """

    name: str
    graph: Graph
    costs: Costs
    colocation: Int64[np.ndarray, " nodes"]
    resident_bytes: Int64[np.ndarray, " nodes"]
    contention: Contention = field(default_factory=Contention)
    program: Program | None = None
    sizes_hold_values: bool = False
    assigned_key: str = ""

    @staticmethod
    def of_program(program: Program, costs: Costs, contention: Contention | None = None) -> Task:
        """Return the task of a captured program. Inputs and constants are resident only if there are several
        memories.
        """
        several = len({device.memory for device in costs.devices}) > 1
        resident_bytes = np.where(costs.computed | (not several), 0, program.output_bytes)
        delays = Contention() if contention is None else contention
        return Task(program.name, program.graph, costs, program.colocation, resident_bytes, delays, program)

    @staticmethod
    def of_profile(program: Program, devices: Sequence[Device], times_us: Float64[np.ndarray, "devices nodes"]) -> Task:
        """Return the task of a program if only the time of each operation alone is known."""
        return Task.of_program(program, profiled_costs(program, devices, times_us))

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.costs.devices

    @property
    def times_us(self) -> Float64[np.ndarray, "devices nodes"]:
        """Time of each operation alone on each device; infinite where it cannot run."""
        return self.costs.times_us

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    @property
    def num_nodes(self) -> int:
        return self.costs.num_nodes

    @property
    def num_groups(self) -> int:
        return int(self.colocation.max()) + 1

    @property
    def profiled(self) -> Profiled:
        """The description of the task in a dataset of measured plans; times are 0 where an operation cannot run."""
        times_us = np.where(np.isfinite(self.times_us), self.times_us, 0.0)
        return Profiled(self.graph, self.costs.output_bytes, self.devices, times_us)

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits: the key of the program if there is one, otherwise of the costs."""
        if self.assigned_key:
            return self.assigned_key
        if self.program is not None:
            return self.program.key
        digest = hashlib.sha256(repr(self.names).encode())
        for array in (self.costs.edges, self.times_us, self.costs.output_bytes, self.colocation):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.costs, self.contention)

    @cached_property
    def memories(self) -> dict[str, int | None]:
        """Limit of each memory in bytes; None = no limit."""
        limits: dict[str, int | None] = {}
        for device in self.devices:
            known = [limit for limit in (limits.get(device.memory), device.memory_limit) if limit is not None]
            limits[device.memory] = min(known, default=None)
        return limits

    @cached_property
    def is_limited(self) -> bool:
        """True if a plan may exceed a memory: all values at once, and a copy of each, take more than a limit."""
        costs = self.costs
        most = costs.storages.num_bytes.sum() + costs.output_bytes.sum() + self.resident_bytes.sum()
        most += np.where(costs.computed, costs.own_bytes, 0).max(1).sum()  # each device runs one operation at a time
        return any(limit is not None and limit < most for limit in self.memories.values())

    def plan(self, placement: Int64[np.ndarray, " nodes"], priority: Int64[np.ndarray, " nodes"] | None = None) -> Plan:
        return Plan(self.names, placement.astype(np.int64), priority)

    def plan_of_groups(self, assignment: Int64[np.ndarray, " groups"]) -> Plan:
        """Return the plan with every colocation group as a whole on the device assigned to it."""
        return self.plan(assignment[self.colocation])

    @cached_property
    def _runs_anywhere(self) -> bool:
        return bool(np.isfinite(self.times_us).all())

    def can_run(self, plan: Plan) -> bool:
        """True if each operation can run on its device."""
        if self._runs_anywhere:
            return True
        return bool(np.isfinite(self.times_us[plan.homes(self.names), np.arange(self.num_nodes)]).all())

    @property
    def least_alone_us(self) -> float:
        """Time of all operations, one by one, on the fastest device; if none can run all, the sum of the least
        times.
        """
        alone_us = float(self.times_us.sum(1).min())
        return alone_us if np.isfinite(alone_us) else float(self.times_us.min(0).sum())

    def taken_apart(self) -> Task:
        """Return the task without colocation groups, if it has a program; costs alone need theirs."""
        return self if self.program is None else replace(self, colocation=np.arange(self.num_nodes))

    def memory_use(self, simulation: Timeline) -> dict[str, int]:
        """Return the peak of each memory in bytes over a simulated run, resident bytes included."""
        use = peak_bytes(self.costs, simulation)
        if self.sizes_hold_values:
            use = dict.fromkeys(use, 0)
        home = memories_of(self.devices)[1][simulation.device]
        resident = np.bincount(home, self.resident_bytes.astype(np.float64), len(use)).astype(np.int64)
        return {name: peak + int(more) for (name, peak), more in zip(use.items(), resident, strict=True)}


def save_plan(plan: Plan, program: Program | Task, path: Path, certificate: Mapping[str, Any] | None = None) -> None:
    """Write a plan to `path`, at once or not at all; `load_plan` and `Plan.load` read it.

    Args:
        program: the program, or the task, that the plan is for.
        certificate: lower bound and memory, see `gst.placement.baselines.bounds.certificate_of`.

    Examples:
        >>> import torch
        >>> from gst.machine.devices import discover
        >>> from gst.programs import capture_module
        >>> program, core = capture_module(torch.nn.ReLU(), (torch.zeros(2),)), discover()[0]
        >>> plan = Plan((core.name,), np.zeros(program.num_nodes, np.int64))
        >>> save_plan(plan, program, Path("plan.json"))
        >>> load_plan(Path("plan.json"), program, [core]).key == plan.key
        True
    """
    with atomic_write(path) as file:
        certified = {} if certificate is None else {"certificate": certificate}
        file.write(json.dumps({"program": program.key, **plan.to_dict(), **certified}))


def load_plan(path: Path, program: Program, devices: Sequence[Device]) -> Plan:
    """Read a plan for `program` on some of `devices`; see `save_plan` for an example.

    Raises:
        ValueError: the file holds no plan, or one for another program or other devices.
    """
    plan = Plan.load(path)
    key = read_object(path).get("program", program.key)
    if key != program.key:
        raise ValueError(
            f"{path} is a plan for the program with key {plain(str(key), 40)}, {program.name!r} has {program.key}; "
            "make the plan again for this program"
        )
    try:
        positions_of_nodes(plan, program, devices)
    except ValueError as error:
        raise ValueError(f"{path}: {plain(error)}") from error
    return plan


def check_same(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a file of another task or of other settings; what the file lacks counts as the same.

    Raises:
        ValueError: a setting differs; the message names the first, then and now.
    """
    for what, value in now.items():
        if then.get(what, value) != value:
            raise ValueError(f"{path} was made with {what} {then[what]}, now it is {value}; give another --out")
