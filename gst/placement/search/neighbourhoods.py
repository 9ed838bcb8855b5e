"""The neighbourhood of a plan: small changes, drawn at random or where a simulated run had to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.plan import Plan, Timeline, ranks
from gst.lowering.stream_program import Rows, rows
from gst.machine.devices import overlap
from gst.placement.baselines.portfolio import task_scheduled
from gst.placement.baselines.units import moved
from gst.placement.task import Task
from gst.simulation.copies import copies_of
from gst.util.compiled import compiled
from partitioners import has_metis, partition

CLUSTER_NODES = (6, 20, 60, 180)
"""Nodes in a cluster of each level, about."""
FIRST, VALUE, CROSSING, BUSY = range(4)
"""Cause of a wait: none, a value of the same device, a value of another device, the device itself."""


@dataclass(frozen=True, eq=False)
class State:
    """A plan as the search changes it.

    Args:
        placement: device of each node.
        offset_us: added to the priority of each node.
        by_tail: priorities are the longest paths to the end under this placement plus the offsets, not these alone.
    """

    placement: Int64[np.ndarray, " nodes"]
    offset_us: Float64[np.ndarray, " nodes"]
    by_tail: bool


class Neighbourhood:
    """Neighbours of states, drawn at random. In a task without a program the nodes of a colocation group stay together;
    in one with a program groups move as one in most steps, single operations in some.

    Attributes:
        moves: the kinds of steps by name.
        waits: those of the last simulated run; None before the first.
    """

    def __init__(self, task: Task, generator: np.random.Generator) -> None:
        self.task, self.generator = task, generator
        self.waits: Waits | None = None
        self.timelines = Timelines(task)
        nodes, together = np.arange(task.num_nodes), task.colocation
        self._groups = _lists(together)
        self._free = task.program is not None
        self._overlapping = overlap(task.devices)
        self._units = _lists(nodes if self._free else in_order_of_first(together))
        able = np.isfinite(task.times_us)
        if not self._free:
            able = np.stack([np.bincount(together, ~each)[together] == 0 for each in able])
        self._able: Bool[np.ndarray, "devices nodes"] = able
        least = np.where(able, task.times_us, np.inf).min(0)
        group_us = np.bincount(together, np.where(np.isfinite(least), least, 0.0))
        weight = 0.5 * (group_us > 0) / max((group_us > 0).sum(), 1) + 0.5 * group_us / max(group_us.sum(), 1e-12)
        weight = weight if weight.sum() > 0 else np.ones(len(group_us))
        self._group_sums = np.append(np.cumsum(weight[:-1]) / weight.sum(), 1.0)
        both = np.concatenate([task.costs.edges, task.costs.edges[::-1]], axis=1)
        self._beside = rows(both[0], both[1], task.num_nodes)
        graph = (each.astype(np.int64).tobytes() for each in (task.costs.edges, together))
        self._clusters = [_lists(label) for label in _cluster_labels(*graph)]
        self.moves: dict[str, Callable[[State], State]] = {"order": self._order}
        if len(task.devices) > 1:
            self.moves |= {
                "group": self._group, "around": self._around, "cluster": self._cluster, "stretch": self._stretch,
                "swap": self._swap, "follow": self._follow, "waited": self._waited, "unload": self._unload,
            }  # fmt: skip

    def state(self, plan: Plan, by_tail: bool) -> State:
        """Return a plan as a state, with its own priorities or the longest paths to the end. Nodes move that cannot run
        where they are, or are apart from their group where they must not be."""
        placement = np.array([self.task.names.index(name) for name in plan.devices])[plan.placement]
        if not self._free:
            placement = placement[_first_of_group(self.task.colocation)]
        stuck = ~self._able[placement, np.arange(len(placement))]
        placement = np.where(stuck, self._able.argmax(0), placement)
        if by_tail:
            return State(placement, np.zeros(len(placement)), True)
        span = self.timelines.tails_us(placement).max(initial=1.0)
        return State(placement, (1 - ranks(plan) / len(placement)) * span, False)

    def plan(self, state: State) -> Plan:
        """Return a state as a plan; its priorities are nanoseconds."""
        key = state.offset_us
        if state.by_tail:
            key = key + self.timelines.tails_us(state.placement)
        return Plan(self.task.names, state.placement, np.rint(1e3 * key).astype(np.int64))

    def look(self, plan: Plan) -> None:
        """Simulate a plan, and keep its `waits`."""
        self.waits = self.timelines.waits(self.task.simulator.run(plan))

    def _draw(self, count: int) -> int:
        return int(self.generator.random() * count)

    def _other(self, device: int) -> int:
        other = self._draw(len(self.task.devices) - 1)
        return other + (other >= device)

    def _put(self, state: State, nodes: Int64[np.ndarray, " some"], device: int) -> State:
        placement = state.placement.copy()
        placement[nodes[self._able[device, nodes]]] = device
        return replace(state, placement=placement)

    def _drawn_group(self) -> Int64[np.ndarray, " members"]:
        return _list(self._groups, int(self._group_sums.searchsorted(self.generator.random())))

    def _whole(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " members"]:
        groups = dict.fromkeys(self.task.colocation[nodes].tolist())
        return np.concatenate([_list(self._groups, group) for group in groups])

    def _group(self, state: State) -> State:
        nodes = self._drawn_group()
        return self._put(state, nodes, self._other(int(state.placement[nodes[0]])))

    def _neighbours(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " neighbours"]:
        return np.concatenate([_list(self._beside, int(node)) for node in nodes[:16]])

    def _around(self, state: State) -> State:
        nodes = self._drawn_group()
        device = self._other(int(state.placement[nodes[0]]))
        return self._put(state, self._whole(np.concatenate([nodes, self._neighbours(nodes)[:24]])), device)

    def _cluster(self, state: State) -> State:
        lists = self._clusters[self._draw(len(self._clusters))]
        nodes = _list(lists, self._draw(len(lists[0]) - 1))
        return self._put(state, nodes, self._other(int(state.placement[nodes[0]])))

    def _stretch(self, state: State) -> State:
        indptr, members = self._units
        units = len(indptr) - 1
        length = int(np.exp(self.generator.random() * np.log(units / 2 + 1)))
        first = self._draw(units - length + 1)
        nodes = members[indptr[first] : indptr[first + length]]
        if self.generator.random() < 0.5:
            return self._put(state, nodes, self._draw(len(self.task.devices)))
        return self._put(state, nodes, self._other(int(state.placement[nodes[-1]])))

    def _swap(self, state: State) -> State:
        one, other = self._drawn_group(), self._drawn_group()
        here, there = int(state.placement[one[0]]), int(state.placement[other[0]])
        return self._put(self._put(state, one, there), other, here)

    def _follow(self, state: State) -> State:
        """Move a group to where most bytes of what it reads and makes are."""
        nodes = self._drawn_group()
        near = self._neighbours(nodes)
        if not len(near):
            return self._group(state)
        votes = np.bincount(state.placement[near], 1.0 + self.task.costs.output_bytes[near])
        votes = votes * (np.arange(len(votes)) != state.placement[nodes[0]])
        return self._put(state, nodes, int(votes.argmax())) if votes.any() else self._group(state)

    def _unload(self, state: State) -> State:
        """Move a group of the busiest device to the idlest."""
        times = self.task.times_us[state.placement, np.arange(self.task.num_nodes)]
        busy = np.bincount(state.placement, times, len(self.task.devices))
        busiest, idlest = int(busy.argmax()), int(busy.argmin())
        for _ in range(8):
            nodes = self._drawn_group()
            if state.placement[nodes[0]] == busiest:
                return self._put(state, nodes, idlest)
        return self._group(state)

    def _waited(self, state: State) -> State:
        """Change the plan at a place of the chain of waits. Where a value crosses, one side goes to the device of the
        other. Where a device was busy, one of the two operations moves, or they change their order, or both move."""
        if self.waits is None:
            return self._group(state)
        chain, cause = self.waits.nodes, self.waits.cause
        places = np.flatnonzero((cause == CROSSING) | (cause == BUSY))
        if not len(places):
            return self._group(state)
        at = int(places[self._draw(len(places))])
        length = 1 + int(self.generator.exponential(3.0))
        later, earlier = chain[max(at + 1 - length, 0) : at + 1], chain[at + 1 : at + 1 + length]
        late, early = int(chain[at]), int(chain[at + 1])
        members, device = (later, early) if self.generator.random() < 0.5 else (earlier, late)
        if cause[at] == CROSSING:
            return self._put(state, self._some(members), int(state.placement[device]))
        if self._overlapping and self.generator.random() < 0.5:
            ends = self.generator.permutation(len(self.task.devices))[:2].tolist()
            state = self._put(state, self._some(chain[at : at + 1]), ends[0])
            return self._put(state, self._some(chain[at + 1 : at + 2]), ends[1])
        if self.generator.random() < 0.3:
            tails = self.timelines.tails_us(state.placement) if state.by_tail else np.zeros(len(state.placement))
            offset = state.offset_us.copy()
            offset[late] += 1.0 + max(tails[early] + offset[early] - tails[late] - offset[late], 0.0)
            return replace(state, offset_us=offset)
        return self._put(state, self._some(members), self._other(int(state.placement[late])))

    def _some(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " members"]:
        return nodes if self._free and self.generator.random() < 0.5 else self._whole(nodes)

    def _order(self, state: State) -> State:
        """Run some operations earlier or later; rarely, let priorities begin or cease to follow the placement."""
        tails = self.timelines.tails_us(state.placement)
        if self.generator.random() < 0.05:
            if state.by_tail:
                return replace(state, offset_us=state.offset_us + tails, by_tail=False)
            return replace(state, offset_us=np.zeros(len(tails)), by_tail=True)
        if self.waits is not None and len(self.waits.nodes) and self.generator.random() < 0.5:
            nodes = self.waits.nodes[self._draw(len(self.waits.nodes)) :][: 1 + self._draw(8)]
        else:
            nodes = self._drawn_group()
        offset = state.offset_us.copy()
        scale = tails.max() * 10 ** (-3 + 2.5 * self.generator.random())
        offset[nodes] += scale * self.generator.standard_normal()
        return replace(state, offset_us=offset)


def _first_of_group(colocation: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Return the first node of the group of each node."""
    _, first, inverse = np.unique(colocation, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def in_order_of_first(colocation: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Number groups anew, in the order of their first nodes.

    Examples:
        >>> in_order_of_first(np.array([2, 0, 2, 1])).tolist()
        [0, 1, 0, 2]
    """
    return np.unique(_first_of_group(colocation), return_inverse=True)[1].astype(np.int64)


@lru_cache(maxsize=2)
def _cluster_labels(edge_bytes: bytes, colocation_bytes: bytes) -> list[Int64[np.ndarray, " nodes"]]:
    """Return METIS clusters of several sizes, none without pymetis; a group belongs to that of its first node. They do
    not depend on costs, so that a loop that corrects costs finds them once."""
    edges = np.frombuffer(edge_bytes, np.int64).reshape(2, -1)
    colocation = np.frombuffer(colocation_bytes, np.int64)
    labels, first = [in_order_of_first(colocation)], _first_of_group(colocation)
    for size in CLUSTER_NODES:
        if (parts := len(colocation) // size) > 1 and has_metis():
            part = partition(edges, len(colocation), parts, "metis", tolerance=1.0)
            labels.append(np.unique(part[first], return_inverse=True)[1].astype(np.int64))
    return labels


def _lists(label: Int64[np.ndarray, " nodes"]) -> Rows:
    """Return the nodes by label."""
    return rows(label, np.arange(len(label)), int(label.max()) + 1)


def _list(lists: Rows, number: int) -> Int64[np.ndarray, " members"]:
    indptr, members = lists
    return members[indptr[number] : indptr[number + 1]]


class Waits(NamedTuple):
    """A chain of operations, the last first, each of which began as soon as the next one let it, and the causes."""

    nodes: Int64[np.ndarray, " chain"]
    cause: Int64[np.ndarray, " chain"]


class Timelines:
    """Longest paths and waits in simulated runs of one task."""

    def __init__(self, task: Task) -> None:
        self._costs, self._what = task.costs, task_scheduled(task, handed_over=False)

    def tails_us(self, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " nodes"]:
        """Return the longest path from the begin of each operation to the end of the program, transfers included: the
        upward rank of Topcuoglu et al. (2002) of a placement."""
        return _tails(home, self._what.arrays)

    def waits(self, run: Timeline) -> Waits:
        """Return the chain that ends with the operation that ends last."""
        arrived, memory = np.zeros((0, 0)), self._what.arrays.memory
        if self._costs.copies_queue:
            copies = copies_of(self._costs, run)
            arrived = np.zeros((len(run.device), int(memory.max()) + 1))
            arrived[copies.node, memory[copies.device]] = copies.end_us
        return Waits(*_waits(run.device, run.begin_us, run.end_us, run.order, arrived, self._what))


@compiled
@no_type_check
def _tails(home, arrays):
    tail = np.zeros(len(home))
    for node in range(len(home) - 1, -1, -1):
        longest = 0.0
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            consumer = arrays.consumers[position]
            longest = max(longest, moved(node, home[node], home[consumer], arrays) + tail[consumer])
        tail[node] = longest + arrays.times[home[node], node]
    return tail


@compiled
@no_type_check
def _waits(home, begin, end, order, copied, what):
    arrays, use = what.arrays, what.use
    nodes, cores = len(home), use.shape[1]
    before = np.full(nodes, -1)  # the operation that left the cores of each one last
    last = np.full(cores, -1)
    final = -1
    for node in order:
        if not what.computed[node]:
            continue
        if final < 0 or end[node] > end[final]:
            final = node
        for core in range(cores):
            if use[home[node], core]:
                if last[core] >= 0 and (before[node] < 0 or end[last[core]] > end[before[node]]):
                    before[node] = last[core]
                last[core] = node
    chain, cause = np.empty(nodes, np.int64), np.full(nodes, FIRST)
    size, node = 0, final
    while node >= 0 and size < nodes:
        maker, arrived = -1, -1.0
        for position in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
            producer = arrays.producers[position]
            there = end[producer] + moved(producer, home[producer], home[node], arrays)
            if len(copied) and home[producer] != home[node]:  # copies queue
                there = max(there, copied[producer, arrays.memory[home[node]]])
            if there > arrived:
                maker, arrived = producer, there
        chain[size] = node
        if before[node] >= 0 and end[before[node]] > arrived:
            cause[size] = BUSY
            node = before[node]
        elif maker >= 0:
            cause[size] = CROSSING if home[maker] != home[node] else VALUE
            node = maker
        else:
            node = -1
        size += 1
    return chain[:size], cause[:size]
