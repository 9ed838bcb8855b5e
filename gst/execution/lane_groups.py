"""Fusion groups compiled by Inductor in this process: a graph records the kernels that they launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gst.execution.event_times import repeated, span_us
from gst.execution.groups import Layout, check_alike, example_values, layout, layouts, structure_key
from gst.execution.lanes import GroupCall, Values
from gst.execution.on_accelerator import module_on, one_graph
from gst.lowering.calls import copied
from gst.lowering.fusion import Group, fusion_groups
from gst.lowering.plan import Plan, says_no_memory
from gst.lowering.rewrite import alone
from gst.machine.devices import Device, usable_cores
from gst.programs import Program
from gst.util.progress import notice
from gst.util.recording import is_here
from gst.util.untrusted import first_line

REPETITIONS, WARMUP = 30, 3
BATCH = 20  # calls in a graph that is timed: launching it takes as long as a short kernel

Function = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True, eq=False)
class Structure:
    """Groups of one structure on one device.

    Args:
        operations: runs them one by one, from the values of a group's inputs to those of its outputs.
        layouts: of the inputs for which it was compiled.
        compiled: the same function compiled, if that is faster.
        share: compiled time / time of the operations one by one; 1 where they run one by one.
        reason: why they run one by one; empty if compiled.
    """

    operations: Function
    layouts: tuple[Layout, ...]
    compiled: Function | None = None
    share: float = 1.0
    reason: str = ""


class LaneGroups:
    """The groups of plans of one program: each structure is compiled for its device and measured once.

    Examples:
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid())
        >>> program = capture_module(layers, (torch.zeros(8),))
        >>> core = Device("cpu:0", "cpu", (), 1, "host", "example")
        >>> LaneGroups(program, [core]).shares(Plan(("cpu:0",), np.zeros(3, np.int64)))  # nothing is fused
        {}
    """

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self._program, self._devices = program, {device.name: device for device in devices}
        self._structures: dict[tuple[object, torch.device], Structure] = {}
        self._num_cores = len(usable_cores())  # the thread that compiles may be bound to one

    def shares(self, plan: Plan) -> dict[int, float]:
        """Return compiled time / time of the operations one by one for each legal group of a plan, by first node."""
        return {group.nodes[0]: structure.share for group, structure in self._groups(plan)}

    def calls(self, plan: Plan) -> dict[tuple[int, ...], GroupCall]:
        """Return the functions of the groups of a plan that are faster compiled, by their nodes, for `LaneExecutor`."""
        faster = [(group, structure) for group, structure in self._groups(plan) if structure.compiled is not None]
        return {group.nodes: partial(_call, group, structure) for group, structure in faster}

    def _groups(self, plan: Plan) -> list[tuple[Group, Structure]]:
        """Return each legal group of a plan with its structure, which is compiled if it is new."""
        groups = [group for group in fusion_groups(self._program, plan) if group.outputs]
        homes = [self._devices[plan.devices[plan.placement[group.nodes[0]]]] for group in groups]
        keys = [self._key(group, home) for group, home in zip(groups, homes, strict=True)]
        new = {key: group for key, group in zip(keys, groups, strict=True) if key not in self._structures}
        for device in dict.fromkeys(device for _, device in new):
            mine = {key: group for key, group in new.items() if key[1] == device}
            values = example_values(self._program, {node for group in mine.values() for node in group.inputs}, device)
            for number, (key, group) in enumerate(mine.items(), 1):
                notice(f"compiling group {number} of {len(mine)} ({len(group.nodes)} operations) for {device}")
                inputs = [copied(values[node], device) for node in group.inputs]
                self._structures[key] = self._structure(alone(self._program, group, inputs), device)
        return [(group, self._structures[key]) for group, key in zip(groups, keys, strict=True)]

    def _key(self, group: Group, home: Device) -> tuple[object, torch.device]:
        """Return a key that groups of one structure share; the group itself if an operation has no form in a file."""
        of_node = layouts(self._program, home.torch_device)
        inputs = [of_node[node] for node in group.inputs]
        try:
            return structure_key(self._program, group, inputs, home.threads), home.torch_device
        except ValueError:
            return group, home.torch_device

    def _structure(self, program: Program, device: torch.device) -> Structure:
        """Compile and measure a group, as a program of its own with inputs on the device; raise if memory is short."""
        inputs, operations = list(program.inputs), module_on(program, device)
        structure = partial(Structure, operations, tuple(map(layout, inputs)))
        try:
            with torch.no_grad(), torch._inductor.config.patch(compile_threads=self._num_cores):
                module: Any = module_on(program, device)  # of its own: the compiler changes what it is given
                compiled: Function = torch._inductor.compile(module, [*inputs])
                check_alike(compiled(*inputs), operations(*inputs))
            compiled_us, one_by_one_us = _times_us([partial(compiled, *inputs), partial(operations, *inputs)], device)
        except Exception as error:  # whatever a compiler, an operator or a graph raises
            if says_no_memory(str(error)):
                raise
            return structure(reason=first_line(error, 300))
        if compiled_us >= one_by_one_us:
            return structure(reason=f"{compiled_us:.1f} us compiled, {one_by_one_us:.1f} us one by one")
        return structure(compiled, compiled_us / one_by_one_us)


def _call(group: Group, structure: Structure, values: Values) -> Iterator[tuple[int, Any]]:
    """Yield nodes and values of a group's outputs. Compiled code runs only for the layouts of the examples."""
    inputs = [values[node] for node in group.inputs]
    is_alike = tuple(map(layout, inputs)) == structure.layouts
    function = structure.compiled if is_alike and structure.compiled is not None else structure.operations
    return zip(group.outputs, function(*inputs), strict=True)


def _times_us(functions: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """Return the least time of a call of each function, run alternately; on an accelerator from graphs of `BATCH`
    calls."""

    with torch.no_grad():
        batches = [partial(repeated, function, BATCH) for function in functions]
        timed = [one_graph(each, device) for each in batches] if is_here(device) else batches
        times = [[span_us(each, device) / BATCH for each in timed] for _ in range(WARMUP + REPETITIONS)]
    least: list[float] = np.min(times[WARMUP:], axis=0).tolist()
    return least
