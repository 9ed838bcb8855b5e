"""Lowering: a captured program and a plan for it -> the stream program that lanes of every memory run.

Groups are put into one order in which every value is made before it is read; each lane takes its groups in that order,
so no lanes wait for each other in a circle. Inputs lie where they are read; a renewed parameter lies where its new
value is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from gst.lowering.calls import Storages, storages
from gst.lowering.common_order import (
    Actions,
    Work,
    anchors,
    behind_readers,
    buffers_of,
    frees_of_shared,
    order_of,
    positions,
    steps_of,
    tasks_of,
    transient_bytes,
    values_of,
)
from gst.lowering.fusion import legalise
from gst.lowering.happens_before import check
from gst.lowering.plan import FREE, Ints, Plan, StreamProgram, inverse, positions_of_nodes, ranks, rows
from gst.machine.devices import Device, least_memory_limit, memories_of
from gst.programs import Program, Reference

AHEAD = (64, 16, 4, 2, 1)  # groups before its first reader at which a copy is made, where memory is short


def stream_program(
    program: Program,
    plan: Plan,
    devices: Sequence[Device],
    allocated: Storages | None = None,
    own_bytes: Int64[np.ndarray, "devices nodes"] | None = None,
    rank: Int64[np.ndarray, " nodes"] | None = None,
) -> StreamProgram:
    """Lower a plan: a lane for each device, and a lane of copies for each memory that another one reads from.

    A value that another memory reads is copied there once, as soon as it is made, or later where a memory limit would
    be exceeded. A value is freed on a lane of its readers without a wait for the free. A lane waits only where earlier
    waits do not imply it: the waits are the transitive reduction.

    Args:
        program: the program.
        plan: device, priority and fusion group of every operation; groups are made legal (`legalise`).
        devices: those that the plan may name; each is a lane of its memory.
        allocated: result of `gst.lowering.calls.storages`, which takes longer than lowering; computed if None.
        own_bytes: the most that each operation takes while it runs on each device; its results alone if None.
        rank: of two groups that can run, the one of least rank comes first; by the plan's priorities if None.

    Raises:
        ValueError: the plan is for another number of nodes, or names a device that is not in `devices`.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), (torch.zeros(8),))
        >>> devices = [Device(f"gpu:{number}", "cpu", (), 1, f"gpu:{number}", "example") for number in range(2)]
        >>> streams = stream_program(program, Plan(("gpu:0", "gpu:1"), np.array([0, 0, 1])), devices)
        >>> [streams.step_words(step) for step in range(3)]
        ['run 1', 'record event 0', 'wait event 1']
    """
    allocated = storages(program) if allocated is None else allocated
    position = positions_of_nodes(plan, program, devices)
    memories, memory_of_device = memories_of(devices)
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


class ProvenLowering:
    """Lowering of plans of one program (`stream_program`) with a proof that their lanes do not race."""

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self._program, self._devices = program, devices
        self._storages: Storages | None = None

    def __call__(self, plan: Plan) -> StreamProgram:
        positions_of_nodes(plan, self._program, self._devices)  # refused before storages are worked out
        self._storages = self._storages or storages(self._program)
        streams = stream_program(self._program, plan, self._devices, self._storages)
        check(streams)
        return streams


def within_limits(work: Work, memories: Sequence[str], devices: Sequence[Device]) -> StreamProgram:
    """Lower arrays with copies as early as the memory limits of the devices, the lanes that compute, allow. Limits that
    no delay of copies keeps are exceeded by as little as possible."""
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
    """Return the bytes by which each memory can exceed its limit."""
    checked = check(streams)
    taken = [checked.peak_bytes[name] + checked.resident_bytes[name] for name in streams.memories]
    return np.maximum(np.array(taken) - limit, 0)


def _groups(program: Program, plan: Plan, position: Ints) -> Ints:
    """Return the group of each operation, in the order of first nodes; each is alone unless the plan fuses it."""
    computed = np.array([each.kind == "operation" for each in program.operations])
    label = np.arange(program.num_nodes)
    if plan.fusion is not None:
        fusion = legalise(program, plan.fusion, position)
        label = np.where(fusion >= 0, program.num_nodes + fusion, label)
    _, first, index = np.unique(label[computed], return_index=True, return_inverse=True)
    group = np.full(program.num_nodes, -1)
    group[computed] = inverse(np.argsort(first))[index.reshape(-1)]
    return group


def _homes(program: Program, group: Ints, results: Ints, memory: Ints) -> Ints:
    """Return the memory from which other memories copy each input: renewed parameters and data; others lie
    wherever they are read: -1."""
    home = np.full(program.num_nodes, -1)
    inputs = np.arange(len(program.inputs))
    data = inputs[program.parameter_home[: len(inputs)] < 0]
    home[data] = memory[data]
    renewing = results[(group[results] >= 0) & (program.parameter_home[results] >= 0)]
    home[program.parameter_home[renewing]] = memory[renewing]
    return home


def lowered(
    work: Work, memories: Sequence[str], lanes: Sequence[str], lane_memory: Ints, ahead: Ints | None = None
) -> StreamProgram:
    """Lower arrays, which `stream_program` makes of a program and a plan.

    Args:
        memories, lanes: names, of lanes that compute.
        lane_memory: memory of each of these.
        ahead: for each memory the number of groups of a lane by which copies arrive before their first reader there; 0
            or None: as soon as they can.
    """
    count, num_groups = len(memories), len(work.lane)
    values = values_of(work, lane_memory[work.lane], count)
    home, written, copies = values.home, values.written, values.copies
    senders = np.unique(home[copies // count])
    place = order_of(work)
    anchor = anchors(work, values, place, np.zeros(count, np.int64) if ahead is None else ahead)
    tasks, run_task, copy_task = tasks_of(work, values, place, senders, len(lanes), count, anchor)
    # Values that the run makes, with the task that writes each, and all reads of them.
    made = np.unique(np.concatenate([written * count + home[written], copies]))
    writer = np.empty(len(made), np.int64)
    writer[np.searchsorted(made, written * count + home[written])] = run_task[work.group[written]]
    writer[np.searchsorted(made, copies)] = copy_task
    sent = copies // count * count + home[copies // count]
    value = positions(made, np.concatenate([values.read, sent]))
    reader = np.concatenate([run_task[values.reader], copy_task])[value >= 0]
    value = value[value >= 0]
    # Actions: tasks, and frees behind the task that knows all readers of each value to be done.
    results = work.results * count + home[work.results]
    is_result = positions(np.sort(results), made) >= 0
    freed, stays = np.flatnonzero(~is_result), np.flatnonzero(is_result)
    holds, buffer_bytes = buffers_of(work, made, home, count)
    is_late = anchor >= 0
    late, awaited = copy_task[is_late], run_task[anchor[is_late]]
    task_needs = np.stack([np.append(reader, late), np.append(writer[value], awaited)])
    behind = behind_readers(tasks.lane, task_needs, value, reader, writer, holds, stays)
    num_tasks, num_frees, made_node = len(tasks.kind), len(freed), made // count
    frees = Actions(np.full(num_frees, FREE), made_node[freed], np.full(num_frees, -1), tasks.lane[behind[freed]])
    order = np.argsort(np.concatenate([2 * np.arange(num_tasks), 2 * behind[freed] + 1]), kind="stable")
    number = inverse(order)
    free = np.full(len(made), -1)
    free[freed] = number[num_tasks:]
    is_freed = free[value] >= 0
    late_copy, freed_before = rows(behind[freed], free[freed], num_tasks).of(awaited)  # for its memory
    needs = np.concatenate([
        number[task_needs],
        np.stack([number[late[late_copy]], freed_before]),
        np.stack([free[value[is_freed]], number[reader[is_freed]]]),
        frees_of_shared(holds, free, len(buffer_bytes)),
    ], axis=1)  # fmt: skip
    needs = needs[:, np.lexsort((-needs[1], needs[0]))]
    actions = Actions(*map(np.concatenate, zip(tasks, frees, strict=True))).at(order)
    names = (*lanes, *(f"copies of {memories[sender]}" for sender in senders.tolist()))
    bounds, kind, argument, target = steps_of(actions, rows(needs[0], needs[1], len(order)), len(names))
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
