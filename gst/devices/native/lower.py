"""A `Program` -> the interpreter's form of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gst.programs import Operation, Program, Reference
from gst.programs.program import references

# The interpreter takes these as the numbers that operators know them by.
MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


@dataclass(frozen=True)
class CompiledGroup:
    """What a node calls that stands for a group of operations: a library that Inductor compiled ahead of time.

    Args:
        library: the shared library.
        num_operations: of the group, for people.
    """

    library: Path
    num_operations: int

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """One tensor, or a list of several."""
        with torch.no_grad():
            outputs = self._run(list(inputs))
        return outputs[0] if len(outputs) == 1 else outputs

    @cached_property
    def _run(self) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(self.library), 1)
        return runner.run


def lower(program: Program, callers: int) -> Any:
    """The program as a `torch.classes.gst.Program`; operators are looked up by name, arguments put in schema order.

    Args:
        program: what is to run.
        callers: how many threads may be in one compiled group at once.

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
