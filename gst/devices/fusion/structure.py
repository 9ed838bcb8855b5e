"""What two groups share if they may share compiled code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gst.devices.calls import Values, bind, steps_in_order
from gst.devices.discover import cpu_model
from gst.devices.fusion.legality import Group
from gst.devices.fusion.rewrite import renumbered
from gst.programs import Program
from gst.programs.forms import form_of, form_of_target

SCHEMA = 1
Layout = tuple[tuple[int, ...], tuple[int, ...], str]  # shape, strides, dtype


@lru_cache(maxsize=16)
def layouts(program: Program) -> dict[int, Layout]:
    """Shape, strides and dtype of every tensor of the program, from a run in program order on the calling thread."""
    return {node: layout(value) for node, value in _values(program) if isinstance(value, Tensor)}


def example_values(program: Program, nodes: Collection[int]) -> dict[int, Tensor]:
    """Values of these nodes for the example inputs."""
    return {node: value for node, value in _values(program) if node in nodes}


def layout(value: Tensor) -> Layout:
    """Shape, strides and dtype; the stride along an axis of one element, which says nothing, is 1."""
    strides = (stride if size > 1 else 1 for size, stride in zip(value.shape, value.stride(), strict=True))
    return tuple(value.shape), tuple(strides), str(value.dtype)


def structure_key(program: Program, group: Group, inputs: Sequence[Layout], threads: int) -> str:
    """16 hexadecimal digits: equal where operations, arguments, layouts of inputs, which values are outputs, threads,
    version of torch and model of the processor are equal.

    Raises:
        ValueError: an operation or an argument has no form in a file.
    """
    number = {node: position for position, node in enumerate([*group.inputs, *group.nodes])}
    operations = []
    for node in group.nodes:
        operation = program.operations[node]
        args, kwargs = renumbered(operation.args, number), renumbered([*operation.kwargs.items()], number)
        operations.append([form_of_target(operation.target), form_of(args), form_of(kwargs)])
    outputs = [number[node] for node in group.outputs]
    content = [SCHEMA, operations, inputs, outputs, threads, torch.__version__, cpu_model()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _values(program: Program) -> Iterator[tuple[int, Any]]:
    """Each node and its value, freed when nothing reads it any more."""
    values: Values = [*program.inputs]
    values += [operation.constant for operation in program.operations[len(values) :]]
    yield from ((node, value) for node, value in enumerate(values) if value is not None)
    calls = bind(program, torch.device("cpu"))
    order = [node for node, call in enumerate(calls) if call is not None]
    with torch.no_grad():
        for node, call, dead in steps_in_order(program, calls, order):
            values[node] = call(values)
            yield node, values[node]
            for each in dead:
                values[each] = None
