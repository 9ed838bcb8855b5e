"""Legal fusion groups: sets of operations that may be compiled into one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from gst.lowering.plan import Plan
from gst.programs import Program, Reference


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
    """The groups that a plan asks for, made legal, in the order of their first nodes.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.Tanh())
        >>> program = capture_module(layers, (torch.zeros(8),))
        >>> plan = Plan(("cpu:0",), np.zeros(4, np.int64), fusion=np.array([-1, -1, 0, 0]))
        >>> fusion_groups(program, plan)
        [Group(nodes=(2, 3), inputs=(1,), outputs=(3,))]
    """
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
    """The nearest legal groups: each is part of one that was asked for, and a legal one stays as it is.

    Legal means: a group holds at least two nodes, all of them operations and on one device; only tensors cross its
    border, so an item is with what it is an item of; and the graph in which each group is one node has no circle, so
    that an order exists in which each group runs at once. Groups on a circle are split by the number of borders on the
    longest path to each of their operations: along an edge this number never falls, and rises where a border is
    crossed, so what is left has no circle. Everything takes linear time.

    Args:
        program: whose operations are grouped.
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
    groups = _with_all_items(program, _numbered(asked, placement))
    return _numbered(groups, _levels(program, groups))


def _group(program: Program, nodes: Sequence[int], read_outside: set[int]) -> Group:
    inside = set(nodes)
    read = dict.fromkeys(each for node in nodes for each in program.operations[node].producers if each not in inside)
    return Group(tuple(nodes), tuple(read), tuple(node for node in nodes if node in read_outside))


def _numbered(groups: Int64[np.ndarray, " nodes"], parts: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Groups cut into their parts, numbered in the order of their first nodes; parts of one node are left alone."""
    pairs = np.stack([groups, np.where(groups >= 0, parts, 0)], axis=1)
    _, first, index, counts = np.unique(pairs, axis=0, return_index=True, return_inverse=True, return_counts=True)
    stays = (groups[first] >= 0) & (counts >= 2)
    number = np.full(len(first), -1, np.int64)
    number[np.flatnonzero(stays)[np.argsort(first[stays])]] = np.arange(stays.sum())
    return number[index.reshape(-1)]


def _with_all_items(program: Program, groups: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Leave alone each value that is no tensor, with what reads it, unless it stays within one group."""
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
    """Borders on the longest path to each node, counted within circles of the quotient graph; 0 outside of circles."""
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
