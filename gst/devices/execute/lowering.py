"""Lowering: a captured program and a plan for it -> the stream program that lanes of every memory run.

Groups are put into one order in which every value is made before it is read; each lane takes its groups in that order,
so no lanes ever wait for each other in a circle.

- A value that another memory reads is copied there once, by the lane of copies of the memory where it is made, as soon
  as it is made; copies that are ready at once go in the order in which they are read.
- Inputs and constants lie where they are read. A parameter that the step renews lies where its new value is made, so
  that the next step finds it there, and is copied to other readers like any value; so are the data of the step.
- A value is freed behind its last reader in the order, on the lane of that reader, which waits for the other readers.
- A lane waits only where what it did and waited for before does not imply it already: since steps are lowered in the
  common order, and of several waits the latest in that order first, what is left is the transitive reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from gst.devices.describe.machine import Device
from gst.devices.execute.costs import Storages, storages
from gst.devices.execute.stream_program import COPY, FREE, RECORD, RUN, WAIT, Ints, Rows, StreamProgram, rows
from gst.devices.fusion.legality import legalise
from gst.devices.plan import Plan, positions_of_nodes, ranks
from gst.programs import Program, Reference
from partitioners.compiled import compiled


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
    made_bytes = np.bincount(allocated.made_by, allocated.num_bytes, program.num_nodes).astype(np.int64)
    own = made_bytes if own_bytes is None else np.maximum(own_bytes[position, np.arange(program.num_nodes)], made_bytes)
    transient = np.zeros(count, np.int64)
    np.add.at(transient, group[computed], (own - made_bytes)[computed])
    storage, holder = allocated.held
    stays = np.isin(holder, _crossing(program.graph.edges, group, results))
    inner = np.setdiff1d(np.arange(len(allocated.num_bytes)), storage[stays])  # within a group alone
    np.add.at(transient, group[allocated.made_by[inner]], allocated.num_bytes[inner])
    work = Work(program.graph.edges, group, lane, group_rank, home, results, program.output_bytes, transient, allocated)
    return lowered(work, memories, [device.name for device in devices], memory_of_device)


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


class _Actions(NamedTuple):
    """Runs, copies and frees in the common order, each with the earlier ones that must be done before it.

    Args:
        kind, argument, target: as in a stream program.
        lane: of each action.
        needs: actions that must be done before each, in decreasing order.
    """

    kind: np.ndarray
    argument: np.ndarray
    target: np.ndarray
    lane: np.ndarray
    needs: Rows


def lowered(work: Work, memories: Sequence[str], lanes: Sequence[str], lane_memory: Ints) -> StreamProgram:
    """Lower arrays, see `stream_program`, which makes them of a program and a plan.

    Args:
        work: what is lowered.
        memories: names.
        lanes: names of the lanes that compute.
        lane_memory: memory of each of these.
    """
    count, nodes = len(memories), len(work.group)
    group_memory = lane_memory[work.lane]
    computed = np.flatnonzero(work.group >= 0)
    place = _order(work)
    # Reads of groups: (node, group), each pair once.
    crosses = (work.group[work.edges[0]] != work.group[work.edges[1]]) & (work.group[work.edges[1]] >= 0)
    num_groups = len(work.lane)
    pairs = np.unique(work.edges[0, crosses] * num_groups + work.group[work.edges[1, crosses]])
    read, reader = np.divmod(pairs, num_groups) if num_groups else (pairs, pairs)
    written = _crossing(work.edges, work.group, work.results)
    is_result = np.zeros(nodes, bool)
    is_result[work.results] = True
    # Where every value is: resident, made by its group, or copied.
    home = work.home.copy()
    home[computed] = group_memory[work.group[computed]]
    fixed = np.flatnonzero((work.group < 0) & is_result & (home < 0))
    first_read = np.full(nodes, count)
    np.minimum.at(first_read, read, group_memory[reader])
    home[fixed] = np.where(first_read[fixed] < count, first_read[fixed], 0)  # a result that is nowhere else
    key = read * count + group_memory[reader]  # of the value that each read is of
    anywhere = (work.group[read] < 0) & (work.home[read] < 0)
    needed = (work.group < 0) & (home >= 0) & (is_result | (first_read < count))
    residents = np.unique(np.concatenate([key[anywhere], np.flatnonzero(needed) * count + home[needed]]))
    away = ~anywhere & (home[read] != group_memory[reader])
    copies = np.unique(key[away])
    copied, destination = copies // count, copies % count
    # Tasks, which are runs and copies, in the common order.
    source = home[copied]
    senders = np.unique(source)
    copy_lane = np.full(count, -1)
    copy_lane[senders] = len(lanes) + np.arange(len(senders))
    of_copied = np.where(work.group[copied] >= 0, place[work.group[copied]], -1)
    first_reader = np.full(len(copies), num_groups)
    np.minimum.at(first_reader, np.searchsorted(copies, key[away]), place[reader[away]])
    moment = np.concatenate([2 * place, 2 * of_copied + 1])
    urgency = np.concatenate([np.zeros(num_groups, np.int64), first_reader])
    order = np.lexsort((urgency, moment))
    task = np.empty(len(order), np.int64)
    task[order] = np.arange(len(order))
    run_task, copy_task = task[:num_groups], task[num_groups:]
    # Values that the run makes, and the tasks that write and read them.
    made = np.unique(np.concatenate([written * count + home[written], copies]))
    writer = np.empty(len(made), np.int64)
    writer[np.searchsorted(made, written * count + home[written])] = run_task[work.group[written]]
    writer[np.searchsorted(made, copies)] = copy_task
    sent = copied * count + source
    all_keys, all_readers = np.concatenate([key, sent]), np.concatenate([run_task[reader], copy_task])
    of_made = _positions(made, all_keys)
    readers, values = all_readers[of_made >= 0], of_made[of_made >= 0]
    last = writer.copy()
    np.maximum.at(last, values, readers)
    results = work.results * count + home[work.results]
    freed = np.flatnonzero(_positions(np.sort(results), made) < 0)
    # Actions: tasks, and frees behind the last task that reads each value.
    num_tasks, num_frees = len(order), len(freed)
    action_order = np.argsort(np.concatenate([2 * np.arange(num_tasks), 2 * last[freed] + 1]), kind="stable")
    action = np.empty(len(action_order), np.int64)
    action[action_order] = np.arange(len(action_order))
    task_action, free_action = action[:num_tasks], action[num_tasks:]
    free_of = np.full(len(made), -1)
    free_of[freed] = free_action
    task_lane = np.concatenate([work.lane, copy_lane[source]])[order]
    task_kind = np.concatenate([np.full(num_groups, RUN), np.full(len(copies), COPY)])[order]
    task_argument = np.concatenate([np.arange(num_groups), copied])[order]
    task_target = np.concatenate([np.full(num_groups, -1), destination])[order]
    made_node, made_memory = np.divmod(made, count)
    holds, buffer_bytes = _buffers(work, made, home, count)
    is_freed = free_of[values] >= 0
    owner, holder = np.repeat(np.arange(len(made)), np.diff(holds.bounds)), holds.items
    shared = free_of[owner] >= 0
    shared &= ~np.isin(holder, holder[~shared])  # a buffer that holds a result is never given back
    needs = np.concatenate([
        np.stack([task_action[readers], task_action[writer[values]]]),
        np.stack([free_of[values[is_freed]], task_action[readers[is_freed]]]),
        _frees_of_shared(holder[shared], free_of[owner[shared]], len(buffer_bytes)),
    ], axis=1)  # fmt: skip
    needs = needs[:, np.lexsort((-needs[1], needs[0]))]
    actions = _Actions(
        np.concatenate([task_kind, np.full(num_frees, FREE)])[action_order],
        np.concatenate([task_argument, made_node[freed]])[action_order],
        np.concatenate([task_target, np.full(num_frees, -1)])[action_order],
        np.concatenate([task_lane, task_lane[last[freed]]])[action_order],
        rows(needs[0], needs[1], len(action_order)),
    )
    names = (*lanes, *(f"copies of {memories[sender]}" for sender in senders.tolist()))
    bounds, kind, argument, target = _steps(actions, len(names))
    return StreamProgram(
        tuple(memories), names, np.concatenate([lane_memory, senders]).astype(np.int64), bounds, kind, argument, target,
        members=rows(work.group[computed], computed, num_groups), reads=rows(reader, read, num_groups),
        writes=rows(work.group[written], written, num_groups), residents=np.stack(np.divmod(residents, count)),
        results=np.stack(np.divmod(results, count)), made=np.stack([made_node, made_memory]), holds=holds,
        buffer_bytes=buffer_bytes, transient_bytes=work.transient_bytes,
        resident_bytes=work.output_bytes[residents // count],
    )  # fmt: skip


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
    place = np.empty(num_groups, np.int64)
    place[by_rank] = np.arange(num_groups)
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
    place[order] = np.arange(num_groups)
    return place


def _positions(keys: Ints, wanted: Ints) -> Ints:
    """Where each of `wanted` is among increasing `keys`; -1 where it is not."""
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return np.where(keys[at] == wanted, at, -1) if len(keys) else np.full(len(wanted), -1)


def _frees_of_shared(buffer: Ints, free: Ints, count: int) -> Int64[np.ndarray, "2 needs"]:
    """The last free of the values of each buffer waits for the others, so that one step gives the buffer back."""
    last = np.full(count, -1)
    np.maximum.at(last, buffer, free)
    others = free != last[buffer]
    return np.unique(np.stack([last[buffer[others]], free[others]]), axis=1)


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


def _steps(actions: _Actions, lanes: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Actions with the waits and records that are needed, lane by lane: bounds, kinds, arguments and targets."""
    count = len(actions.kind)
    waiter, awaited = _waits(actions.lane, actions.needs.bounds, actions.needs.items, lanes)
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
