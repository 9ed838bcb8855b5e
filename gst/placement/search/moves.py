"""Compiled steps of annealing in a schedule, and longest paths and waits in simulated runs."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.costs import Costs
from gst.lowering.plan import Timeline
from gst.lowering.stream_program import rows
from gst.machine.devices import core_use
from gst.simulation.copies import copies_of
from gst.util.compiled import compiled

MOST_MOVED = 32  # groups in a step


@compiled
@no_type_check
def uniform(state):
    """Draw a number of [0, 1): the linear congruential generator of Knuth's MMIX, 53 upper bits."""
    state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return (state[0] >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
@no_type_check
def step_from(
    node, span, low, home, order, position, before, used, is_tight, state, arrays, moved_groups, sources
):  # fmt: skip
    """Change `home` and `order` by a step that begins at a node.

    Returns the number of groups that changed their device, the place that an operation left and the one it came to (-1
    if none), and the first place from which on the schedule differs. If the step is not admitted or does nothing, the
    number of groups is -1, and nothing is changed.

    Args:
        span: nodes that may move; a group with others stays.
        low: place of the first of them in `order`.
        home, order, position: of each node, and its place in `order`; written.
        before: the node that ran before each on its device, or -1.
        used: bytes of each memory, written.
        is_tight: True if memories have limits.
        moved_groups, sources: groups that changed their device and their devices before, `MOST_MOVED` each, written.
    """
    nodes, devices, high = len(span), arrays.times.shape[0], low + len(span)
    count, origin, to, first = 0, -1, -1, high
    draw = uniform(state)
    if devices > 1 and draw < 0.7:
        old, target = home[node], home[node]
        if uniform(state) < 0.5:
            target = home[_neighbour(node, state, arrays)]
        if target == old:
            target = np.int64(uniform(state) * (devices - 1))
            target += target >= old
        kind, other = uniform(state), node
        count = _give(arrays.groups[node], target, home, used, arrays, moved_groups, sources, count)
        if kind < 0.15:  # exchange
            other = span[np.int64(uniform(state) * nodes)]
            if home[other] == target and arrays.groups[other] != arrays.groups[node]:
                count = _give(arrays.groups[other], old, home, used, arrays, moved_groups, sources, count)
        elif is_tight and kind < 0.3:  # memories are full: two more change places
            for _ in range(2):
                other = span[np.int64(uniform(state) * nodes)]
                group, anywhere = arrays.groups[other], np.int64(uniform(state) * devices)
                count = _give(group, anywhere, home, used, arrays, moved_groups, sources, count)
        while kind > 0.7 and count < MOST_MOVED:  # those on a random walk go along
            reached = _neighbour(other, state, arrays)
            other = reached if low <= position[reached] < high else other
            if home[other] != target:
                count = _give(arrays.groups[other], target, home, used, arrays, moved_groups, sources, count)
            kind *= 0.9
        able = True
        for number in range(count):
            group = moved_groups[number]
            for member in arrays.members[arrays.member_indptr[group] : arrays.member_indptr[group + 1]]:
                able = able and arrays.times[home[member], member] < np.inf and low <= position[member] < high
                first = min(first, position[member])
            memory = arrays.memory[home[arrays.members[arrays.member_indptr[group]]]]
            able = able and used[memory] <= arrays.limits[memory]
        if not able:
            take_back(home, used, arrays, moved_groups, sources, count)
            return -1, origin, to, first
    if count == 0 or draw < 0.3:
        earliest, latest, origin = low, high - 1, position[node]
        for producer in arrays.producers[arrays.producer_indptr[node] : arrays.producer_indptr[node + 1]]:
            earliest = max(earliest, position[producer] + 1)
        for consumer in arrays.consumers[arrays.indptr[node] : arrays.indptr[node + 1]]:
            latest = min(latest, position[consumer] - 1)
        blocks = before[node]
        if count == 0 and blocks >= 0 and position[blocks] >= earliest and uniform(state) < 0.5:
            to = position[blocks]
        else:
            to = earliest + np.int64(uniform(state) * (latest - earliest + 1))
        if to == origin and count == 0:
            return -1, origin, to, first
        rotate(order, position, origin, to)
        first = min(first, min(origin, to))
    return count, origin, to, first


@compiled
@no_type_check
def _neighbour(node, state, arrays):
    """Draw a producer or a consumer of a node; the node itself if it has none."""
    first = arrays.producer_indptr[node + 1] - arrays.producer_indptr[node]
    count = first + arrays.indptr[node + 1] - arrays.indptr[node]
    if count == 0:
        return node
    pick = np.int64(uniform(state) * count)
    if pick < first:
        return arrays.producers[arrays.producer_indptr[node] + pick]
    return arrays.consumers[arrays.indptr[node] + pick - first]


@compiled
@no_type_check
def _give(group, target, home, used, arrays, moved_groups, sources, count):
    """Give a group to a device and note its device before; return the number of groups given so far."""
    source = home[arrays.members[arrays.member_indptr[group]]]
    for member in arrays.members[arrays.member_indptr[group] : arrays.member_indptr[group + 1]]:
        home[member] = target
    used[arrays.memory[source]] -= arrays.sizes[group]
    used[arrays.memory[target]] += arrays.sizes[group]
    moved_groups[count], sources[count] = group, source
    return count + 1


@compiled
@no_type_check
def take_back(home, used, arrays, moved_groups, sources, count):
    """Undo so many calls of `_give`, the last first."""
    for number in range(count - 1, -1, -1):
        _give(moved_groups[number], sources[number], home, used, arrays, moved_groups, sources, number)


@compiled
@no_type_check
def rotate(order, position, origin, to):
    """Move the node at place `origin` of the order to place `to`."""
    node = order[origin]
    step = 1 if to > origin else -1
    place = origin
    while place != to:
        order[place] = order[place + step]
        position[order[place]] = place
        place += step
    order[to] = node
    position[node] = to


FIRST, VALUE, CROSSING, BUSY = range(4)
"""Cause of a wait: none, a value of the same device, a value of another device, the device itself."""


class Waits(NamedTuple):
    """A chain of operations, the last first, each of which began as soon as the next one let it, and the causes."""

    nodes: Int64[np.ndarray, " chain"]
    cause: Int64[np.ndarray, " chain"]


class _CostArrays(NamedTuple):
    """Costs as the kernels read them, with edges between computed nodes only."""

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
    """Longest paths and waits in simulated runs of one program."""

    def __init__(self, costs: Costs) -> None:
        edges = costs.edges[:, costs.computed[costs.edges[0]] & costs.computed[costs.edges[1]]]
        self._all_costs = costs
        self._costs = _CostArrays(
            *rows(edges[0], edges[1], costs.num_nodes),
            *rows(edges[1], edges[0], costs.num_nodes),
            computed=costs.computed,
            times_us=costs.times_us,
            num_bytes=costs.output_bytes.astype(np.float64),
            latency_us=costs.latency_us,
            bytes_per_us=costs.bytes_per_us,
            use=core_use(costs.devices),
            memory=np.unique([device.memory for device in costs.devices], return_inverse=True)[1],
        )

    def tails_us(self, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " nodes"]:
        """Return the longest path from the begin of each operation to the end of the program, transfers included: the
        upward rank of Topcuoglu et al. (2002) of a placement."""
        return _tails(home, self._costs)

    def waits(self, run: Timeline) -> Waits:
        """Return the chain that ends with the operation that ends last."""
        arrived = np.zeros((0, 0))
        if self._all_costs.copies_queue:
            copies = copies_of(self._all_costs, run)
            arrived = np.zeros((len(run.device), int(self._costs.memory.max()) + 1))
            arrived[copies.node, self._costs.memory[copies.device]] = copies.end_us
        return Waits(*_waits(run.device, run.begin_us, run.end_us, run.order, arrived, self._costs))


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
