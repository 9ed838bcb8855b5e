"""Fusion groups that a program is cut into: chains of element-wise operations, and segments of bounded work."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.legality import legalise
from gst.programs import Operation, Program
from gst.programs.features import is_elementwise

LEAST = 3  # operations of a group


def pointwise_chains(program: Program, placement: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Maximal legal groups of at least three element-wise operations, with the views between them.

    Along each edge between two candidates, in program order, their groups are joined if both are on one device, make as
    many elements, and no other path leads from the one to the other: such a path would become a circle. Groups so
    joined remain one node of an acyclic graph, and what cannot be joined now never can, since paths do not vanish.
    Without the rule about elements the few numbers that Adam computes of its step would tie all parameters together.

    Args:
        program: whose operations are grouped.
        placement: index of the device of each node.

    Returns:
        What `Plan.fusion` takes: numbers 0, 1, ... in the order of first nodes, -1 for alone.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.Tanh())
        >>> program = capture_module(layers, (torch.zeros(8),))
        >>> pointwise_chains(program, np.zeros(4, np.int64)).tolist()  # node 0 is the input
        [-1, 0, 0, 0]
    """
    quotient = _Quotient(program)
    kinds = [_kind(operation, device) for operation, device in zip(program.operations, placement.tolist(), strict=True)]
    for node, operation in enumerate(program.operations):
        for producer in operation.producers:
            if kinds[node] is not None and kinds[node] == kinds[producer]:
                quotient.join(producer, node)
    groups = np.array([quotient.of(node) for node in range(program.num_nodes)], np.int64)
    groups = _without_outer_views(program, groups)
    alone = np.bincount(groups + 1, minlength=program.num_nodes + 1)[groups + 1] < LEAST
    return legalise(program, np.where(alone, -1, groups), placement)


def convex_segments(
    program: Program, time_us: Float64[np.ndarray, " nodes"], num_segments: int
) -> Int64[np.ndarray, " nodes"]:
    """Legal groups of operations that hand each other much, none of which takes more than its share of the time.

    Edges are contracted in the order of their bytes, heaviest first, unless the two groups together take more than
    `time_us.sum() / num_segments`, or another path leads from the one to the other. That is heavy-edge coarsening with
    acyclicity kept (Herrmann et al., Multilevel Algorithms for Acyclic Partitioning of Directed Acyclic Graphs, SIAM
    Journal on Scientific Computing 41(4), 2019, section 4.1). What reads a group waits for all of it, which a group of
    bounded time keeps short.

    Args:
        program: whose operations are grouped.
        time_us: of each operation.
        num_segments: into which equal work would be cut; there are more groups, as a rule.

    Returns:
        What `Plan.fusion` takes, as of `pointwise_chains`, for operations on one device.

    Raises:
        ValueError: `num_segments` is below 1.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.ReLU())
        >>> program = capture_module(layers, (torch.zeros(8),))
        >>> convex_segments(program, np.array([0.0, 1.0, 1.0, 1.0, 1.0]), num_segments=2).tolist()
        [-1, 0, 0, 1, 1]
    """
    if num_segments < 1:
        raise ValueError(f"num_segments is {num_segments}; want 1 or more")
    quotient, work, most = _Quotient(program), time_us.tolist(), float(time_us.sum()) / num_segments
    producers, consumers = program.graph.edges.tolist()
    computed = np.array([each.kind == "operation" for each in program.operations])
    heaviest = np.argsort(-program.output_bytes[producers], kind="stable").tolist()
    edges = [(producers[each], consumers[each]) for each in heaviest if computed[producers[each]]]
    while True:
        joined = 0
        for producer, consumer in edges:
            a, b = sorted((quotient.of(producer), quotient.of(consumer)))
            if work[a] + work[b] <= most and quotient.join(a, b):
                work[a] += work[b]
                joined += 1
        if not joined:  # else a path that led through others may be an edge now
            break
    groups = np.array([quotient.of(node) for node in range(program.num_nodes)], np.int64)
    groups = _without_outer_views(program, np.where(computed, groups, -1))
    return legalise(program, groups, np.zeros(program.num_nodes, np.int64))


class _Quotient:
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
        """Make one group of those of two nodes, unless a path through others leads from one to the other; whether they
        were two and are one now."""
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
    """The device and the number of elements of an operation that may be in a group; None if it may not."""
    is_view = operation.is_view and hasattr(operation.target, "_schema")  # no item of several results
    if not (is_elementwise(operation) or is_view) or len(operation.shapes) != 1:
        return None
    return device, math.prod(operation.shapes[0])


def _without_outer_views(program: Program, groups: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Views at the border of their group save nothing: left alone, until each has a neighbour on both sides.

    Leaving alone a node that nothing within its group leads to, or that leads to nothing, makes no circle.
    """
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
