"""Simulated costs of plans with fusion: a group of operations as one operation of the roofline.

The roofline has no registers and caches: its gain of a group holds for element-wise operations
(`gst.lowering.fusion.pointwise_chains`), and is optimistic for products of matrices and sums.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from gst.graphs.graph import Graph
from gst.lowering.costs import Storages
from gst.lowering.plan import Plan, contracted_plan
from gst.placement.machines import Machine
from gst.placement.objectives import SimulatedObjective
from gst.placement.profiling import numbered
from gst.placement.task import Task
from gst.programs import Program
from gst.programs.features import flops
from gst.simulation.queues import pop, push
from partitioners.compiled import compiled

TimesOfGroups = Callable[[Int64[np.ndarray, " nodes"], Float64[np.ndarray, " new_nodes"]], np.ndarray]
"""From the new node of each member of a group (-1 for other nodes) and the bytes that each new node reads and writes to
microseconds (devices, new nodes); what it says of new nodes that are no groups does not count."""


@dataclass(frozen=True, eq=False)
class Contraction:
    """A task in which groups are one node each.

    Args:
        task: of the new nodes, in topological order; it has no program.
        node_of: for each old node the new one that computes it.
        origin: for each new node an old one that it stands for.
    """

    task: Task
    node_of: Int64[np.ndarray, " nodes"]
    origin: Int64[np.ndarray, " new_nodes"]

    def plan(self, plan: Plan) -> Plan:
        """The plan of the old task as one of the new; a group has the greatest of its members' priorities."""
        return contracted_plan(plan, self.node_of, self.origin)


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Numbers of the new nodes.

    Args:
        size: number of new nodes.
        node_of, origin: as of `Contraction`; `origin` of a group is its first node.
        leaves: old nodes in a group whose values leave it.
        items: those of them with a new node of their own, since several leave the same group.
        value: for each old node the new one that has its value; -1 where it stays within a group.
        crosses: edges that are not within a group.
    """

    size: int
    node_of: np.ndarray
    origin: np.ndarray
    leaves: np.ndarray
    items: np.ndarray
    value: np.ndarray
    crosses: np.ndarray


def contract(
    task: Task,
    groups: Int64[np.ndarray, " nodes"],
    times_of_groups: TimesOfGroups,
    item_us: Float64[np.ndarray, " devices"],
) -> Contraction | None:
    """Make each group one node, followed by an item for each value that leaves it if there are several.

    A group reads each value from outside once, and its storages are those of the values that leave it.

    Args:
        task: whose operations are grouped.
        groups: 0, 1, ... in the order of their first nodes, -1 for alone; all members are computed.
        times_of_groups: how long groups take.
        item_us: how long it takes to pick an item.

    Returns:
        None if groups wait for each other.
    """
    numbers = _number(task, groups)
    if numbers is None:
        return None
    costs, size, origin, node_of, value = task.costs, numbers.size, numbers.origin, numbers.node_of, numbers.value
    inside = groups >= 0
    is_group = np.zeros(size, bool)
    is_group[node_of[inside]] = True
    sent = costs.output_bytes[numbers.leaves]
    written = np.bincount(node_of[numbers.leaves], sent, size).astype(np.int64)
    output_bytes = np.where(is_group, written, costs.output_bytes[origin])
    producers, consumers = costs.edges[:, numbers.crosses]
    reads = np.stack(np.divmod(np.unique(value[producers] * size + node_of[consumers]), size))
    traffic = written + np.bincount(reads[1], output_bytes[reads[0]], size)
    times_us = np.where(is_group, times_of_groups(np.where(inside, node_of, -1), traffic), costs.times_us[:, origin])
    times_us[:, value[numbers.items]] = item_us[:, None]
    edges = np.concatenate([reads, np.stack([node_of[numbers.items], value[numbers.items]])], axis=1)
    kept = np.zeros(size, bool)
    kept[value[costs.kept]] = True
    made = replace(
        costs, edges=edges, computed=costs.computed[origin], kept=kept, times_us=times_us, output_bytes=output_bytes,
        own_bytes=np.where(is_group, written, costs.own_bytes[:, origin]),
        storages=_storages(costs.storages, value, node_of),
    )  # fmt: skip
    graph = Graph(task.graph.node_features[origin], edges, task.graph.opcodes[origin], name=task.graph.name)
    colocation = np.unique(task.colocation[origin], return_inverse=True)[1].reshape(-1).astype(np.int64)
    contracted = Task(task.name, graph, made, colocation, task.resident_bytes[origin], task.contention)
    return Contraction(contracted, node_of, origin)


@compiled
@no_type_check
def quotient_order(first, producers, consumers):
    """Groups, named by their first nodes, none before one that it reads, else in that order; those that wait for each
    other, and what waits for them, are left out.

    Args:
        first: first node of the group of each node; a node alone is its own.
        producers, consumers: the edges.
    """
    nodes = len(first)
    indptr, waiting = np.zeros(nodes + 1, np.int64), np.zeros(nodes, np.int64)
    for edge in range(len(producers)):
        producer, consumer = first[producers[edge]], first[consumers[edge]]
        if producer != consumer:
            indptr[producer + 1] += 1
            waiting[consumer] += 1
    for node in range(nodes):
        indptr[node + 1] += indptr[node]
    filled, readers = indptr.copy(), np.empty(indptr[nodes], np.int64)
    for edge in range(len(producers)):
        producer, consumer = first[producers[edge]], first[consumers[edge]]
        if producer != consumer:
            readers[filled[producer]] = consumer
            filled[producer] += 1
    ready, num_ready = np.empty(nodes, np.int64), 0
    for node in range(nodes):
        if first[node] == node and waiting[node] == 0:
            push(ready, num_ready, node)
            num_ready += 1
    order, count = np.empty(nodes, np.int64), 0
    while num_ready:
        node = pop(ready, num_ready)
        num_ready -= 1
        order[count] = node
        count += 1
        for position in range(indptr[node], indptr[node + 1]):
            reader = readers[position]
            waiting[reader] -= 1
            if waiting[reader] == 0:
                push(ready, num_ready, reader)
                num_ready += 1
    return order[:count]


def _number(task: Task, groups: Int64[np.ndarray, " nodes"]) -> _Numbers | None:
    """Number the new nodes in topological order; None if there is none."""
    nodes, inside = np.arange(task.num_nodes), groups >= 0
    producers, consumers = task.costs.edges
    members = np.flatnonzero(inside)
    first = nodes.copy()
    first[members] = members[np.unique(groups[members], return_index=True)[1]][groups[members]]
    order = quotient_order(first, producers, consumers)
    if len(order) < (first == nodes).sum():
        return None
    crosses = first[producers] != first[consumers]
    leaves = task.costs.kept.copy()
    leaves[producers[crosses]] = True
    leaves &= inside
    leaving = np.bincount(first[leaves], minlength=len(nodes))  # how many values leave the group of each first node
    width = 1 + leaving * (leaving > 1)
    start = np.zeros(len(nodes), np.int64)
    start[order] = np.cumsum(width[order]) - width[order]
    items = np.flatnonzero(leaves & (leaving[first] > 1))
    items = items[np.argsort(first[items], kind="stable")]
    node_of = start[first]
    value = np.where(inside & ~leaves, -1, node_of)
    value[items] += 1 + np.arange(len(items)) - np.searchsorted(first[items], first[items])
    origin = np.empty(int(width[order].sum()), np.int64)
    origin[start[order]] = order
    origin[value[items]] = items
    return _Numbers(len(origin), node_of, origin, leaves, items, value, crosses)


def _storages(storages: Storages, value: Int64[np.ndarray, " nodes"], node_of: Int64[np.ndarray, " nodes"]) -> Storages:
    """Those that a value holds which leaves its group; what only its members see a group does not allocate."""
    held, holder = storages.held
    seen = value[holder] >= 0
    left, number = np.unique(held[seen], return_inverse=True)
    pairs = np.stack([number.reshape(-1), value[holder[seen]]]).astype(np.int64)
    return Storages(storages.num_bytes[left], node_of[storages.made_by[left]], pairs)


REMEMBERED = 64  # sets of groups


class FusedObjective:
    """Simulates plans, with fused groups, on a machine of the roofline; see `gst.placement.objectives.Objective`.

    A group is one operation: it takes one launch, all of its arithmetic, and of its traffic what crosses its border:
    each value from outside is read once, and those are written that others read or that the program returns. Among
    ready operations it has the greatest priority of its members. Where several values leave a group each is an item of
    it, as when it is compiled (`gst.lowering`).

    A plan without groups takes the time of `SimulatedObjective`. NaN for a plan that cannot run, and where groups are
    not legal as they are (`gst.lowering.fusion.legalise`); a group of one operation is none.

    Args:
        machine: of chips with one kind of link.
        program: to place.
    """

    def __init__(self, machine: Machine, program: Program) -> None:
        self.machine, self.program = machine, program
        self.task = machine.task(program)
        self._plain = SimulatedObjective(self.task)
        self._arithmetic = flops(program.operations)
        self._computes = np.array([not each.is_view for each in program.operations])
        self._families = families(program)
        self._remembered = lru_cache(REMEMBERED)(self._contract)

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([self._one(plan) for plan in plans], np.float64)

    def contracted(self, plan: Plan) -> tuple[Task, Plan] | None:
        """The task in which each group of a plan is one node, and the plan for it; None if a group is not legal.

        Raises:
            ValueError: the plan has no groups, or is for another number of nodes.
        """
        found = self._find(plan)
        return None if found is None else (found.task, found.plan(plan))

    def _one(self, plan: Plan) -> float:
        if plan.fusion is None:
            return float(self._plain([plan])[0])
        found = self._find(plan)
        if found is None:
            return float("nan")
        return float(SimulatedObjective(found.task)([found.plan(plan)])[0])

    def _find(self, plan: Plan) -> Contraction | None:
        if plan.fusion is None or len(plan.fusion) != self.task.num_nodes:
            raise ValueError(
                f"the plan has {'no' if plan.fusion is None else len(plan.fusion)} numbers of fusion groups, program "
                f"{self.program.name!r} has {self.task.num_nodes} nodes; make the plan again for this program"
            )
        groups = numbered(plan.fusion)
        return self._remembered(groups.tobytes()) if self._legal(groups, plan.placement) else None

    def _legal(self, groups: Int64[np.ndarray, " nodes"], placement: Int64[np.ndarray, " nodes"]) -> bool:
        """All that `legalise` asks for but that no groups wait for each other."""
        members = np.flatnonzero(groups >= 0)
        device = np.zeros(len(groups), np.int64)
        device[groups[members]] = placement[members]
        producers, readers = self._families
        return bool(
            self.task.costs.computed[members].all()
            and (device[groups[members]] == placement[members]).all()
            and (groups[producers] == groups[readers]).all()
        )

    def _contract(self, groups: bytes) -> Contraction | None:
        view_us = np.array([chip.view_us for chip in self.machine.chips])
        return contract(self.task, np.frombuffer(groups, np.int64), self._times_us, view_us)

    def _times_us(
        self, group: Int64[np.ndarray, " nodes"], traffic: Float64[np.ndarray, " new_nodes"]
    ) -> Float64[np.ndarray, "devices new_nodes"]:
        """The roofline of each group; one of views alone takes what a view takes."""
        inside, size = group >= 0, len(traffic)
        arithmetic = np.bincount(group[inside], self._arithmetic[inside], size)
        computes = np.bincount(group[inside & self._computes], minlength=size) > 0
        return np.stack([chip.times_us(arithmetic, traffic, ~computes) for chip in self.machine.chips])


def families(program: Program) -> Int64[np.ndarray, "2 pairs"]:
    """Each value that is no tensor with each of its readers, which have to be in one group with it or all alone."""
    operations = program.operations
    several = {each.producers[0] for each in operations if each.target is operator.getitem}
    several |= {node for node, each in enumerate(operations) if len(each.shapes) != 1}
    return program.graph.edges[:, np.isin(program.graph.edges[0], sorted(several))]
