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

from experiments.reproductions.public_problems.cost_graphs import NO_OVERHEAD, CostGraph
from gst.data.measured_plans import Profiled
from gst.execution.costs import Costs, profiled_costs
from gst.graphs.graph import Graph
from gst.lowering.plan import Plan, Timeline, positions_of_nodes
from gst.lowering.stream_program import StreamProgram
from gst.machine.devices import Device
from gst.programs import Program
from gst.simulation.peaks import peak_bytes
from gst.simulation.simulator import Contention, Simulator
from gst.util.untrusted import plain, read_object
from gst.util.writing import atomic_write


@dataclass(frozen=True, eq=False)
class Task:
    """Operations to be placed on devices. Nodes are in topological order: every edge leads to a greater number.

    Args:
        name: of the program, for people.
        graph: of the program, without configurations: opcodes and features of node i of `costs`.
        costs: of each operation on each device, what it hands over, and how fast.
        colocation: number of the group of each node, 0 .. groups - 1; a group is placed as one.
        resident_bytes: what each node takes of the memory of its device from beginning to end: parameters, inputs.
        contention: what operations cost each other.
        program: what is executed; None if it exists as costs only.
        sizes_hold_values: whether `resident_bytes` are all that counts, as published sizes hold values of a run too.
        assigned_key: what `key` is, where it is not that of the program.
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
        """The task of placing a captured program. Its inputs and constants are resident where there are several
        memories; with one they lie there under every plan, so that they count for nothing."""
        several = len({device.memory for device in costs.devices}) > 1
        resident_bytes = np.where(costs.computed | (not several), 0, program.output_bytes)
        known = Contention() if contention is None else contention
        return Task(program.name, program.graph, costs, program.colocation, resident_bytes, known, program)

    @staticmethod
    def of_profile(program: Program, devices: Sequence[Device], times_us: Float64[np.ndarray, "devices nodes"]) -> Task:
        """The same when nothing is known but the time of each operation alone."""
        return Task.of_program(program, profiled_costs(program, devices, times_us))

    @staticmethod
    def of_cost_graph(published: CostGraph) -> Task:
        """The task of placing a published cost graph. Features of a node are the logarithms of its time on the CPU, on
        an accelerator (0 where it cannot run there), of its transfer and its size, and whether it can run there."""
        able = np.isfinite(published.accelerator_ms)
        columns = [published.cpu_ms, np.where(able, published.accelerator_ms, 0.0), published.transfer_ms]
        features = np.stack([*map(np.log1p, [*columns, published.sizes]), able], axis=1).astype(np.float32)
        return Task(
            published.name, Graph(features, published.edges, name=published.name), published.costs(),
            published.colocation, np.rint(published.sizes).astype(np.int64), NO_OVERHEAD, sizes_hold_values=True,
        )  # fmt: skip

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.costs.devices

    @property
    def times_us(self) -> Float64[np.ndarray, "devices nodes"]:
        """Of each operation alone on each device; infinite where it cannot run."""
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
        """What datasets of measured plans hold; times are 0 where an operation cannot run."""
        times_us = np.where(np.isfinite(self.times_us), self.times_us, 0.0)
        return Profiled(self.graph, self.costs.output_bytes, self.devices, times_us)

    @cached_property
    def key(self) -> str:
        """Of the program if there is one, otherwise of the costs; 16 hexadecimal digits."""
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
        """The limit of each memory in bytes; None = all there is."""
        limits: dict[str, int | None] = {}
        for device in self.devices:
            known = [limit for limit in (limits.get(device.memory), device.memory_limit) if limit is not None]
            limits[device.memory] = min(known, default=None)
        return limits

    def plan(self, placement: Int64[np.ndarray, " nodes"], priority: Int64[np.ndarray, " nodes"] | None = None) -> Plan:
        return Plan(self.names, placement.astype(np.int64), priority)

    def can_run(self, plan: Plan) -> bool:
        """Whether each operation of a plan can run on its device; devices that the task does not have are left to the
        simulator to refuse."""
        places = plan.placement
        if plan.devices != self.names:
            number = {name: position for position, name in enumerate(self.names)}
            places = np.array([number.get(name, 0) for name in plan.devices], np.int64)[places]
        return bool(np.isfinite(self.times_us[places, np.arange(self.num_nodes)]).all())

    @property
    def least_alone_us(self) -> float:
        """Time of all operations one after the other on the device that takes least for them; if none can run all, of
        each operation on the device that takes least for it."""
        alone_us = float(self.times_us.sum(1).min())
        return alone_us if np.isfinite(alone_us) else float(self.times_us.min(0).sum())

    def taken_apart(self) -> Task:
        """The task without groups that a plan may take apart: operations of one group of a captured program may lie on
        several devices, while groups of costs without a program are a constraint."""
        return self if self.program is None else replace(self, colocation=np.arange(self.num_nodes))

    def plan_of_groups(
        self, assignment: Int64[np.ndarray, " groups"], priority: Int64[np.ndarray, " nodes"] | None = None
    ) -> Plan:
        """The plan that puts every colocation group as a whole on the device assigned to it."""
        return self.plan(assignment[self.colocation], priority)

    def on(self, names: Sequence[str]) -> Task:
        """The same task on some of its devices."""
        chosen, costs = [self.names.index(name) for name in names], self.costs
        links = np.ix_(chosen, chosen)
        fewer = replace(
            costs,
            devices=tuple(self.devices[each] for each in chosen),
            times_us=costs.times_us[chosen],
            own_bytes=costs.own_bytes[chosen],
            latency_us=costs.latency_us[links],
            bytes_per_us=costs.bytes_per_us[links],
        )
        return replace(self, costs=fewer)

    def memory_use(self, simulation: Timeline) -> dict[str, int]:
        """The most bytes that each memory holds at any moment of a simulated run, resident ones included."""
        use = peak_bytes(self.costs, simulation)
        if self.sizes_hold_values:
            use = dict.fromkeys(use, 0)
        home = np.array([list(use).index(device.memory) for device in self.devices])[simulation.device]
        resident = np.bincount(home, self.resident_bytes.astype(np.float64), len(use)).astype(np.int64)
        return {name: peak + int(more) for (name, peak), more in zip(use.items(), resident, strict=True)}


MOST_STEPS = 20_000  # of a stream program that a file of a plan holds: about a megabyte


def save_plan(
    plan: Plan, program: Program | Task, path: Path, streams: StreamProgram | None = None,
    certificate: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write `path` at once or not at all; `Plan.load` reads it too.

    Args:
        plan: device, priority and fusion group of every operation.
        program: what it is for.
        path: of the file.
        streams: the plan lowered; written with it (`StreamProgram.from_dict` reads it) up to `MOST_STEPS` steps.
        certificate: written with it, see `gst.placement.certificate.Certificate.to_dict`.

    Examples:
        >>> import torch
        >>> from gst.machine.devices import discover
        >>> from gst.programs import capture_module
        >>> program, core = capture_module(torch.nn.ReLU(), (torch.zeros(2),)), discover()[0]
        >>> plan = Plan((core.name,), np.zeros(program.num_nodes, np.int64))
        >>> save_plan(plan, program, Path("plan.json"))
        >>> Plan.load(Path("plan.json")).key == plan.key
        True
    """
    with atomic_write(path) as file:
        lowered = {} if streams is None or streams.num_steps > MOST_STEPS else {"streams": streams.to_dict()}
        certified = {} if certificate is None else {"certificate": certificate}
        file.write(json.dumps({"program": program.key, **plan.to_dict(), **certified, **lowered}))


def load_plan(path: Path, program: Program, devices: Sequence[Device]) -> Plan:
    """Read a plan for `program` on some of `devices`.

    Raises:
        ValueError: it is no plan, or one for another program (by key, where the file has one, and number of nodes) or
            for other devices.

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
    """Refuse to go on with a file that was made for another task, or with other settings than now. What the file does
    not say (earlier versions did not write everything) is taken to be the same.

    Raises:
        ValueError: the first setting that differs, then and now.
    """
    for what, value in now.items():
        if then.get(what, value) != value:
            raise ValueError(f"{path} was made with {what} {then[what]}, now it is {value}; give another --out")
