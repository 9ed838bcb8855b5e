"""The compiled interpreter of plans: its library, programs in its form, and its threads."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gst.lowering.fusion import CompiledGroup
from gst.machine.devices import Device, core_numbers
from gst.programs import Operation, Program, Reference
from gst.programs.operation import references
from gst.util.compiled import cpp_library

# The interpreter takes these as the numbers that operators know them by.
MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def lower(program: Program, callers: int) -> Any:
    """Return the program as a `torch.classes.gst.Program`, with arguments in the order of the operators' schemas.

    Args:
        program: the program.
        callers: number of threads that may be in one compiled group at once.

    Raises:
        ValueError: an operation is no registered operator; the message names it.
    """
    lowered = torch.classes.gst.Program(program.num_nodes)
    for node, operation in enumerate(program.operations):
        if operation.kind == "constant":
            lowered.constant(node, operation.constant)
        elif operation.kind == "operation" and operation.target is operator.getitem:
            lowered.item(node, operation.args[0].node, operation.args[1])
        elif isinstance(operation.target, CompiledGroup):
            lowered.compiled(node, str(operation.target.library), callers)
            for argument in operation.args:
                lowered.value(node, argument.node)
        elif operation.kind == "operation":
            _lower(lowered, node, operation)
    lowered.finish(sorted({each.node for each in program.outputs if isinstance(each, Reference)}))
    return lowered


def _lower(lowered: Any, node: int, operation: Operation) -> None:
    schema = getattr(operation.target, "_schema", None)
    if schema is None:
        raise ValueError(f"node {node} calls {operation.target}, which is no operator of PyTorch's dispatcher")
    lowered.call(node, schema.name, schema.overload_name)
    for position, argument in enumerate(schema.arguments):
        if position < len(operation.args):
            value = operation.args[position]
        elif argument.name in operation.kwargs:
            value = operation.kwargs[argument.name]
        else:
            value = argument.default_value
        if isinstance(value, Reference):
            lowered.value(node, value.node)
        elif isinstance(value, list | tuple) and any(True for _ in references(value)):
            lowered.list(node, [-1 if each is None else each.node for each in value])
        else:
            lowered.fixed(node, _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(value) or None  # the interpreter makes an empty list of the type that is wanted
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return MEMORY_FORMATS.get(value, value) if isinstance(value, torch.memory_format) else value


SPIN_US = 500


def machine(devices: Sequence[Device]) -> Any:
    """Return a started `torch.classes.gst.Machine` with a thread for each first core of a device."""
    numbers = core_numbers(devices)
    made = torch.classes.gst.Machine(1 + max(core for mine in numbers for core in mine), SPIN_US)
    leaders: dict[int, list[Device]] = {}
    for device, cores in zip(devices, numbers, strict=True):
        leaders.setdefault(cores[0], []).append(device)
    worker: dict[int, int] = {}
    for leader, led in leaders.items():
        widest = max(led, key=lambda device: device.threads)
        worker[leader] = made.worker(list(widest.cores[:1]), list(widest.cores), widest.threads, leader)
    for device, cores in zip(devices, numbers, strict=True):
        made.device(cores, device.threads, worker[cores[0]])
    made.start()
    return made


SOURCE = Path(__file__).with_name("interpreter.cpp")
FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC")


@lru_cache(maxsize=1)
def load() -> None:
    """Register `torch.classes.gst`; compile the interpreter (about 15 s) unless this was done before.

    Raises:
        ValueError: there is no C++ compiler, or it fails.
    """
    libraries = ("torch", "torch_cpu", "c10")
    torch.ops.load_library(str(cpp_library(SOURCE, "interpreter", FLAGS, libraries, "plans on core sets need")))
