"""List schedulers, compiled: in order, earliest time first, and operations on several cores. Device -1 = no place."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.placement.baselines.units import arrives, free_at, may_take, take
from gst.simulation.event_kernel import pop, push
from gst.util.compiled import compiled


@compiled
@no_type_check
def place_the_rest(placement, arrays, places):
    """Place inputs and constants on the device of their unit, or where most memory is left."""
    groups = arrays.groups
    for node in range(len(placement)):
        if placement[node] >= 0:
            continue
        best, most = -1, -np.inf
        for device in range(len(arrays.memory)):
            room = places.room[arrays.memory[device]]
            if may_take(device, groups[node], arrays, places) and (best < 0 or room > most):
                best, most = device, room
        if best >= 0:
            take(best, groups[node], arrays, places)
            placement[node] = best


@compiled
@no_type_check
def place_in_order(order, what, places, home):
    """Place nodes in the order given, each on the device where its group would finish first: HEFT, if the order is
    that of upward ranks. Operations that take no time need no core.

    Args:
        order: all nodes, producers before consumers.
        what: `Scheduled`.
        places: `Places`, written.
        home: device of each computed node, written.

    Returns:
        True if every node has a device that can run it, within the limits of the memories.
    """
    arrays, groups = what.arrays, what.arrays.groups
    end, free = np.zeros(len(order)), np.zeros(what.use.shape[1])
    for node in order:
        if not what.computed[node]:
            continue
        group = groups[node]
        best, least, best_start = -1, np.inf, 0.0
        for device in range(len(what.use)):
            if not may_take(device, group, arrays, places):
                continue
            took = arrays.times[device, node]
            start = arrives(node, device, arrays, places, home, end, False)
            if took > 0:
                start = max(start, free_at(device, what, free))
            if places.device[group] < 0:
                took = places.times[device, group]
            if start + took < least:
                best, least, best_start = device, start + took, start
        if best < 0:
            return False
        take(best, group, arrays, places)
        arrives(node, best, arrays, places, home, end, True)
        took = arrays.times[best, node]
        home[node], end[node] = best, best_start + took
        for position in range(what.core_indptr[best], what.core_indptr[best + 1] if took > 0 else 0):
            free[what.cores[position]] = end[node]
    return True


@compiled
@no_type_check
def earliest_first(order, task, places, favourite):
    """Place the operation and device of the earliest start next, until all are placed.

    Each device offers an operation: the first in `order` of those whose values are there when it is free, otherwise the
    one whose values are there first. The offer of least start, plus the time that the fastest device would save, wins.

    If the last operation of a device has a favourite child (`favourite`, -1 for none) with all producers placed, which
    could start nowhere earlier, the device offers it; or, if it has to wait for it, an operation whose values are on
    all devices by then.

    Returns:
        Device of each node, and its turn; -1 for nodes that are not computed.
    """
    arrays, groups = task.arrays, task.arrays.groups
    nodes, devices, times = len(order), len(task.use), arrays.times
    placement, finish, turn = np.full(nodes, -1), np.zeros(nodes), np.full(nodes, -1)
    free = np.zeros(task.use.shape[1])
    place_in_order, waiting = np.empty(nodes, np.int64), np.diff(arrays.producer_indptr)
    place_in_order[order] = np.arange(nodes)
    fastest = np.full(places.times.shape[1], np.inf)
    for device in range(devices):
        for each in range(len(fastest)):
            fastest[each] = min(fastest[each], places.times[device, each])
    arrival = np.zeros((nodes, devices))
    there, num_there = np.empty((devices, nodes), np.int64), np.zeros(devices, np.int64)  # heaps of places in order
    coming, num_coming = np.empty((devices, nodes), np.int64), np.zeros(devices, np.int64)  # nodes
    last = np.full(devices, -1)
    left = 0
    for node in range(nodes):
        if task.computed[node]:
            left += 1
            if waiting[node] == 0:
                for device in range(devices):
                    coming[device, num_coming[device]] = node
                    num_coming[device] += 1
    count = 0
    while left:
        best, best_node, best_start, least = -1, -1, 0.0, np.inf
        for device in range(devices):
            now = free_at(device, task, free)
            offered, start = -1, np.inf
            position = 0
            while position < num_coming[device]:
                node = coming[device, position]
                possible = placement[node] < 0 and may_take(device, groups[node], arrays, places)
                if possible and arrival[node, device] > now:
                    if arrival[node, device] < start or (
                        arrival[node, device] == start and place_in_order[node] < place_in_order[offered]
                    ):
                        offered, start = node, arrival[node, device]
                    position += 1
                    continue
                if possible:
                    push(there[device], num_there[device], place_in_order[node])
                    num_there[device] += 1
                num_coming[device] -= 1
                coming[device, position] = coming[device, num_coming[device]]
            while num_there[device]:
                node = order[there[device, 0]]
                if placement[node] < 0 and may_take(device, groups[node], arrays, places):
                    offered, start = node, now
                    break
                pop(there[device], num_there[device])
                num_there[device] -= 1
            child = favourite[last[device]] if last[device] >= 0 else -1
            if (
                child >= 0
                and placement[child] < 0
                and waiting[child] == 0
                and may_take(device, groups[child], arrays, places)
            ):
                here, awake = max(arrival[child, device], now), True
                for other in range(devices):
                    awake = awake and here <= max(arrival[child, other], free_at(other, task, free))
                if awake:
                    offered, start = child, here
                    first = np.int64(nodes)
                    for position in range(num_there[device] if here > now else 0):
                        node = order[there[device, position]]
                        if (
                            there[device, position] < first
                            and placement[node] < 0
                            and arrival[node].max() <= now
                            and may_take(device, groups[node], arrays, places)
                        ):
                            first, offered, start = there[device, position], node, now
            if offered < 0:
                continue
            mine = groups[offered]
            lost = 0.0 if places.device[mine] >= 0 else places.times[device, mine] - fastest[mine]
            key = start + lost
            if key < least or (key == least and place_in_order[offered] < place_in_order[best_node]):
                best, best_node, best_start, least = device, offered, start, key
        if best < 0:
            return placement, turn
        take(best, groups[best_node], arrays, places)
        placement[best_node], turn[best_node] = best, count
        if len(places.lane_free):  # busier than when the operation became ready
            best_start = max(best_start, arrives(best_node, best, arrays, places, placement, finish, True))
        finish[best_node] = best_start + times[best, best_node]
        last[best] = best_node
        for position in range(task.core_indptr[best], task.core_indptr[best + 1]):
            free[task.cores[position]] = finish[best_node]
        count += 1
        left -= 1
        for position in range(arrays.indptr[best_node], arrays.indptr[best_node + 1]):
            node = arrays.consumers[position]
            waiting[node] -= 1
            if waiting[node] == 0:
                for device in range(devices):
                    arrival[node, device] = arrives(node, device, arrays, places, placement, finish, False)
                    coming[device, num_coming[device]] = node
                    num_coming[device] += 1
    place_the_rest(placement, arrays, places)
    return placement, turn


@compiled
@no_type_check
def with_widths(order, worker, own_core, delays, worthwhile, crowd, task, places):
    """Place operations event by event in time; returns as `earliest_first`.

    The first ready operation in `order` chooses among the devices that are worthwhile for its unit and those that leave
    each ready operation its share of the cores, `crowd` times. It takes the device of the earliest end; idle time of
    cores that wait for others counts while other operations are ready. If a core of the device is in use, its other
    cores are reserved until the next event.

    Args:
        task: with the helpers' delay in `times`, and without delays of threads in `fixed`.
        worker, own_core: thread of each device of the simulator, and core of each thread.
        delays: `gst.simulation.simulator.Contention`.
    """
    arrays, groups, times = task.arrays, task.arrays.groups, task.arrays.times
    use, first_core, core_of = task.use, task.core_indptr, task.cores
    nodes, devices, cores = len(order), len(use), use.shape[1]
    placement, turn, finish = np.full(nodes, -1), np.full(nodes, -1), np.zeros(nodes)
    place_in_order = np.empty(nodes, np.int64)
    place_in_order[order] = np.arange(nodes)
    width = np.zeros(devices)
    for device in range(devices):
        width[device] = use[device].sum()
    waiting = np.diff(arrays.producer_indptr)
    ready, num_ready = np.empty(nodes, np.int64), 0
    aside = np.empty(nodes, np.int64)
    running, ends = np.full(devices, -1), np.full(devices, np.inf)
    busy_until, in_use = np.zeros(cores), np.zeros(cores, np.bool_)
    covered, idle_since = np.zeros(len(own_core), np.bool_), np.zeros(len(own_core))
    left = 0
    for node in range(nodes):
        if task.computed[node]:
            left += 1
            if waiting[node] == 0:
                push(ready, num_ready, place_in_order[node])
                num_ready += 1
    now, waker, count = 0.0, -1, 0
    while left:
        kept = in_use.copy()
        num_aside = 0
        while num_ready and not kept.all():
            node = order[pop(ready, num_ready)]
            num_ready -= 1
            mine, others = groups[node], num_ready + num_aside
            best, least, best_end = -1, np.inf, 0.0
            for device in range(devices):
                wasteful = not worthwhile[device, mine] and width[device] * (others + 1) > crowd * cores
                if not may_take(device, mine, arrays, places) or (wasteful and places.device[mine] < 0):
                    continue
                start, is_kept = now, False
                for position in range(first_core[device], first_core[device + 1]):
                    core = core_of[position]
                    start = max(start, busy_until[core])
                    is_kept = is_kept or (kept[core] and not in_use[core])
                if is_kept:
                    continue
                idle = 0.0
                for position in range(first_core[device], first_core[device + 1] if others else 0):
                    idle += start - max(now, busy_until[core_of[position]])
                thread = worker[device]
                if thread == waker:
                    delay = delays.switch_us
                elif covered[thread] or start - idle_since[thread] > delays.spin_us:
                    delay = delays.wake_us
                else:
                    delay = delays.hand_over_us
                come = arrives(node, device, arrays, places, placement, finish, False)
                end = max(start, come) + delay + times[device, node]
                if end + idle < least:
                    best, least, best_end = device, end + idle, end
            wait = best < 0
            for position in range(first_core[best], first_core[best + 1] if best >= 0 else 0):
                wait = wait or in_use[core_of[position]]
                kept[core_of[position]] = True
            if wait:
                aside[num_aside] = node
                num_aside += 1
                continue
            take(best, mine, arrays, places)
            arrives(node, best, arrays, places, placement, finish, True)
            placement[node], turn[node], finish[node] = best, count, best_end
            running[best], ends[best] = node, best_end
            count += 1
            covered[worker[best]] = False
            for position in range(first_core[best], first_core[best + 1]):
                busy_until[core_of[position]], in_use[core_of[position]] = best_end, True
            for other in range(len(own_core)):
                if other != worker[best] and use[best, own_core[other]]:
                    covered[other] = True
        for position in range(num_aside):
            push(ready, num_ready, place_in_order[aside[position]])
            num_ready += 1
        first = ends.argmin()
        if ends[first] == np.inf:
            return placement, turn  # what is ready has room nowhere
        now, node = ends[first], running[first]
        running[first], ends[first] = -1, np.inf
        waker = worker[first]
        idle_since[waker] = now
        for position in range(first_core[first], first_core[first + 1]):
            in_use[core_of[position]] = False
        left -= 1
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            waiting[arrays.consumers[position]] -= 1
            if waiting[arrays.consumers[position]] == 0:
                push(ready, num_ready, place_in_order[arrays.consumers[position]])
                num_ready += 1
    place_the_rest(placement, arrays, places)
    return placement, turn
