"""Compiled steps of annealing in a schedule: groups change device, and an operation its place in the order."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from partitioners.compiled import compiled

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
    node, span, low, home, order, position, before, used, is_tight, fixed_order, state, arrays, moved_groups, sources
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
    if devices > 1 and (fixed_order or draw < 0.7):
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
    if not fixed_order and (count == 0 or draw < 0.3):
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
