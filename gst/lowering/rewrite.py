"""Rewrites of programs: a fusion group as a program of its own, and a program in which each group is one node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.graphs.graph import Graph
from gst.lowering.common_order import least_first
from gst.lowering.fusion import Group
from gst.programs import Operation, Program, Reference
from gst.programs.features import node_features, opcode


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A program in which groups are one node.

    Args:
        program: the new one. A group of several outputs is followed by an item for each.
        node_of: for each node of the old program the node of the new one that computes it.
        origin: for each node of the new program a node of the old one that it stands for.
    """

    program: Program
    node_of: Int64[np.ndarray, " nodes"]
    origin: Int64[np.ndarray, " new_nodes"]


def alone(program: Program, group: Group, inputs: Sequence[Tensor]) -> Program:
    """Return the operations of a group as a program of their own, with these values of its inputs."""
    number = {node: position for position, node in enumerate([*group.inputs, *group.nodes])}
    placeholders = [
        Operation(f"input_{position}", "input", None, (), {}, (tuple(value.shape),), (value.dtype,))
        for position, value in enumerate(inputs)
    ]
    operations = [*placeholders, *(_renumbered(program.operations[node], number) for node in group.nodes)]
    outputs = tuple(Reference(number[node]) for node in group.outputs)
    colocation = np.zeros(len(operations), np.int64)
    spec = pytree.tree_structure(list(outputs))
    return Program(
        f"{program.name}-group", _graph(operations), tuple(operations), tuple(inputs), outputs, spec, colocation
    )


def rewritten(program: Program, compiled: Mapping[Group, CompiledGroup]) -> Rewritten:
    """Return the program with each of these groups, legal together, as one node."""
    group_of = {node: group for group in compiled for node in group.nodes}
    node_of = np.zeros(program.num_nodes, np.int64)
    value_of: dict[int, int] = {}  # node of the new program that has the value of each that others read
    operations: list[Operation] = []
    origin: list[int] = []

    def add(operation: Operation, node: int) -> int:
        operations.append(operation)
        origin.append(node)
        return len(operations) - 1

    for node in _order(program, group_of):
        group = group_of.get(node)
        if group is None:
            node_of[node] = value_of[node] = add(_renumbered(program.operations[node], value_of), node)
            continue
        made = add(_call(program, group, compiled[group], value_of), node)
        node_of[list(group.nodes)] = made
        if len(group.outputs) == 1:
            value_of[group.outputs[0]] = made
            continue
        for position, output in enumerate(group.outputs):
            value_of[output] = add(_item(program.operations[output], made, position), output)
    outputs = tuple(Reference(value_of[each.node]) if isinstance(each, Reference) else each for each in program.outputs)
    origins = np.array(origin, np.int64)
    colocation = np.unique(program.colocation[origins], return_inverse=True)[1].astype(np.int64)
    made_of_groups = Program(
        program.name, _graph(operations), tuple(operations), program.inputs, outputs, program.output_spec, colocation,
        program.parameter_home[origins],
    )  # fmt: skip
    return Rewritten(made_of_groups, node_of, origins)


def renumbered(template: Any, number: Mapping[int, int]) -> Any:
    """Return a template of arguments with other numbers of nodes."""
    if isinstance(template, Reference):
        return Reference(number[template.node])
    if isinstance(template, list | tuple):
        return type(template)(renumbered(each, number) for each in template)
    return template


def _renumbered(operation: Operation, number: Mapping[int, int]) -> Operation:
    args = renumbered(operation.args, number)
    kwargs = {key: renumbered(value, number) for key, value in operation.kwargs.items()}
    return replace(operation, args=args, kwargs=kwargs)


def _call(program: Program, group: Group, compiled: CompiledGroup, value_of: Mapping[int, int]) -> Operation:
    outputs = [program.operations[node] for node in group.outputs]
    return Operation(
        f"group_of_{outputs[0].name}", "operation", compiled, tuple(Reference(value_of[node]) for node in group.inputs),
        {}, tuple(each.shapes[0] for each in outputs), tuple(each.dtypes[0] for each in outputs),
    )  # fmt: skip


def _item(operation: Operation, made: int, position: int) -> Operation:
    arguments = (Reference(made), position)
    sizes = operation.shapes, operation.dtypes
    return Operation(operation.name, "operation", operator.getitem, arguments, {}, *sizes, is_view=True)


def _order(program: Program, group_of: Mapping[int, Group]) -> list[int]:
    """Return nodes outside of groups and the first node of each group, none before its inputs."""
    nodes = range(program.num_nodes)
    stands_for = np.array([group_of[node].nodes[0] if node in group_of else node for node in nodes], np.int64)
    order = least_first(stands_for[program.graph.edges], program.num_nodes)
    return order[stands_for[order] == order].tolist()


def _graph(operations: Sequence[Operation]) -> Graph:
    pairs = [(producer, node) for node, each in enumerate(operations) for producer in each.producers]
    edges = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    return Graph(node_features(operations, edges), edges, np.array([opcode(each) for each in operations], np.int64))


@dataclass(frozen=True)
class CompiledGroup:
    """Callable of a node that stands for a group of operations: a library that Inductor compiled ahead of time."""

    library: Path
    num_operations: int

    def __call__(self, *inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            outputs = self._run(list(inputs))
        return outputs[0] if len(outputs) == 1 else outputs

    @cached_property
    def _run(self) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(self.library), 1)
        return runner.run
