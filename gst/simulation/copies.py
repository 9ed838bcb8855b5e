"""Copies of a simulated run, each value that goes to another memory; its critical path; and the most bytes it takes.

The run takes at most the peak over all runs that `gst.lowering.happens_before.check` proves, and exactly this peak
where one device computes alone.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.calls import Costs, Storages
from gst.lowering.plan import Timeline
from gst.machine.devices import memories_of
from gst.simulation.event_kernel import precedes
from gst.util.compiled import compiled


class Copies(NamedTuple):
    """Values that are copied from memory to memory, each once for each memory where it is read.

    Args:
        node: of the value.
        device: of its first reader there.
        begin_us, end_us: of the copy.
    """

    node: Int64[np.ndarray, " copies"]
    device: Int64[np.ndarray, " copies"]
    begin_us: Float64[np.ndarray, " copies"]
    end_us: Float64[np.ndarray, " copies"]


def copies_of(costs: Costs, run: Timeline) -> Copies:
    """Return the copies of a simulated run, in the order of its stream program: by the begin of the operation that made
    the value, then by that of the first reader.

    Examples:
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
        >>> run = task.simulator.run(task.plan(np.arange(task.num_nodes) % 2))
        >>> copies = copies_of(task.costs, run)
        >>> bool((copies.begin_us >= run.end_us[copies.node]).all())
        True
    """
    names, memory = memories_of(costs.devices)
    return Copies(*_copies(
        run.order, run.begin_us, run.end_us, run.device, memory, len(names), *costs.readers, costs.latency_us,
        costs.bytes_per_us, costs.output_bytes, costs.copies_queue,
    ))  # fmt: skip


@compiled
@no_type_check
def _copies(
    order, begin, end, device, memory, memories, indptr, consumers, latency, bandwidth, num_bytes, queue
):  # fmt: skip
    """Return what `Copies` holds; `memory` is that of each device, and `order` the nodes by begin, end and number."""
    nodes, seen = len(order), np.full(memories, -1)  # the last value that each memory reads
    place = np.zeros(memories + 1, np.int64)  # of the next copy that leaves each memory
    for node in range(nodes):
        here = memory[device[node]]
        for position in range(indptr[node], indptr[node + 1]):
            there = memory[device[consumers[position]]]
            if there != here and seen[there] != node:
                seen[there] = node
                place[here + 1] += 1
    for here in range(memories):
        place[here + 1] += place[here]
    count = place[memories]
    value, target = np.empty(count, np.int64), np.empty(count, np.int64)
    begun, ended = np.empty(count), np.empty(count)
    reader, away = np.empty(memories, np.int64), np.empty(memories, np.int64)  # first readers; where they are
    free = np.zeros(memories)
    for there in range(memories):
        seen[there] = -1
    for node in order:
        here, num_away = memory[device[node]], 0
        for position in range(indptr[node], indptr[node + 1]):
            consumer = consumers[position]
            there = memory[device[consumer]]
            if there == here:
                continue
            if seen[there] != node:
                seen[there], reader[there], away[num_away] = node, consumer, there
                num_away += 1
            elif precedes(consumer, reader[there], begin, end):
                reader[there] = consumer
        for number in range(num_away):
            least = number
            for other in range(number + 1, num_away):
                if precedes(reader[away[other]], reader[away[least]], begin, end):
                    least = other
            away[number], away[least] = away[least], away[number]
            first = reader[away[number]]
            made = max(end[node], free[here]) if queue else end[node]  # links that never queue are free at any time
            arrived = made + latency[device[node], device[first]]
            arrived += num_bytes[node] / bandwidth[device[node], device[first]]
            free[here] = arrived
            value[place[here]], target[place[here]], begun[place[here]] = node, device[first], made
            # By rounding a copy may end after its first reader began, which had waited for it.
            ended[place[here]] = min(arrived, max(begin[first], made))
            place[here] += 1
    return value, target, begun, ended


FIRST, VALUE, CROSSING, BUSY = range(4)
"""Cause of a wait: none, a value of the same device, a value of another device, cores of the device."""


class CriticalPath(NamedTuple):
    """Operations of a simulated run, the last first, each of which began as soon as the next one let it.

    Args:
        nodes: the operations.
        cause: of the wait of each for the next one.
        copies: those that they waited for, by number.
    """

    nodes: Int64[np.ndarray, " path"]
    cause: Int64[np.ndarray, " path"]
    copies: Int64[np.ndarray, " copies"]


def critical_path(costs: Costs, run: Timeline, copies: Copies, follow_queues: bool = False) -> CriticalPath:
    """Return the critical path that ends with the operation that ends last.

    Args:
        copies: see `copies_of`.
        follow_queues: True if the path goes on with the copy that a copy waited for; otherwise with its own value.
    """
    names, memory = memories_of(costs.devices)
    copy_of = np.full((costs.num_nodes, len(names)), -1)
    copy_of[copies.node, memory[copies.device]] = np.arange(len(copies.node))
    queues = follow_queues and costs.copies_queue
    lane = memory[run.device[copies.node]] if queues else np.full(len(copies.node), -1)
    path, cause, is_copied = _critical(
        run.end_us, run.device, run.order, costs.computed, *costs.cores, *costs.producers, memory, copy_of, copies.node,
        copies.end_us, lane,
    )  # fmt: skip
    return CriticalPath(path, cause, np.flatnonzero(is_copied))


@compiled
@no_type_check
def _critical(
    end, home, order, computed, core_indptr, cores, indptr, producers, memory, copy_of, copy_node, copy_end, lane
):  # fmt: skip
    """Walk back from the last operation. `copy_of` has the number of each value's copy in each memory, `lane` the
    memory that each copy leaves where copies queue, or -1."""
    nodes, copies = len(end), len(copy_node)
    before, last = np.full(nodes, -1), np.full(cores.max() + 1, -1)  # the operation that left the cores of each last
    node = -1
    for each in order:
        if not computed[each]:
            continue
        if node < 0 or end[each] > end[node]:
            node = each
        for position in range(core_indptr[home[each]], core_indptr[home[each] + 1]):
            other = last[cores[position]]
            if other >= 0 and (before[each] < 0 or end[other] > end[before[each]]):
                before[each] = other
            last[cores[position]] = each
    copy_before, copy_last = np.full(copies, -1), np.full(copy_of.shape[1], -1)
    for copy in range(copies):
        if lane[copy] >= 0:
            copy_before[copy] = copy_last[lane[copy]]
            copy_last[lane[copy]] = copy
    path, cause, size = np.empty(nodes, np.int64), np.full(nodes, FIRST), 0
    on_path, is_copied = np.zeros(nodes, np.bool_), np.zeros(copies, np.bool_)
    while node >= 0 and not on_path[node]:  # by rounding an operation that takes no time may seem to begin too late
        on_path[node], path[size] = True, node
        latest, awaited, copy = -1.0, before[node], -1
        if awaited >= 0:
            latest, cause[size] = end[awaited], BUSY
        for position in range(indptr[node], indptr[node + 1]):
            producer, number = producers[position], -1
            if memory[home[producer]] != memory[home[node]]:
                number = copy_of[producer, memory[home[node]]]
            arrived = copy_end[number] if number >= 0 else end[producer]
            if arrived >= latest:
                latest, awaited, copy = arrived, producer, number
                cause[size] = CROSSING if home[producer] != home[node] else VALUE
        while copy >= 0:
            is_copied[copy] = True
            awaited, earlier = copy_node[copy], copy_before[copy]
            copy = earlier if earlier >= 0 and copy_end[earlier] > end[awaited] else -1
        node, size = awaited, size + 1
    return path[:size], cause[:size], is_copied


class Holds(NamedTuple):
    """Values that lie in memory that another node allocated, by increasing node.

    Args:
        node: of the value.
        storage: in which it lies; -1 for that of an input.
        parent: the hold of the value that it is a view of; -1 where its own node allocates, -2 for a view of an input.
    """

    node: np.ndarray
    storage: np.ndarray
    parent: np.ndarray


_HOLDS: WeakKeyDictionary[Storages, tuple[tuple[np.ndarray, ...], Holds]] = WeakKeyDictionary()


def _holds(costs: Costs) -> Holds:
    """Return `Holds` of a program: corrected costs of a program share them."""
    made_from = costs.edges, costs.computed, costs.output_bytes
    known = _HOLDS.get(costs.storages)
    if known is not None and all(one is other for one, other in zip(known[0], made_from, strict=True)):
        return known[1]
    holders: dict[int, list[int]] = {}
    for storage, node in costs.storages.held.T.tolist():
        holders.setdefault(node, []).append(storage)
    in_input = np.array([node not in holders for node in range(costs.num_nodes)], bool)
    in_input &= ~costs.computed | (costs.output_bytes > 0)
    reads: dict[int, list[int]] = {}
    for producer, consumer in costs.edges[:, np.argsort(costs.edges[0], kind="stable")].T.tolist():
        reads.setdefault(consumer, []).append(producer)
    made_by = costs.storages.made_by.tolist()
    number: dict[tuple[int, int], int] = {}
    rows: list[tuple[int, int, int]] = []
    for node in np.flatnonzero(costs.computed).tolist():
        bases = [each for each in reads.get(node, ()) if in_input[each]]
        if in_input[node] and bases:
            base = bases[0]
            number[-1, node] = len(rows)
            rows.append((node, -1, number.get((-1, base), -2)))
        for storage in holders.get(node, ()):
            found = (number[storage, each] for each in reads.get(node, ()) if (storage, each) in number)
            parent = -1 if made_by[storage] == node else next(found, -1)
            number[storage, node] = len(rows)
            rows.append((node, storage, parent))
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    holds = Holds(*map(np.ascontiguousarray, columns))
    _HOLDS[costs.storages] = made_from, holds
    return holds


def peak_bytes(costs: Costs, simulation: Timeline) -> dict[str, int]:
    """Return the most bytes of intermediate values, outputs included, that each memory holds at any moment.

    An operation takes its `own_bytes` while it runs. A storage is freed when the last reader of the last value in it
    has ended. A value read in another memory is copied there (`copies_of`): the value stays until the copy has arrived,
    the copy until its last reader there has ended.
    """
    begin, end, device = simulation.begin_us, simulation.end_us, simulation.device
    names, place_of = memories_of(costs.devices)
    memory = place_of[device]
    made_by, size = costs.storages.made_by, costs.storages.num_bytes
    copies = copies_of(costs, simulation)
    freed, copy_freed = _last_uses(
        costs.edges, costs.computed, costs.kept, end, copies.node, copies.end_us, memory, len(names), len(size),
        _holds(costs),
    )  # fmt: skip
    made_bytes = np.bincount(made_by, size, costs.num_nodes).astype(np.int64)
    own = np.maximum(np.where(costs.computed, costs.own_bytes[device, np.arange(costs.num_nodes)], 0), made_bytes)
    copied, place = costs.output_bytes[copies.node], place_of[copies.device]
    when = np.concatenate([begin, end, freed, copies.begin_us, copy_freed[copies.node, place]])
    change = np.concatenate([own, made_bytes - own, -size, copied, -copied])
    places = np.concatenate([memory, memory, memory[made_by], place, place])
    most = _most(np.argsort(when), when, change, places, len(names))
    return dict(zip(names, most.tolist(), strict=True))


@compiled
@no_type_check
def _most(order, when, change, places, memories):
    """Return the most bytes in each memory, after all changes of a moment: what is freed then is free for what begins
    then."""
    level, most = np.zeros(memories, np.int64), np.zeros(memories, np.int64)
    first = 0
    for position in range(len(order)):
        level[places[order[position]]] += change[order[position]]
        if position + 1 == len(order) or when[order[position + 1]] != when[order[position]]:
            for each in range(first, position + 1):
                place = places[order[each]]
                most[place] = max(most[place], level[place])
            first = position + 1
    return most


@compiled
@no_type_check
def _last_uses(edges, computed, kept, end, copied, arrived, memory, memories, storages, holds):
    """Return the time when each storage is freed, and each copy in each memory (0 without one).

    Args:
        copied, arrived: node of each copy, and the time when it ends.
    """
    nodes, until = len(end), end.copy()
    for copy in range(len(copied)):
        until[copied[copy]] = max(until[copied[copy]], arrived[copy])
    hold_node, hold_storage, hold_parent = holds
    copy_until = np.zeros((nodes, memories))
    for edge in range(edges.shape[1]):
        producer, consumer = edges[0, edge], edges[1, edge]
        if not computed[producer]:
            continue
        if memory[producer] == memory[consumer]:
            until[producer] = max(until[producer], end[consumer])
        else:
            copy_until[producer, memory[consumer]] = max(copy_until[producer, memory[consumer]], end[consumer])
    for node in range(nodes):
        if kept[node]:
            until[node] = np.inf
    freed = np.zeros(storages)
    base = np.full(len(hold_node), -1)  # the node in whose copy a value lies, if it lies in one
    for hold in range(len(hold_node)):
        node, parent = hold_node[hold], hold_parent[hold]
        if parent >= 0:
            base[hold] = base[parent] if memory[hold_node[parent]] == memory[node] else hold_node[parent]
        if base[hold] >= 0:
            copy_until[base[hold], memory[node]] = max(copy_until[base[hold], memory[node]], until[node])
        elif hold_storage[hold] >= 0:
            freed[hold_storage[hold]] = max(freed[hold_storage[hold]], until[node])
    return freed, copy_until
