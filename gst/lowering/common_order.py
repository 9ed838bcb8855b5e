"""The work of a stream program in one common order, in which every value is made before it is read, and its memory."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from gst.lowering.calls import Storages
from gst.lowering.plan import COPY, RECORD, RUN, WAIT, Ints, Rows, inverse, rows
from gst.util.compiled import compiled


class Work(NamedTuple):
    """Program to be lowered, as arrays.

    Args:
        edges: (2, edges); producer -> consumer, each pair once.
        group: (nodes); group of each operation, -1 for inputs and constants.
        lane: (groups); lane of each group.
        rank: (groups), distinct; of the groups that can run, the one of least rank comes first.
        home: (nodes); memory of each input that is copied to its other readers; -1 if it lies wherever it is read.
        results: nodes whose values are returned, each once.
        output_bytes: (nodes); of the value of each node.
        transient_bytes: (groups); bytes that a group takes while it runs, in addition to its results.
        storages: allocations, and the values in them.
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


class Values(NamedTuple):
    """Memories and readers of values. A value in a memory has the key `node * memories + memory`.

    Args:
        home: (nodes); memory where each value is made or lies from the start; -1 if it lies wherever it is read.
        written: nodes that groups write, increasing.
        read, reader: key of each value that a group reads, in the memory of the group, and that group.
        residents, copies: keys of values that are there from the start, and of copies, increasing.
    """

    home: np.ndarray
    written: np.ndarray
    read: np.ndarray
    reader: np.ndarray
    residents: np.ndarray
    copies: np.ndarray


def values_of(work: Work, group_memory: Ints, count: int) -> Values:
    """Return the values in `count` memories, of groups that are in these memories."""
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
    return Values(
        home, crossing(work.edges, work.group, work.results), read, reader,
        residents=np.unique(np.concatenate([read[everywhere], at_home * count + home[at_home]])),
        copies=np.unique(read[~everywhere & (home[node] != group_memory[reader])]),
    )  # fmt: skip


def crossing(edges: Int64[np.ndarray, "2 edges"], group: Ints, results: Ints) -> Ints:
    """Return operations whose values are read outside their group, or returned by the program."""
    crosses = (group[edges[0]] != group[edges[1]]) & (group[edges[0]] >= 0)
    return np.unique(np.concatenate([edges[0, crosses], results[group[results] >= 0]]))


def positions(keys: Ints, wanted: Ints) -> Ints:
    """Return the position of each of `wanted` among increasing `keys`; -1 if it is not there."""
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return np.where(keys[at] == wanted, at, -1) if len(keys) else np.full(len(wanted), -1)


class Actions(NamedTuple):
    """Runs, copies and frees in the common order, with the lane of each; other fields as in a stream program."""

    kind: np.ndarray
    argument: np.ndarray
    target: np.ndarray
    lane: np.ndarray

    def at(self, order: Ints) -> Actions:
        return Actions(*(column[order] for column in self))


def order_of(work: Work) -> Ints:
    """Return the place of each group in an order in which every value is made before it is read. Of the groups that can
    come next the one of least rank does."""
    both = (work.group[work.edges[0]] >= 0) & (work.group[work.edges[1]] >= 0)
    # By rank, groups often are in such an order already.
    by_rank = np.argsort(work.rank)
    place = inverse(by_rank)
    edges = place[work.group[work.edges[:, both]]]
    if (edges[0] <= edges[1]).all():
        return place
    return inverse(by_rank[least_first(edges, len(place))])


def least_first(edges: Int64[np.ndarray, "2 edges"], count: int) -> Ints:
    """Return the numbers 0 .. count - 1 in an order in which each edge leads to a later one; of those that can come
    next the least does. Edges from a number to itself do not count.

    Examples:
        >>> least_first(np.array([[2, 2, 3], [0, 2, 1]]), 4).tolist()
        [2, 0, 3, 1]
    """
    producer, consumer = edges[:, edges[0] != edges[1]]
    consumers = rows(producer, consumer, count).lists()
    waiting = np.bincount(consumer, minlength=count).tolist()
    ready = [number for number in range(count) if not waiting[number]]  # ascending, which is a heap
    order = []
    while ready:
        order.append(heappop(ready))
        for each in consumers[order[-1]]:
            waiting[each] -= 1
            if not waiting[each]:
                heappush(ready, each)
    assert len(order) == count, "groups depend on each other in a circle"
    return np.array(order, np.int64)


def anchors(work: Work, values: Values, place: Ints, ahead: Ints) -> Ints:
    """Return for each copy the group that it waits for, so as not to take memory too early; -1 if it need not wait.

    Args:
        place: of each group in the common order.
        ahead: as in `lowered`.
    """
    node, destination = np.divmod(values.copies, len(ahead))
    group = np.full(len(node), -1)
    if not ahead.any() or not len(node):
        return group
    in_lanes = np.lexsort((place, work.lane))  # groups lane by lane, in their order
    at = inverse(in_lanes)
    first = _first_readers(values, place)
    reader = np.where(first < len(place), inverse(place)[np.minimum(first, len(place) - 1)], -1)
    before = at[reader] - ahead[destination]
    candidate = in_lanes[np.maximum(before, 0)]
    made_at = np.where(work.group[node] >= 0, place[work.group[node]], -1)
    waits = (ahead[destination] > 0) & (reader >= 0) & (before >= 0)
    waits &= (work.lane[candidate] == work.lane[reader]) & (place[candidate] > made_at)
    return np.where(waits, candidate, -1)


def _first_readers(values: Values, place: Ints) -> Ints:
    """Return the place of the first group that reads each copy; their number if none does."""
    first = np.full(len(values.copies), len(place))
    copy = positions(values.copies, values.read)
    np.minimum.at(first, copy[copy >= 0], place[values.reader[copy >= 0]])
    return first


def tasks_of(
    work: Work, values: Values, place: Ints, senders: Ints, num_lanes: int, count: int, anchor: Ints
) -> tuple[Actions, Ints, Ints]:
    """Return runs and copies in the common order, and the place in it of each group and of each copy. A copy follows
    the group that makes its value, or that it waits for."""
    num_groups = len(work.lane)
    node, destination = np.divmod(values.copies, count)
    made_at = np.where(work.group[node] >= 0, place[work.group[node]], -1)
    first_reader = _first_readers(values, place)
    moment = np.concatenate([2 * place, 2 * np.where(anchor >= 0, place[anchor], made_at) + 1])
    order = np.lexsort((np.concatenate([np.zeros(num_groups, np.int64), first_reader]), moment))
    tasks = Actions(
        np.repeat([RUN, COPY], [num_groups, len(node)]),
        np.concatenate([np.arange(num_groups), node]),
        np.concatenate([np.full(num_groups, -1), destination]),
        np.concatenate([work.lane, num_lanes + np.searchsorted(senders, values.home[node])]),
    )
    task = inverse(order)
    return tasks.at(order), task[:num_groups], task[num_groups:]


def steps_of(actions: Actions, needs: Rows, lanes: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the steps of each lane, with the waits that actions need: bounds, kinds, arguments and targets.

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
    """Return pairs (action that waits, action that it waits for) that others do not imply: the transitive reduction.

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


def transient_bytes(
    edges: Int64[np.ndarray, "2 edges"], group: Ints, results: Ints, allocated: Storages, own_bytes: Ints | None
) -> Ints:
    """Return the bytes that each group takes while it runs, in addition to the buffers that it writes. `own_bytes` is
    the most that each operation takes while it runs, its results alone if None; others are as in `Work`."""
    made_bytes = np.bincount(allocated.made_by, allocated.num_bytes, len(group)).astype(np.int64)
    own = made_bytes if own_bytes is None else np.maximum(own_bytes, made_bytes)
    computed = np.flatnonzero(group >= 0)
    transient = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    np.add.at(transient, group[computed], (own - made_bytes)[computed])
    storage, holder = allocated.held
    stays = np.isin(holder, crossing(edges, group, results))
    inner = np.setdiff1d(np.arange(len(allocated.num_bytes)), storage[stays])  # within a group alone
    np.add.at(transient, group[allocated.made_by[inner]], allocated.num_bytes[inner])
    return transient


def buffers_of(work: Work, made: Ints, home: Ints, count: int) -> tuple[Rows, Ints]:
    """Return the buffers of each value that a run makes, and their bytes: one for each storage, and one for each copy.
    A view lies in the storage of its base or in the copy of its base."""
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
    edge, child = held.of(edges[1])
    parent_hold = positions(holds, edges[0, edge] * num_storages + storage[child])
    is_view = (parent_hold >= 0) & (made_by[storage[child]] != holder[child])
    child, parent_hold = child[is_view][::-1], parent_hold[is_view][::-1]
    # Roots: a storage by its first hold in a memory, or minus one more than the number of a copy.
    root = np.arange(len(holds))
    parent = root.copy()
    parent[child] = parent_hold
    moved = home[holder[parent]] != home[holder]
    at = positions(made, holder[parent] * count + home[holder])
    local = np.where(moved, root, parent)
    while (local[local] != local).any():
        local = local[local]
    of_copy = np.where(moved[local], at[local], -1)
    # Numbers of buffers: first those of copies.
    node, memory = np.divmod(made, count)
    is_copy = home[node] != memory
    copy_number = np.cumsum(is_copy) - 1
    num_copies = int(is_copy.sum())
    value = positions(made, holder * count + home[holder])
    exists = (value >= 0) & ((storage < allocated) | (of_copy >= 0))  # inputs themselves are never freed
    roots = np.unique(local[exists & (of_copy < 0)])
    number = np.where(of_copy >= 0, copy_number[of_copy], num_copies + np.searchsorted(roots, local))
    owners = np.concatenate([np.flatnonzero(is_copy), value[exists]])
    buffers = np.concatenate([np.arange(num_copies), number[exists]])
    size = np.concatenate([work.output_bytes[node[is_copy]], work.storages.num_bytes[storage[roots]]])
    return rows(owners, buffers, len(made)), size.astype(np.int64)


def _held_of_inputs(work: Work, first: int, num_storages: int) -> Ints:
    """Return holds of inputs, constants and their views as keys of `buffers_of`; storage `first + node` is an
    input's."""
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


def behind_readers(
    lane: Ints, needs: Int64[np.ndarray, "2 needs"], value: Ints, reader: Ints, writer: Ints, holds: Rows, stays: Ints
) -> Ints:
    """Return the task after which each value is freed: the first on a lane of its readers that knows all of them to be
    done, so that no lane waits for a free; otherwise the last task of the last reader's lane. Values of one buffer are
    freed together.

    Args:
        lane: of each task.
        needs: (task, task that must be done before it).
        value, reader: of each read.
        writer: of each value.
        holds: buffers of each value.
        stays: values that are never freed, nor are their buffers given back.
    """
    count, lanes = len(writer), int(lane.max(initial=-1)) + 1
    owner, buffer = np.repeat(np.arange(count), np.diff(holds.bounds)), holds.items
    is_given_back = ~np.isin(buffer, buffer[np.isin(owner, stays)])
    owner, buffer = np.unique(np.stack([owner[is_given_back], buffer[is_given_back]]), axis=1)
    number = np.bincount(owner, minlength=count)
    is_one, is_several = number[owner] == 1, number[owner] > 1
    together = np.arange(count)
    together[owner[is_one]] = count + buffer[is_one]
    num_sets = count + int(buffer.max(initial=-1)) + 1
    in_order = needs[:, np.lexsort((-needs[1], needs[0]))]
    by_task = rows(in_order[0], in_order[1], len(lane))
    # A set is touched by tasks that read a value of it, or make one that nobody reads.
    unread = np.setdiff1d(np.arange(count), value)
    touched = together[np.concatenate([unread, value])]
    task = np.concatenate([writer[unread], reader])

    def first_after(sets: Ints, tasks: Ints, frees: Bool[np.ndarray, " touches"]) -> Ints:
        keys, inverse = np.unique(sets * lanes + lane[tasks], return_inverse=True)
        last = np.zeros(len(keys), np.int64)
        np.maximum.at(last, inverse.reshape(-1), 2 * tasks + frees)
        bounds = np.searchsorted(keys, np.arange(num_sets + 1) * lanes)
        return _first_that_knows(lane, by_task.bounds, by_task.items, lanes, bounds, last >> 1, last & 1)

    behind = first_after(touched, task, np.zeros(len(task), bool))
    if is_several.any():
        before = behind[owner[is_several]]
        frees = np.arange(len(task) + len(before)) >= len(task)
        sets, tasks = np.append(touched, count + buffer[is_several]), np.append(task, before)
        in_buffer = sets >= count
        later = first_after(sets[in_buffer], tasks[in_buffer], frees[in_buffer])
        behind[count:] = later[count:]
    return behind[together]


@compiled
@no_type_check
def _knows(its, mine, lane, set_bounds, last, frees, clocks, position):
    """True if a lane knows all tasks of a set to be done, and the frees behind them."""
    for each in range(set_bounds[its], set_bounds[its + 1]):
        other = last[each]
        if clocks[mine, lane[other]] <= position[other] + (frees[each] and lane[other] != mine):
            return False
    return True


@compiled
@no_type_check
def _first_that_knows(lane, bounds, needs, lanes, set_bounds, last, frees):
    """Return for each set of tasks the first task on a lane of one of them after which all are surely done.

    Args:
        lane, bounds, needs, lanes: of all tasks, see `_waits`.
        set_bounds, last: the last task of a set on each of its lanes, set by set.
        frees: 1 if the free after that task must be done too, as the next task of its lane shows.
    """
    count, sets = len(lane), len(set_bounds) - 1
    clocks = np.zeros((lanes, lanes), np.int32)
    done = np.zeros((count, lanes), np.int32)
    position = np.zeros(count, np.int64)
    behind, latest = np.full(sets, -1), np.full(sets, -1)
    # Sets that end with each task; then, for each lane, those that it may learn of.
    ending, following = np.full(count, -1), np.full(sets, -1)
    for each in range(sets):
        for at in range(set_bounds[each], set_bounds[each + 1]):
            latest[each] = max(latest[each], last[at])
        if latest[each] >= 0:
            following[each] = ending[latest[each]]
            ending[latest[each]] = each
    head, after, entry = np.full(lanes, -1), np.full(len(last), -1), np.zeros(len(last), np.int64)
    entries = 0
    last_of_lane = np.full(lanes, -1)
    for task in range(count):
        mine = lane[task]
        learns = False
        for at in range(bounds[task], bounds[task + 1]):
            need = needs[at]
            if clocks[mine, lane[need]] <= position[need]:
                learns = True
                for each in range(lanes):
                    clocks[mine, each] = max(clocks[mine, each], done[need, each])
        position[task] = clocks[mine, mine]
        clocks[mine, mine] += 1
        done[task] = clocks[mine]
        last_of_lane[mine] = task
        if learns:
            before, at = -1, head[mine]
            while at >= 0:
                its = entry[at]
                if behind[its] < 0 and _knows(its, mine, lane, set_bounds, last, frees, clocks, position):
                    behind[its] = task
                if behind[its] < 0:
                    before = at
                elif before < 0:
                    head[mine] = after[at]
                else:
                    after[before] = after[at]
                at = after[at]
        its = ending[task]
        while its >= 0:
            if _knows(its, mine, lane, set_bounds, last, frees, clocks, position):
                behind[its] = task
            else:
                for at in range(set_bounds[its], set_bounds[its + 1]):
                    entry[entries], after[entries] = its, head[lane[last[at]]]
                    head[lane[last[at]]] = entries
                    entries += 1
            its = following[its]
    for each in range(sets):
        if latest[each] >= 0 and behind[each] < 0:
            behind[each] = last_of_lane[lane[latest[each]]]
    return behind


def frees_of_shared(holds: Rows, free: Ints, count: int) -> Int64[np.ndarray, "2 needs"]:
    """Return pairs (last free, other free) of the values of each of `count` buffers, so that one step gives the buffer
    back. `free` is the action that frees each value, -1 for results, whose buffers are never given back."""
    buffer, of_holder = holds.items, np.repeat(free, np.diff(holds.bounds))
    is_given_back = ~np.isin(buffer, buffer[of_holder < 0])
    buffer, of_holder = buffer[is_given_back], of_holder[is_given_back]
    last = np.full(count, -1)
    np.maximum.at(last, buffer, of_holder)
    others = of_holder != last[buffer]
    return np.unique(np.stack([last[buffer[others]], of_holder[others]]), axis=1)
