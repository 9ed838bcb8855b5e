"""Lowering: a captured program and a plan for it -> the stream program that lanes of every memory run.

Groups are put into one order in which every value is made before it is read; each lane takes its groups in that order,
so no lanes ever wait for each other in a circle.

- A value that another memory reads is copied there once, by the lane of copies of the memory where it is made, as soon
  as it is made; copies that are ready at once go in the order in which they are read. Where a memory limit would be
  exceeded, copies wait until a lane is some groups before their first reader there, as few as it takes.
- Inputs and constants lie where they are read. A parameter that the step renews lies where its new value is made, so
  that the next step finds it there, and is copied to other readers like any value; so are the data of the step.
- A value is freed on a lane of its readers, as soon as what that lane waits for anyway implies that all of them are
  done: no lane stands still for a free. Values that share a buffer are freed together.
- A lane waits only where what it did and waited for before does not imply it already: since steps are lowered in the
  common order, and of several waits the latest in that order first, what is left is the transitive reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from gst.devices.describe.machine import Device, least_memory_limit
from gst.devices.execute.freeing import behind_readers, frees_of_shared
from gst.devices.execute.race_check import check
from gst.devices.execute.storages import Storages, storages
from gst.devices.execute.stream_program import COPY, FREE, RECORD, RUN, WAIT, Ints, Rows, StreamProgram, rows
from gst.devices.fusion.legality import legalise
from gst.devices.plan import Plan, positions_of_nodes, ranks
from gst.programs import Program, Reference
from partitioners.compiled import compiled

AHEAD = (64, 16, 4, 2, 1)  # groups before its first reader at which a copy is made, where memory is short


class Work(NamedTuple):
    """What is to be lowered, as arrays.

    Args:
        edges: (2, edges); producer -> consumer, each pair once.
        group: (nodes); group of each operation, -1 for inputs and constants.
        lane: (groups); lane of each group.
        rank: (groups); of the groups that can run, the one of least rank stands first in the order. Distinct.
        home: (nodes); memory of each input that is copied to its other readers; -1 for what lies wherever it is read.
        results: nodes whose values are returned, each once.
        output_bytes: (nodes); of the value of each node.
        transient_bytes: (groups); that a group takes while it runs, beside what it writes.
        storages: who allocates what, and which values lie in it.
    """

    edges: np.ndarray
    group: np.ndarray
    lane: np.ndarray
    rank: np.ndarray
    home: np.ndarray
    results: np.ndarray
    output_bytes: np.ndarray
    transient_bytes: np.ndarray
    storages: Storages


def stream_program(
    program: Program,
    plan: Plan,
    devices: Sequence[Device],
    allocated: Storages | None = None,
    own_bytes: Int64[np.ndarray, "devices nodes"] | None = None,
    rank: Int64[np.ndarray, " nodes"] | None = None,
) -> StreamProgram:
    """Lower a plan: a lane for each device, and a lane of copies for each memory that another one reads from.

    Args:
        program: what is run.
        plan: device, priority and fusion group of every operation; groups are made legal (`legalise`).
        devices: those that the plan may name; each is a lane of its memory.
        allocated: which values lie in the same memory, as `gst.devices.execute.costs.storages` tells; it is asked if
            None, which takes longer than lowering.
        own_bytes: the most that each operation takes while it runs on each device; its results alone if None.
        rank: of two groups that can run, the one of least rank stands first; by the priorities of the plan if None.
            Begin times of a simulation, ranked, give the order in which a run is expected.

    Raises:
        ValueError: the plan is for another number of nodes, or names a device that is not in `devices`.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.Tanh())
        >>> program = capture_module(layers, (torch.zeros(8),))
        >>> devices = [Device(f"gpu:{number}", "cpu", (), 1, f"gpu:{number}", "example") for number in range(2)]
        >>> plan = Plan(("gpu:0", "gpu:1"), np.array([0, 0, 0, 1]))
        >>> print(stream_program(program, plan, devices).text(lambda node: program.operations[node].name))
        gpu:0 starts with arg0_1
        lane gpu:0 in gpu:0, 4 steps
          run relu
          run sigmoid
          record event 0
          free relu
        lane gpu:1 in gpu:1, 3 steps
          wait event 1
          run tanh
          free sigmoid
        lane copies of gpu:0 in gpu:0, 4 steps
          wait event 0
          copy sigmoid to gpu:1
          record event 1
          free sigmoid
        gpu:1 ends with tanh
    """
    allocated = storages(program) if allocated is None else allocated
    position = positions_of_nodes(plan, program, devices)
    memories = list(dict.fromkeys(device.memory for device in devices))
    memory_of_device = np.array([memories.index(device.memory) for device in devices])
    group = _groups(program, plan, position)
    computed = np.flatnonzero(group >= 0)
    count = int(group.max(initial=-1)) + 1
    lane, group_rank = np.zeros(count, np.int64), np.full(count, program.num_nodes)
    lane[group[computed]] = position[computed]
    np.minimum.at(group_rank, group[computed], (ranks(plan) if rank is None else rank)[computed])
    results = np.unique([each.node for each in program.outputs if isinstance(each, Reference)]).astype(np.int64)
    home = _homes(program, group, results, memory_of_device[position])
    own = None if own_bytes is None else own_bytes[position, np.arange(program.num_nodes)]
    transient = transient_bytes(program.graph.edges, group, results, allocated, own)
    work = Work(program.graph.edges, group, lane, group_rank, home, results, program.output_bytes, transient, allocated)
    return within_limits(work, memories, devices)


def within_limits(work: Work, memories: Sequence[str], devices: Sequence[Device]) -> StreamProgram:
    """Lower arrays with copies as early as the memory limits of the devices allow. Where no delay of copies keeps the
    limits, they are exceeded by as little as possible.

    Args:
        work: what is lowered.
        memories: names.
        devices: the lanes that compute, with memory limits.
    """
    lane_memory = np.array([memories.index(device.memory) for device in devices])
    names = [device.name for device in devices]
    best = lowered(work, memories, names, lane_memory)
    limits = [least_memory_limit([each for each in devices if each.memory == name]) for name in memories]
    if all(limit is None for limit in limits):
        return best
    limit = np.array([np.iinfo(np.int64).max if each is None else each for each in limits])
    ahead, excess = np.zeros(len(memories), np.int64), _excess(best, limit)
    least = excess.sum()
    for distance in AHEAD:
        if not least:
            break
        ahead[excess > 0] = distance
        streams = lowered(work, memories, names, lane_memory, ahead)
        excess = _excess(streams, limit)
        if excess.sum() < least:
            best, least = streams, excess.sum()
    return best


def _excess(streams: StreamProgram, limit: Ints) -> Ints:
    """Bytes by which each memory can exceed its limit."""
    checked = check(streams)
    taken = [checked.peak_bytes[name] + checked.resident_bytes[name] for name in streams.memories]
    return np.maximum(np.array(taken) - limit, 0)


def transient_bytes(
    edges: Int64[np.ndarray, "2 edges"], group: Ints, results: Ints, allocated: Storages, own_bytes: Ints | None
) -> Ints:
    """What each group takes while it runs, beside the buffers of what it writes.

    Args:
        edges, group, results: as in `Work`.
        allocated: who allocates what, and which values lie in it.
        own_bytes: the most that each operation takes while it runs; its results alone if None.
    """
    made_bytes = np.bincount(allocated.made_by, allocated.num_bytes, len(group)).astype(np.int64)
    own = made_bytes if own_bytes is None else np.maximum(own_bytes, made_bytes)
    computed = np.flatnonzero(group >= 0)
    transient = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    np.add.at(transient, group[computed], (own - made_bytes)[computed])
    storage, holder = allocated.held
    stays = np.isin(holder, _crossing(edges, group, results))
    inner = np.setdiff1d(np.arange(len(allocated.num_bytes)), storage[stays])  # within a group alone
    np.add.at(transient, group[allocated.made_by[inner]], allocated.num_bytes[inner])
    return transient


def _groups(program: Program, plan: Plan, position: Ints) -> Ints:
    """Group of each operation, numbered in the order of first nodes; each alone unless the plan fuses it."""
    computed = np.array([each.kind == "operation" for each in program.operations])
    label = np.arange(program.num_nodes)
    if plan.fusion is not None:
        fusion = legalise(program, plan.fusion, position)
        label = np.where(fusion >= 0, program.num_nodes + fusion, label)
    _, first, inverse = np.unique(label[computed], return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    group = np.full(program.num_nodes, -1)
    group[computed] = number[inverse.reshape(-1)]
    return group


def _homes(program: Program, group: Ints, results: Ints, memory: Ints) -> Ints:
    """Memory of each input that other memories get copies of: renewed parameters, where their new value is made, and
    data of the step, where the plan has them. Other parameters and constants lie wherever they are read: -1."""
    home = np.full(program.num_nodes, -1)
    inputs = np.arange(len(program.inputs))
    data = inputs[program.parameter_home[: len(inputs)] < 0]
    home[data] = memory[data]
    renewing = results[(group[results] >= 0) & (program.parameter_home[results] >= 0)]
    home[program.parameter_home[renewing]] = memory[renewing]
    return home


def _crossing(edges: Int64[np.ndarray, "2 edges"], group: Ints, results: Ints) -> Ints:
    """Operations whose values others than their group read, or the program returns."""
    crosses = (group[edges[0]] != group[edges[1]]) & (group[edges[0]] >= 0)
    return np.unique(np.concatenate([edges[0, crosses], results[group[results] >= 0]]))


class _Values(NamedTuple):
    """Where values are, and who reads them. A value in a memory has the key `node * memories + memory`.

    Args:
        home: (nodes); memory where each value is made or lies from the start; -1 for one that lies wherever it is read.
        written: nodes that groups write, increasing.
        read: key of the value that a group reads, in the memory of the group.
        reader: that group.
        residents, copies: keys of what lies there from the start, and of what is copied there, increasing.
    """

    home: np.ndarray
    written: np.ndarray
    read: np.ndarray
    reader: np.ndarray
    residents: np.ndarray
    copies: np.ndarray


class _Actions(NamedTuple):
    """Runs, copies and frees in the common order.

    Args:
        kind, argument, target: as in a stream program.
        lane: of each action.
    """

    kind: np.ndarray
    argument: np.ndarray
    target: np.ndarray
    lane: np.ndarray

    def at(self, order: Ints) -> _Actions:
        """The same in another order."""
        return _Actions(*(column[order] for column in self))


def lowered(
    work: Work, memories: Sequence[str], lanes: Sequence[str], lane_memory: Ints, ahead: Ints | None = None
) -> StreamProgram:
    """Lower arrays, see `stream_program`, which makes them of a program and a plan.

    Args:
        work: what is lowered.
        memories: names.
        lanes: names of the lanes that compute.
        lane_memory: memory of each of these.
        ahead: for each memory how many groups of a lane before their first reader copies arrive there; 0: as soon as
            they can. As soon as they can everywhere if None.
    """
    count, num_groups = len(memories), len(work.lane)
    values = _values(work, lane_memory[work.lane], count)
    home, written, copies = values.home, values.written, values.copies
    senders = np.unique(home[copies // count])
    place = _order(work)
    anchor = _anchors(work, values, place, np.zeros(count, np.int64) if ahead is None else ahead)
    tasks, run_task, copy_task = _tasks(work, values, place, senders, len(lanes), count, anchor)
    # Values that the run makes, with the task that writes each, and all reads of them.
    made = np.unique(np.concatenate([written * count + home[written], copies]))
    writer = np.empty(len(made), np.int64)
    writer[np.searchsorted(made, written * count + home[written])] = run_task[work.group[written]]
    writer[np.searchsorted(made, copies)] = copy_task
    sent = copies // count * count + home[copies // count]
    value = _positions(made, np.concatenate([values.read, sent]))
    reader = np.concatenate([run_task[values.reader], copy_task])[value >= 0]
    value = value[value >= 0]
    # Actions: tasks, and frees behind the task that knows all readers of each value to be done.
    results = work.results * count + home[work.results]
    is_result = _positions(np.sort(results), made) >= 0
    freed, stays = np.flatnonzero(~is_result), np.flatnonzero(is_result)
    holds, buffer_bytes = _buffers(work, made, home, count)
    is_late = anchor >= 0
    late, awaited = copy_task[is_late], run_task[anchor[is_late]]
    task_needs = np.stack([np.append(reader, late), np.append(writer[value], awaited)])
    behind = behind_readers(tasks.lane, task_needs, value, reader, writer, holds, stays)
    num_tasks, num_frees, made_node = len(tasks.kind), len(freed), made // count
    frees = _Actions(np.full(num_frees, FREE), made_node[freed], np.full(num_frees, -1), tasks.lane[behind[freed]])
    order = np.argsort(np.concatenate([2 * np.arange(num_tasks), 2 * behind[freed] + 1]), kind="stable")
    number = _inverse(order)
    free = np.full(len(made), -1)
    free[freed] = number[num_tasks:]
    is_freed = free[value] >= 0
    freed_behind = rows(behind[freed], free[freed], num_tasks)
    size = np.diff(freed_behind.bounds)[awaited]
    start = freed_behind.bounds[awaited] - np.cumsum(size) + size
    room = freed_behind.items[np.repeat(start, size) + np.arange(size.sum())]
    needs = np.concatenate([
        number[task_needs],
        np.stack([number[np.repeat(late, size)], room]),
        np.stack([free[value[is_freed]], number[reader[is_freed]]]),
        frees_of_shared(holds, free, len(buffer_bytes)),
    ], axis=1)  # fmt: skip
    needs = needs[:, np.lexsort((-needs[1], needs[0]))]
    actions = _Actions(*map(np.concatenate, zip(tasks, frees, strict=True))).at(order)
    names = (*lanes, *(f"copies of {memories[sender]}" for sender in senders.tolist()))
    bounds, kind, argument, target = _steps(actions, rows(needs[0], needs[1], len(order)), len(names))
    computed = np.flatnonzero(work.group >= 0)
    read = values.read // count
    return StreamProgram(
        tuple(memories), names, np.concatenate([lane_memory, senders]).astype(np.int64), bounds, kind, argument, target,
        members=rows(work.group[computed], computed, num_groups), reads=rows(values.reader, read, num_groups),
        writes=rows(work.group[written], written, num_groups), residents=np.stack(np.divmod(values.residents, count)),
        results=np.stack(np.divmod(results, count)), made=np.stack(np.divmod(made, count)), holds=holds,
        buffer_bytes=buffer_bytes, transient_bytes=work.transient_bytes,
        resident_bytes=work.output_bytes[values.residents // count],
    )  # fmt: skip


def _values(work: Work, group_memory: Ints, count: int) -> _Values:
    """Values in `count` memories, of groups that are in these memories."""
    nodes, num_groups = len(work.group), len(work.lane)
    crosses = (work.group[work.edges[0]] != work.group[work.edges[1]]) & (work.group[work.edges[1]] >= 0)
    pairs = np.unique(work.edges[0, crosses] * num_groups + work.group[work.edges[1, crosses]])
    node, reader = np.divmod(pairs, num_groups) if num_groups else (pairs, pairs)
    read = node * count + group_memory[reader]
    computed = np.flatnonzero(work.group >= 0)
    home = work.home.copy()
    home[computed] = group_memory[work.group[computed]]
    everywhere = (work.group[node] < 0) & (work.home[node] < 0)
    # An input that is a result has a home: the first memory that reads it, or the first of all.
    is_result, first = np.zeros(nodes, bool), np.full(nodes, count)
    is_result[work.results] = True
    np.minimum.at(first, node, group_memory[reader])
    fixed = np.flatnonzero((work.group < 0) & is_result & (home < 0))
    home[fixed] = np.where(first[fixed] < count, first[fixed], 0)
    at_home = np.flatnonzero((work.group < 0) & (home >= 0) & (is_result | (first < count)))
    return _Values(
        home, _crossing(work.edges, work.group, work.results), read, reader,
        residents=np.unique(np.concatenate([read[everywhere], at_home * count + home[at_home]])),
        copies=np.unique(read[~everywhere & (home[node] != group_memory[reader])]),
    )  # fmt: skip


def _anchors(work: Work, values: _Values, place: Ints, ahead: Ints) -> Ints:
    """For each copy the group that it waits for, so as not to lie in its memory too early; -1 if it need not.

    Args:
        place: of each group in the common order.
        ahead: as in `lowered`.
    """
    node, destination = np.divmod(values.copies, len(ahead))
    group = np.full(len(node), -1)
    if not ahead.any() or not len(node):
        return group
    in_lanes = np.lexsort((place, work.lane))  # groups lane by lane, in their order
    at = _inverse(in_lanes)
    first = _first_readers(values, place)
    reader = np.where(first < len(place), _inverse(place)[np.minimum(first, len(place) - 1)], -1)
    before = at[reader] - ahead[destination]
    candidate = in_lanes[np.maximum(before, 0)]
    made_at = np.where(work.group[node] >= 0, place[work.group[node]], -1)
    waits = (ahead[destination] > 0) & (reader >= 0) & (before >= 0)
    waits &= (work.lane[candidate] == work.lane[reader]) & (place[candidate] > made_at)
    return np.where(waits, candidate, -1)


def _first_readers(values: _Values, place: Ints) -> Ints:
    """Place of the first group that reads each copy; their number if none does."""
    first = np.full(len(values.copies), len(place))
    copy = _positions(values.copies, values.read)
    np.minimum.at(first, copy[copy >= 0], place[values.reader[copy >= 0]])
    return first


def _tasks(
    work: Work, values: _Values, place: Ints, senders: Ints, num_lanes: int, count: int, anchor: Ints
) -> tuple[_Actions, Ints, Ints]:
    """Runs and copies in the common order, and the place in it of each group and of each copy. A copy stands behind the
    group that makes its value, or that it waits for; of several, the one that is read first stands first."""
    num_groups = len(work.lane)
    node, destination = np.divmod(values.copies, count)
    made_at = np.where(work.group[node] >= 0, place[work.group[node]], -1)
    first_reader = _first_readers(values, place)
    moment = np.concatenate([2 * place, 2 * np.where(anchor >= 0, place[anchor], made_at) + 1])
    order = np.lexsort((np.concatenate([np.zeros(num_groups, np.int64), first_reader]), moment))
    tasks = _Actions(
        np.repeat([RUN, COPY], [num_groups, len(node)]),
        np.concatenate([np.arange(num_groups), node]),
        np.concatenate([np.full(num_groups, -1), destination]),
        np.concatenate([work.lane, num_lanes + np.searchsorted(senders, values.home[node])]),
    )
    task = _inverse(order)
    return tasks.at(order), task[:num_groups], task[num_groups:]


def _order(work: Work) -> Ints:
    """Place of each group in an order in which every value is made before it is read; of the groups that can come next
    the one of least rank does."""
    num_groups = len(work.rank)
    both = (work.group[work.edges[0]] >= 0) & (work.group[work.edges[1]] >= 0)
    producer, consumer = work.group[work.edges[0, both]], work.group[work.edges[1, both]]
    crosses = producer != consumer
    producer, consumer = producer[crosses], consumer[crosses]
    # By rank, groups often are in such an order already.
    by_rank = np.argsort(work.rank)
    place = _inverse(by_rank)
    if (place[producer] < place[consumer]).all():
        return place
    consumers = rows(producer, consumer, num_groups).lists()
    waiting = np.bincount(consumer, minlength=num_groups).tolist()
    number, group_of = place.tolist(), by_rank.tolist()
    ready = [number[group] for group in range(num_groups) if not waiting[group]]
    heapify(ready)
    order = []
    while ready:
        group = group_of[heappop(ready)]
        order.append(group)
        for each in consumers[group]:
            waiting[each] -= 1
            if not waiting[each]:
                heappush(ready, number[each])
    assert len(order) == num_groups, "groups depend on each other in a circle"
    return _inverse(np.array(order, np.int64))


def _positions(keys: Ints, wanted: Ints) -> Ints:
    """Where each of `wanted` is among increasing `keys`; -1 where it is not."""
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return np.where(keys[at] == wanted, at, -1) if len(keys) else np.full(len(wanted), -1)


def _inverse(order: Ints) -> Ints:
    """Place of each number in an order of all numbers 0, 1, ..."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _buffers(work: Work, made: Ints, home: Ints, count: int) -> tuple[Rows, Ints]:
    """Buffers of each value that a run makes, and their bytes: one for each storage, and one for each copy. A view lies
    in the storage of its base, or, where that was computed elsewhere, in the copy of its base."""
    nodes, allocated = len(work.group), len(work.storages.num_bytes)
    made_by = np.concatenate([work.storages.made_by, np.arange(nodes)])
    num_storages = len(made_by)  # those of inputs last
    holds = np.sort(np.concatenate([
        work.storages.held[1] * num_storages + work.storages.held[0], _held_of_inputs(work, allocated, num_storages)
    ]))  # fmt: skip
    holder, storage = np.divmod(holds, num_storages)
    # The first value that a node reads and that lies in the same storage is the one that it is a view of.
    edges = work.edges[:, np.lexsort((work.edges[0], work.edges[1]))]
    held = rows(holder, np.arange(len(holds)), nodes)
    size = np.diff(held.bounds)[edges[1]]
    edge = np.repeat(np.arange(edges.shape[1]), size)
    offset = np.arange(len(edge)) - np.repeat(np.cumsum(size) - size, size)
    child = held.items[held.bounds[edges[1, edge]] + offset]
    parent_hold = _positions(holds, edges[0, edge] * num_storages + storage[child])
    is_view = (parent_hold >= 0) & (made_by[storage[child]] != holder[child])
    child, parent_hold = child[is_view][::-1], parent_hold[is_view][::-1]
    # Roots: a storage by its first hold in a memory, or minus one more than the number of a copy.
    root = np.arange(len(holds))
    parent = root.copy()
    parent[child] = parent_hold
    moved = home[holder[parent]] != home[holder]
    at = _positions(made, holder[parent] * count + home[holder])
    local = np.where(moved, root, parent)
    while (local[local] != local).any():
        local = local[local]
    of_copy = np.where(moved[local], at[local], -1)
    # Numbers of buffers: first those of copies.
    node, memory = np.divmod(made, count)
    is_copy = home[node] != memory
    copy_number = np.cumsum(is_copy) - 1
    num_copies = int(is_copy.sum())
    value = _positions(made, holder * count + home[holder])
    exists = (value >= 0) & ((storage < allocated) | (of_copy >= 0))  # inputs themselves are never freed
    roots = np.unique(local[exists & (of_copy < 0)])
    number = np.where(of_copy >= 0, copy_number[of_copy], num_copies + np.searchsorted(roots, local))
    owners = np.concatenate([np.flatnonzero(is_copy), value[exists]])
    buffers = np.concatenate([np.arange(num_copies), number[exists]])
    size = np.concatenate([work.output_bytes[node[is_copy]], work.storages.num_bytes[storage[roots]]])
    return rows(owners, buffers, len(made)), size.astype(np.int64)


def _held_of_inputs(work: Work, first: int, num_storages: int) -> Ints:
    """Holds of inputs, constants and their views, whose storages no operation allocates, as keys of `_buffers`; storage
    `first + node` is that of an input."""
    nodes = len(work.group)
    in_input = np.bincount(work.storages.held[1], minlength=nodes) == 0
    in_input &= (work.group < 0) | (work.output_bytes > 0)
    edges = work.edges[:, in_input[work.edges[0]] & in_input[work.edges[1]]]
    base = np.arange(nodes)
    edges = edges[:, np.argsort(-edges[0], kind="stable")]
    base[edges[1]] = edges[0]  # the first of several
    while (base[base] != base).any():
        base = base[base]
    held = np.flatnonzero(in_input & (work.group[base] < 0))
    return held * num_storages + first + base[held]


def _steps(actions: _Actions, needs: Rows, lanes: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Actions with waits for the earlier ones that each needs, lane by lane: bounds, kinds, arguments and targets.

    Args:
        actions: in the common order.
        needs: of each action those that must be done before it, the latest first.
        lanes: their number.
    """
    count = len(actions.kind)
    waiter, awaited = _waits(actions.lane, needs.bounds, needs.items, lanes)
    recorded = np.unique(awaited)
    event = np.searchsorted(recorded, awaited)
    is_recorded: Bool[np.ndarray, " actions"] = np.zeros(count, bool)
    is_recorded[recorded] = True
    # Sorted by lane, action, and waits (0) before the action (1) before its record (2).
    of = np.concatenate([waiter, np.arange(count), recorded])
    part = np.repeat([0, 1, 2], [len(waiter), count, len(recorded)])
    kind = np.concatenate([np.full(len(waiter), WAIT), actions.kind, np.full(len(recorded), RECORD)])
    argument = np.concatenate([event, actions.argument, np.arange(len(recorded))])
    target = np.concatenate([np.full(len(waiter), -1), actions.target, np.full(len(recorded), -1)])
    order = np.lexsort((part, of, actions.lane[of]))
    bounds = np.zeros(lanes + 1, np.int64)
    np.cumsum(np.bincount(actions.lane[of], minlength=lanes), out=bounds[1:])
    return bounds, kind[order].astype(np.int64), argument[order].astype(np.int64), target[order].astype(np.int64)


@compiled
@no_type_check
def _waits(lane, bounds, needs, lanes):
    """Pairs (action that waits, action that it waits for) that are not implied by others: the transitive reduction.

    Args:
        lane: of each action, in the common order.
        bounds, needs: actions that must be done before each one, the latest first.
        lanes: their number.
    """
    count = len(lane)
    clocks = np.zeros((lanes, lanes), np.int32)  # actions of each lane that are done when a lane goes on
    done = np.zeros((count, lanes), np.int32)  # the same when an action is done
    position = np.zeros(count, np.int64)
    waiter, awaited = np.empty(len(needs), np.int64), np.empty(len(needs), np.int64)
    waits = 0
    for action in range(count):
        mine = lane[action]
        for at in range(bounds[action], bounds[action + 1]):
            need = needs[at]
            if clocks[mine, lane[need]] > position[need]:
                continue
            for each in range(lanes):
                clocks[mine, each] = max(clocks[mine, each], done[need, each])
            waiter[waits], awaited[waits] = action, need
            waits += 1
        position[action] = clocks[mine, mine]
        clocks[mine, mine] += 1
        done[action] = clocks[mine]
    return waiter[:waits], awaited[:waits]
