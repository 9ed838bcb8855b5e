"""Which nodes of a program are best placed as one: what shares memory or is too small to send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int64

from gst.programs.program import Operation

# An element-wise operation of this many elements takes 5-20 us here: less than a hand-over to another thread.
TINY_ELEMENTS = 16_384


def colocate(
    operations: Sequence[Operation], updates: Mapping[int, int], ties: Sequence[tuple[int, int]] = ()
) -> Int64[np.ndarray, " nodes"]:
    """Number the groups 0, 1, ... in the order of their first nodes.

    Views and `getitem` follow their producer. The update of a parameter follows the parameter, with the
    element-wise operations that only feed it. A tiny element-wise operation follows the last of the
    operations it reads. An input, a constant or an operation without inputs follows its consumers if these
    are in one group.

    Args:
        operations: nodes in topological order.
        updates: node of the new value of a parameter -> input node of that parameter.
        ties: pairs of nodes to be kept together, as inputs that share memory.
    """
    groups = _Groups(len(operations))
    consumers: list[list[int]] = [[] for _ in operations]
    for node, operation in enumerate(operations):
        for producer in operation.producers:
            consumers[producer].append(node)
    for first, second in ties:
        groups.join(first, second)
    kept = set(updates.values())
    in_update = _feeding_updates(operations, consumers, updates, groups)
    for node, operation in enumerate(operations):
        if operation.is_view and operation.producers:
            groups.join(node, operation.producers[0])
        elif node not in in_update and _is_tiny(operation):
            computed = [each for each in operation.producers if operations[each].kind == "operation"]
            if computed:
                groups.join(node, max(computed))
    for node in reversed(range(len(operations))):
        if not operations[node].producers and consumers[node] and node not in kept:
            found = {groups.of(each) for each in consumers[node]} - {groups.of(node)}
            if len(found) == 1:
                groups.join(node, consumers[node][0])
    roots = [groups.of(node) for node in range(len(operations))]
    number = {root: position for position, root in enumerate(dict.fromkeys(roots))}
    return np.array([number[root] for root in roots], np.int64)


def _feeding_updates(
    operations: Sequence[Operation],
    consumers: Sequence[Sequence[int]],
    updates: Mapping[int, int],
    groups: _Groups,
) -> set[int]:
    """Join each update with its parameter and with the element-wise operations that feed nothing else."""
    joined: set[int] = set()
    for update, parameter in updates.items():
        if update == parameter:
            continue
        groups.join(update, parameter)
        waiting = [update]
        while waiting:
            node = waiting.pop()
            joined.add(node)
            for producer in operations[node].producers:
                if is_elementwise(operations[producer]) and len(consumers[producer]) == 1:
                    groups.join(producer, parameter)
                    waiting.append(producer)
    return joined


def is_elementwise(operation: Operation) -> bool:
    """One output element for each input element, as PyTorch tags it, or its derivative."""
    tags = getattr(operation.target, "tags", ())
    return torch.Tag.pointwise in tags


def _is_tiny(operation: Operation) -> bool:
    elements = sum(map(math.prod, operation.shapes))
    return operation.kind == "operation" and is_elementwise(operation) and elements <= TINY_ELEMENTS


class _Groups:
    """Disjoint sets of nodes (union-find; the least node stands for its group)."""

    def __init__(self, nodes: int) -> None:
        self._parent = list(range(nodes))

    def of(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def join(self, first: int, second: int) -> None:
        a, b = sorted((self.of(first), self.of(second)))
        self._parent[b] = a
