"""Groups of element-wise operations, the ones that fusion helps most often."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int64

from gst.devices.fusion.legality import legalise
from gst.programs import Operation, Program
from gst.programs.colocation import is_elementwise

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

    def join(self, first: int, second: int) -> None:
        """Make one group of those of two nodes, unless a path through others leads from one to the other."""
        a, b = sorted((self._group[first], self._group[second]))
        if a == b or self._leads(a, b) or self._leads(b, a):
            return
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
