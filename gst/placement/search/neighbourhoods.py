"""The neighbourhood of a plan: small changes, drawn at random or where a simulated run had to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.data.measured_plans import core_use
from gst.execution.costs import Costs
from gst.lowering.plan import Plan, Timeline, ranks
from gst.machine.devices import overlap
from gst.placement.task import Task
from gst.simulation.copies import copies_of
from gst.simulation.simulator import neighbour_lists
from gst.util.compiled import compiled
from partitioners import has_metis, partition

FIRST, VALUE, CROSSING, BUSY = range(4)
"""What an operation waited for: nothing, a value of its device, a value of another device, its device."""


@dataclass(frozen=True, eq=False)
class Waits:
    """A chain of operations, the last first, each of which began as soon as the next in the chain let it.

    Args:
        nodes: of the chain.
        cause: what each waited for.
    """

    nodes: Int64[np.ndarray, " chain"]
    cause: Int64[np.ndarray, " chain"]


class _CostArrays(NamedTuple):
    """Costs as the kernels read them, with edges between computed nodes only.

    Args:
        indptr, consumers: who reads the value of each node; `producer_indptr` and `producers` whose values it reads.
        use: which device takes which core.
        memory: number of the memory of each device.
    """

    indptr: Int64[np.ndarray, " nodes_plus_one"]
    consumers: Int64[np.ndarray, " edges"]
    producer_indptr: Int64[np.ndarray, " nodes_plus_one"]
    producers: Int64[np.ndarray, " edges"]
    computed: Bool[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices nodes"]
    num_bytes: Float64[np.ndarray, " nodes"]
    latency_us: Float64[np.ndarray, "devices devices"]
    bytes_per_us: Float64[np.ndarray, "devices devices"]
    use: Bool[np.ndarray, "devices cores"]
    memory: Int64[np.ndarray, " devices"]


class Timelines:
    """Questions about simulated runs of one program.

    Args:
        costs: of the program.
    """

    def __init__(self, costs: Costs) -> None:
        edges = costs.edges[:, costs.computed[costs.edges[0]] & costs.computed[costs.edges[1]]]
        self._all_costs = costs
        self._costs = _CostArrays(
            *neighbour_lists(edges, costs.num_nodes),
            *neighbour_lists(edges[::-1], costs.num_nodes),
            computed=costs.computed,
            times_us=costs.times_us,
            num_bytes=costs.output_bytes.astype(np.float64),
            latency_us=costs.latency_us,
            bytes_per_us=costs.bytes_per_us,
            use=core_use(costs.devices),
            memory=np.unique([device.memory for device in costs.devices], return_inverse=True)[1],
        )

    def tails_us(self, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " nodes"]:
        """From the begin of each operation to the end of the program along its longest way, transfers included, as it
        is placed: the upward rank of Topcuoglu et al. (2002) of a placement that is already known."""
        return _tails(home, self._costs)

    def waits(self, run: Timeline) -> Waits:
        """The chain that ends with the operation that ends last."""
        arrived = np.zeros((0, 0))
        if self._all_costs.copies_queue:
            copies = copies_of(self._all_costs, run)
            arrived = np.zeros((len(run.device), int(self._costs.memory.max()) + 1))
            arrived[copies.node, self._costs.memory[copies.device]] = copies.end_us
        nodes, cause = _waits(run.device, run.begin_us, run.end_us, run.order, arrived, self._costs)
        return Waits(nodes, cause)


@compiled
@no_type_check
def _tails(home, costs):
    nodes = len(home)
    tail = np.zeros(nodes)
    for node in range(nodes - 1, -1, -1):
        here, longest = home[node], 0.0
        for position in range(costs.indptr[node], costs.indptr[node + 1]):
            there = home[costs.consumers[position]]
            moved = costs.latency_us[here, there] + costs.num_bytes[node] / costs.bytes_per_us[here, there]
            longest = max(longest, moved + tail[costs.consumers[position]])
        tail[node] = longest + costs.times_us[here, node]
    return tail


@compiled
@no_type_check
def _waits(home, begin, end, order, copied, costs):
    use = costs.use
    nodes, cores = len(home), use.shape[1]
    before = np.full(nodes, -1)  # the operation that left the cores of each one last
    last = np.full(cores, -1)
    final = -1
    for node in order:
        if not costs.computed[node]:
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
        for position in range(costs.producer_indptr[node], costs.producer_indptr[node + 1]):
            producer = costs.producers[position]
            there = end[producer] + costs.latency_us[home[producer], home[node]]
            there += costs.num_bytes[producer] / costs.bytes_per_us[home[producer], home[node]]
            if len(copied) and home[producer] != home[node]:  # copies queue
                there = max(there, copied[producer, costs.memory[home[node]]])
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


CLUSTER_NODES = (6, 20, 60, 180)
"""Nodes in a cluster of each level, about."""


@dataclass(frozen=True, eq=False)
class State:
    """A plan as the search sees it.

    Args:
        placement: device of each node.
        offset_us: added to the priority of each node.
        by_tail: whether priorities are the longest ways to the end under this placement (so that they follow what is
            moved) plus the offsets, or the offsets alone.
    """

    placement: Int64[np.ndarray, " nodes"]
    offset_us: Float64[np.ndarray, " nodes"]
    by_tail: bool


class Neighbourhood:
    """Draws neighbours of a state. Where the task is no program, nodes of a colocation group stay together; of a
    program, groups move as one in most steps, but single operations move too (they may be narrow or wide).

    Args:
        task: what is placed where.
        generator: draws.

    Attributes:
        moves: the kinds of steps by name.
        waits: what the last simulated run waited for; None before the first.
    """

    def __init__(self, task: Task, generator: np.random.Generator) -> None:
        self.task, self.generator = task, generator
        self.waits: Waits | None = None
        self.timelines = Timelines(task.costs)
        nodes, together = np.arange(task.num_nodes), task.colocation
        self._groups = _lists(together, nodes)
        self._free = task.program is not None
        self._overlapping = overlap(task.devices)
        self._units = _lists(nodes if self._free else _in_order_of_first(together), nodes)
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
        self._beside = neighbour_lists(both, task.num_nodes)
        self._clusters = [_lists(label, nodes) for label in _cluster_labels(task)]
        self.moves: dict[str, Callable[[State], State]] = {"order": self._order}
        if len(task.devices) > 1:
            self.moves |= {
                "group": self._group, "around": self._around, "cluster": self._cluster, "stretch": self._stretch,
                "swap": self._swap, "follow": self._follow, "waited": self._waited, "unload": self._unload,
            }  # fmt: skip

    def state(self, plan: Plan, by_tail: bool) -> State:
        """A plan as a state: with its own priorities, or with the longest ways to the end. Nodes that cannot run where
        they are, or are apart from their group where they must not be, are moved."""
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
        """A state as a plan; its priorities are nanoseconds."""
        key = state.offset_us
        if state.by_tail:
            key = key + self.timelines.tails_us(state.placement)
        return Plan(self.task.names, state.placement, np.rint(1e3 * key).astype(np.int64))

    def look(self, plan: Plan) -> None:
        """Simulate a plan, to see what it waits for."""
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
        """Long ones more often."""
        return _list(self._groups, int(self._group_sums.searchsorted(self.generator.random())))

    def _whole(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " members"]:
        """All nodes of the groups of some nodes."""
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
        """A group goes where most bytes of what it reads and makes are."""
        nodes = self._drawn_group()
        beside = self._neighbours(nodes)
        if not len(beside):
            return self._group(state)
        votes = np.bincount(state.placement[beside], 1.0 + self.task.costs.output_bytes[beside])
        votes = votes * (np.arange(len(votes)) != state.placement[nodes[0]])
        return self._put(state, nodes, int(votes.argmax())) if votes.any() else self._group(state)

    def _unload(self, state: State) -> State:
        """A group or a cluster of the busiest device goes to the idlest."""
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
        other. Where a device was busy, one of the two operations moves, or they change their order; where devices share
        cores, both may move, as one alone would be slower there."""
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
        moved, device = (later, early) if self.generator.random() < 0.5 else (earlier, late)
        if cause[at] == CROSSING:
            return self._put(state, self._some(moved), int(state.placement[device]))
        if self._overlapping and self.generator.random() < 0.5:
            ends = self.generator.permutation(len(self.task.devices))[:2].tolist()
            state = self._put(state, self._some(chain[at : at + 1]), ends[0])
            return self._put(state, self._some(chain[at + 1 : at + 2]), ends[1])
        if self.generator.random() < 0.3:
            tails = self.timelines.tails_us(state.placement) if state.by_tail else np.zeros(len(state.placement))
            offset = state.offset_us.copy()
            offset[late] += 1.0 + max(tails[early] + offset[early] - tails[late] - offset[late], 0.0)
            return replace(state, offset_us=offset)
        return self._put(state, self._some(moved), self._other(int(state.placement[late])))

    def _some(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " members"]:
        return nodes if self._free and self.generator.random() < 0.5 else self._whole(nodes)

    def _order(self, state: State) -> State:
        """Some operations come sooner or later; now and then priorities begin or cease to follow the placement."""
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
    """The first node of the group of each node."""
    _, first, inverse = np.unique(colocation, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _in_order_of_first(colocation: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Groups numbered anew, in the order of their first nodes."""
    return np.unique(_first_of_group(colocation), return_inverse=True)[1].astype(np.int64)


def _cluster_labels(task: Task) -> list[Int64[np.ndarray, " nodes"]]:
    """METIS clusters of several sizes, none without pymetis; a colocation group belongs to that of its first node."""
    first = _first_of_group(task.colocation)
    labels = [np.unique(first, return_inverse=True)[1].astype(np.int64)]
    for size in CLUSTER_NODES:
        if (parts := task.num_nodes // size) > 1 and has_metis():
            found = partition(task.costs.edges, task.num_nodes, parts, "metis", tolerance=1.0)
            labels.append(np.unique(found[first], return_inverse=True)[1].astype(np.int64))
    return labels


def _lists(
    label: Int64[np.ndarray, " nodes"], nodes: Int64[np.ndarray, " nodes"]
) -> tuple[Int64[np.ndarray, " bounds"], Int64[np.ndarray, " nodes"]]:
    """Nodes by label."""
    return neighbour_lists(np.stack([label, nodes]), int(label.max()) + 1)


def _list(
    lists: tuple[Int64[np.ndarray, " bounds"], Int64[np.ndarray, " all"]], number: int
) -> Int64[np.ndarray, " members"]:
    indptr, members = lists
    return members[indptr[number] : indptr[number + 1]]
