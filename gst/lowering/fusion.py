"""Fusion groups: operations that may be compiled into one, chains of element-wise operations to try, and programs in
which each group is one node."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.lowering.common_order import least_first
from gst.lowering.plan import Plan
from gst.programs import Operation, Program, Reference
from gst.programs.features import is_elementwise, program_graph


@dataclass(frozen=True)
class Group:
    """Operations that become one.

    Args:
        nodes: its operations, in program order.
        inputs: values from outside, in the order in which its operations first read them.
        outputs: its values that others read or that the program returns, in program order.
    """

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def fusion_groups(program: Program, plan: Plan) -> list[Group]:
    """Return the groups of a plan, made legal, in the order of their first nodes."""
    if plan.fusion is None:
        return []
    fusion = legalise(program, plan.fusion, plan.placement)
    members: list[list[int]] = [[] for _ in range(int(fusion.max(initial=-1)) + 1)]
    for node in np.flatnonzero(fusion >= 0).tolist():
        members[fusion[node]].append(node)
    read_outside = {producer for producer, node in program.graph.edges.T.tolist() if fusion[producer] != fusion[node]}
    read_outside |= {each.node for each in program.outputs if isinstance(each, Reference)}
    return [_group(program, nodes, read_outside) for nodes in members]


def legalise(
    program: Program, fusion: Int64[np.ndarray, " nodes"], placement: Int64[np.ndarray, " nodes"]
) -> Int64[np.ndarray, " nodes"]:
    """Return the nearest legal groups: each is part of a requested one, and a legal one stays as it is.

    A legal group holds at least two operations on one device; only tensors cross its border, and the graph of groups
    has no circle. Groups on a circle are split by the number of borders on the longest path to each operation, which
    never falls along an edge and rises at a border.

    Args:
        program: the program.
        fusion: equal numbers >= 0 for one group, -1 for alone.
        placement: index of the device of each node.

    Returns:
        Numbers 0, 1, ... of the groups in the order of their first nodes, -1 for alone.

    Raises:
        ValueError: there are not as many numbers as nodes.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.Tanh())
        >>> program = capture_module(layers, (torch.zeros(8),))
        >>> legalise(program, np.array([-1, 5, 5, 5]), np.array([0, 0, 0, 1])).tolist()  # the last is on another device
        [-1, 0, 0, -1]
    """
    if not len(fusion) == len(placement) == program.num_nodes:
        raise ValueError(
            f"fusion and placement have {len(fusion)} and {len(placement)} numbers, program {program.name!r} has "
            f"{program.num_nodes} nodes; make the plan again for this program"
        )
    computed = np.array([each.kind == "operation" for each in program.operations])
    asked = np.where(computed & (fusion >= 0), fusion, -1)
    groups = _with_all_items(program, numbered(asked, placement))
    return numbered(groups, _levels(program, groups))


def _group(program: Program, nodes: Sequence[int], read_outside: set[int]) -> Group:
    inside = set(nodes)
    read = dict.fromkeys(each for node in nodes for each in program.operations[node].producers if each not in inside)
    return Group(tuple(nodes), tuple(read), tuple(node for node in nodes if node in read_outside))


def numbered(groups: Int64[np.ndarray, " nodes"], parts: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Return groups cut into their parts, numbered in the order of their first nodes; single nodes are left alone.

    Examples:
        >>> numbered(np.array([7, 3, 5, 3, 7]), np.zeros(5, int)).tolist()
        [0, 1, -1, 1, 0]
    """
    pairs = np.stack([groups, np.where(groups >= 0, parts, 0)], axis=1)
    _, first, index, counts = np.unique(pairs, axis=0, return_index=True, return_inverse=True, return_counts=True)
    stays = (groups[first] >= 0) & (counts >= 2)
    number = np.full(len(first), -1, np.int64)
    number[np.flatnonzero(stays)[np.argsort(first[stays])]] = np.arange(stays.sum())
    return number[index.reshape(-1)]


def _with_all_items(program: Program, groups: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Leave alone each value that is no tensor, with its readers, unless it stays within one group."""
    operations = program.operations
    several = {each.producers[0] for each in operations if each.target is operator.getitem}
    several |= {node for node, each in enumerate(operations) if len(each.shapes) != 1}
    readers: dict[int, list[int]] = {node: [] for node in several}
    for producer, node in program.graph.edges.T.tolist():
        if producer in several:
            readers[producer].append(node)
    returned = {each.node for each in program.outputs if isinstance(each, Reference)}
    left = groups.copy()
    for node, family in readers.items():
        if node in returned or (groups[family] != groups[node]).any():
            left[[node, *family]] = -1
    return left


def _levels(program: Program, groups: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Return the number of borders on the longest path to each node, within circles of the graph of groups; 0
    outside."""
    nodes = len(groups)
    part = np.where(groups >= 0, groups, groups.max(initial=-1) + 1 + np.arange(nodes))
    producers, consumers = program.graph.edges
    size = int(part.max(initial=-1)) + 1
    quotient = coo_array((np.ones(len(producers)), (part[producers], part[consumers])), shape=(size, size))
    circle = connected_components(quotient, connection="strong")[1][part]
    crosses = part[producers] != part[consumers]
    within = circle[producers] == circle[consumers]
    level = np.zeros(nodes, np.int64)
    for edge in np.flatnonzero(within)[np.argsort(consumers[within], kind="stable")].tolist():
        consumer = consumers[edge]
        level[consumer] = max(level[consumer], level[producers[edge]] + crosses[edge])
    return level


LEAST = 3  # operations of a group


def pointwise_chains(program: Program, placement: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Return maximal legal groups of three or more element-wise operations, with the views between them, as numbers for
    `Plan.fusion`.

    Groups along an edge are joined if both are on one device, have as many elements (else the scalars of Adam would tie
    all parameters together), and no other path leads from one to the other.
    """
    quotient = Quotient(program)
    kinds = [_kind(operation, device) for operation, device in zip(program.operations, placement.tolist(), strict=True)]
    for node, operation in enumerate(program.operations):
        for producer in operation.producers:
            if kinds[node] is not None and kinds[node] == kinds[producer]:
                quotient.join(producer, node)
    groups = np.array([quotient.of(node) for node in range(program.num_nodes)], np.int64)
    groups = without_outer_views(program, groups)
    alone = np.bincount(groups + 1)[groups + 1] < LEAST
    return legalise(program, np.where(alone, -1, groups), placement)


class Quotient:
    """The graph of groups. The members, ancestors and neighbours of a group are kept by its least node."""

    def __init__(self, program: Program) -> None:
        nodes = range(program.num_nodes)
        self._group = list(nodes)
        self._members = [[node] for node in nodes]
        self._bits = [1 << node for node in nodes]  # of the members
        self._producers = [set(each.producers) for each in program.operations]
        self._consumers: list[set[int]] = [set() for _ in nodes]
        self._ancestors = [0 for _ in nodes]  # a bit for each node
        for node in nodes:
            for producer in self._producers[node]:
                self._consumers[producer].add(node)
                self._ancestors[node] |= self._ancestors[producer] | 1 << producer

    def of(self, node: int) -> int:
        return self._group[node]

    def join(self, first: int, second: int) -> bool:
        """Join the groups of two nodes, unless a path through others leads from one to the other; True if joined."""
        a, b = sorted((self._group[first], self._group[second]))
        if a == b or self._leads(a, b) or self._leads(b, a):
            return False
        for member in self._members[b]:
            self._group[member] = a
        self._members[a] += self._members[b]
        self._bits[a] |= self._bits[b]
        for lists in (self._producers, self._consumers):
            lists[a] = (lists[a] | lists[b]) - {a, b}
        for each in self._producers[a]:
            self._consumers[each] = self._consumers[each] - {b} | {a}
        for each in self._consumers[a]:
            self._producers[each] = self._producers[each] - {b} | {a}
        self._ancestors[a] = (self._ancestors[a] | self._ancestors[b]) & ~self._bits[a]
        self._tell_descendants(a)
        return True

    def _leads(self, source: int, target: int) -> bool:
        return any(self._ancestors[each] & self._bits[source] for each in self._producers[target] if each != source)

    def _tell_descendants(self, group: int) -> None:
        news, waiting = self._ancestors[group] | self._bits[group], [group]
        while waiting:
            for each in self._consumers[waiting.pop()]:
                if news & ~self._ancestors[each]:
                    self._ancestors[each] |= news
                    waiting.append(each)


def _kind(operation: Operation, device: int) -> tuple[int, int] | None:
    """Return the device and the number of elements of an operation that may be in a group; None if it may not."""
    is_view = operation.is_view and hasattr(operation.target, "_schema")  # no item of several results
    if not (is_elementwise(operation) or is_view) or len(operation.shapes) != 1:
        return None
    return device, math.prod(operation.shapes[0])


def without_outer_views(program: Program, groups: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Leave alone the views at the border of their group, which save nothing; the remaining groups have no circle."""
    left = groups.copy()
    operations = program.operations
    for node in range(program.num_nodes):
        if operations[node].is_view and not any(left[each] == left[node] for each in operations[node].producers):
            left[node] = -1
    is_read = np.zeros(program.num_nodes, bool)
    for node in reversed(range(program.num_nodes)):
        if operations[node].is_view and not is_read[node]:
            left[node] = -1
        for producer in operations[node].producers:
            is_read[producer] |= left[node] >= 0 and left[producer] == left[node]
    return left


# Rewrites -------------------------------------------------------------------------------------------------------------


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
        f"{program.name}-group", program_graph(operations), tuple(operations), tuple(inputs), outputs, spec, colocation
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
        program.name, program_graph(operations), tuple(operations), program.inputs, outputs, program.output_spec,
        colocation, program.parameter_home[origins],
    )  # fmt: skip
    return Rewritten(made_of_groups, node_of, origins)


def renumbered(template: Any, number: Mapping[int, int]) -> Any:
    """Return a template of arguments with other numbers of nodes."""
    return pytree.tree_map_only(Reference, lambda each: Reference(number[each.node]), template)


def _renumbered(operation: Operation, number: Mapping[int, int]) -> Operation:
    args, kwargs = renumbered((operation.args, operation.kwargs), number)
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
