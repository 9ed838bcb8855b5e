"""The split of a human expert, with whom published placements are compared: consecutive layers on one device each."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from gst.lowering.plan import Plan
from gst.placement.baselines import units
from gst.placement.baselines.portfolio import in_turn, profiled_us
from gst.placement.task import Task
from gst.programs import Program, Reference


def expert(task: Task) -> Plan | None:
    """Place as a person does by hand: consecutive `layers`, with their backward pass and updates, in shares of equal
    profiled time on the `peers`, as far as memories have room."""
    parts = units.units_of(task, layers(task))
    return units.fitted(task, parts, partial(in_turn, task, parts, profiled_us(task, parts), False))


def neighbours(task: Task) -> tuple[list[list[int]], list[list[int]]]:
    """Return the producers and consumers of every node."""
    producers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    consumers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    for producer, consumer in task.costs.edges.T.tolist():
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    return producers, consumers


def layers(task: Task) -> Int64[np.ndarray, " nodes"]:
    """Return the layer of each node, 0 .. layers - 1 in the order of the forward pass; the backward pass and the update
    of a layer belong to it.

    In a program a layer reads a parameter, or several in parallel. Other operations of the forward pass belong to the
    last layer that they read, those of the backward pass to the first whose gradient they read. In costs without a
    program the layer is the length of the longest path to a node; a colocation group has its least one.
    """
    producers, consumers = neighbours(task)
    depth = _depths(task, producers) if task.program is None else _parameter_layers(task.program, producers, consumers)
    return np.unique(depth, return_inverse=True)[1].astype(np.int64)


def _depths(task: Task, producers: list[list[int]]) -> Int64[np.ndarray, " nodes"]:
    depth = np.zeros(task.num_nodes, np.int64)
    for node, read in enumerate(producers):
        depth[node] = max((depth[each] + 1 for each in read), default=0)
    least = np.full(task.num_groups, task.num_nodes)
    np.minimum.at(least, task.colocation, depth)
    return least[task.colocation]


def _parameter_layers(
    program: Program, producers: list[list[int]], consumers: list[list[int]]
) -> Int64[np.ndarray, " nodes"]:
    home, forward = program.parameter_home.tolist(), _forward(program, producers)
    number: dict[int, int] = {}  # of each parameter, in the order in which they are first read
    entry: list[int] = []  # for each number, the last layer that is read where it is first read
    joined: list[int] = []  # numbers that are one layer with the one before
    depth = [-1] * program.num_nodes
    for node, read in enumerate(producers):
        parameters = [home[each] for each in read if home[each] >= 0]
        values = sorted({depth[each] for each in read if home[each] < 0 and depth[each] >= 0})
        gradients = [depth[each] for each in read if home[each] < 0 and depth[each] >= 0 and not forward[each]]
        if forward[node] and any(each not in number for each in parameters):
            number |= {each: len(entry) for each in parameters if each not in number}
            entry.append(values[-1] if values else -1)
        known = [number[each] for each in parameters if each in number]
        if known:
            depth[node] = max(known)
        elif values:
            depth[node] = min(gradients) if gradients else values[-1]
        if forward[node]:  # side by side: the later one does not need the earlier
            joined += [late for early, late in pairwise(values) if entry[late] < early == late - 1]
    for node in reversed(range(program.num_nodes)):
        if depth[node] < 0:
            depth[node] = min((depth[each] for each in consumers[node] if depth[each] >= 0), default=-1)
    layer = np.cumsum(~np.isin(np.arange(max(len(entry), 1)), joined))
    return np.array([layer[max(number.get(each, depth[node]), 0)] for node, each in enumerate(home)])


def _forward(program: Program, producers: list[list[int]]) -> list[bool]:
    """Return true for nodes that an output needs which renews no parameter, such as the loss."""
    forward = [False] * program.num_nodes
    for output in program.outputs:
        if isinstance(output, Reference) and program.parameter_home[output.node] < 0:
            forward[output.node] = True
    for node in reversed(range(program.num_nodes)):
        if forward[node]:
            for producer in producers[node]:
                forward[producer] = True
    return forward
