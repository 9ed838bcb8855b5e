"""Moves of annealing, compiled: groups to other devices, and operations to other places of the order."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from experiments.reproductions.public_problems.published import uniform
from gst.util.compiled import compiled

MOST_MOVED = 32  # groups in a step


@compiled
@no_type_check
def step_from(
    node, home, order, position, before, used, is_tight, fixed_order, state, arrays, moved_groups, sources
):  # fmt: skip
    """Change `home` and `order` by a step that begins at a node; how many groups changed their device, the place that
    an operation left and the one it came to (-1 if none), and the first place from which on the plan is another.

    The number of groups is -1, and nothing is changed, if the step is not admitted or does nothing.

    Args:
        home, order: of the plan, written; `position` of each node in `order` too.
        before: the node that ran before each on its device, or -1.
        used: of each memory, written.
        is_tight: whether memories have limits.
        fixed_order: whether the order says nothing.
        moved_groups, sources: groups that changed their device, and where they were, `MOST_MOVED` of each, written.
    """
    nodes, devices = len(home), arrays.times.shape[0]
    count, origin, to, first = 0, -1, -1, nodes
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
            other = np.int64(uniform(state) * nodes)
            if home[other] == target and arrays.groups[other] != arrays.groups[node]:
                count = _give(arrays.groups[other], old, home, used, arrays, moved_groups, sources, count)
        elif is_tight and kind < 0.3:  # memories are full: some more change places
            for _ in range(2):
                other = np.int64(uniform(state) * nodes)
                group, anywhere = arrays.groups[other], np.int64(uniform(state) * devices)
                count = _give(group, anywhere, home, used, arrays, moved_groups, sources, count)
        while kind > 0.7 and count < MOST_MOVED:  # those on a random walk go along
            other = _neighbour(other, state, arrays)
            if home[other] != target:
                count = _give(arrays.groups[other], target, home, used, arrays, moved_groups, sources, count)
            kind *= 0.9
        able = True
        for number in range(count):
            group = moved_groups[number]
            for where in range(arrays.member_indptr[group], arrays.member_indptr[group + 1]):
                member = arrays.members[where]
                able = able and arrays.times[home[member], member] < np.inf
                first = min(first, position[member])
            device = home[arrays.members[arrays.member_indptr[group]]]
            able = able and used[device] <= arrays.limits[device]
        if not able:
            take_back(home, used, arrays, moved_groups, sources, count)
            return -1, origin, to, first
    if not fixed_order and (count == 0 or draw < 0.3):
        low, high, origin = 0, nodes - 1, position[node]
        for where in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
            low = max(low, position[arrays.producers[where]] + 1)
        for where in range(arrays.indptr[node], arrays.indptr[node + 1]):
            high = min(high, position[arrays.consumers[where]] - 1)
        blocks = before[node]
        if count == 0 and blocks >= 0 and position[blocks] >= low and uniform(state) < 0.5:
            to = position[blocks]
        else:
            to = low + np.int64(uniform(state) * (high - low + 1))
        if to == origin and count == 0:
            return -1, origin, to, first
        rotate(order, position, origin, to)
        first = min(first, min(origin, to))
    return count, origin, to, first


@compiled
@no_type_check
def _neighbour(node, state, arrays):
    """A producer or a consumer of a node, drawn; the node itself if it has none."""
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
    """Give a group to a device and note whence it came; how many were given so far."""
    source = home[arrays.members[arrays.member_indptr[group]]]
    for where in range(arrays.member_indptr[group], arrays.member_indptr[group + 1]):
        home[arrays.members[where]] = target
    used[source] -= arrays.sizes[group]
    used[target] += arrays.sizes[group]
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
