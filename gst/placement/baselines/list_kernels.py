"""The loops of the list schedulers, compiled.

All of them take a task as `list_schedules.Arrays` holds it, and units as `units.Units`: the first operation of a unit
decides where the whole of it goes. A node that found no place is on device -1.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.devices.simulate.event_kernel import pop, push
from partitioners.compiled import compiled


@compiled
@no_type_check
def arrives(node, device, producer_indptr, producers, placement, finish, num_bytes, fixed, per_byte):
    """When all values that a node reads are at a device."""
    latest = 0.0
    for position in range(producer_indptr[node], producer_indptr[node + 1]):
        producer = producers[position]
        home = placement[producer]
        latest = max(latest, finish[producer] + fixed[home, device] + num_bytes[producer] * per_byte[home, device])
    return latest


@compiled
@no_type_check
def free_at(device, use, free):
    """When the last core of a device is free."""
    latest = 0.0
    for core in range(use.shape[1]):
        if use[device, core]:
            latest = max(latest, free[core])
    return latest


@compiled
@no_type_check
def may_take(device, unit, decided, unit_times, load, memory, room):
    """Can a unit go to a device, or is it there?"""
    if decided[unit] >= 0:
        return decided[unit] == device
    return unit_times[device, unit] < np.inf and load[unit] <= room[memory[device]]


@compiled
@no_type_check
def take(device, unit, decided, load, memory, room):
    """A unit goes to a device, if it is not there already."""
    if decided[unit] < 0:
        decided[unit] = device
        room[memory[device]] -= load[unit]


@compiled
@no_type_check
def place_the_rest(placement, unit, decided, unit_times, load, memory, room):
    """Nodes that take no time, inputs and constants, go where their unit is, or where there is most room."""
    for node in range(len(placement)):
        if placement[node] >= 0:
            continue
        best = -1
        for device in range(len(memory)):
            if may_take(device, unit[node], decided, unit_times, load, memory, room) and (
                best < 0 or room[memory[device]] > room[memory[best]]
            ):
                best = device
        if best >= 0:
            take(best, unit[node], decided, load, memory, room)
            placement[node] = best


@compiled
@no_type_check
def in_order(
    order, producer_indptr, producers, computed, times, num_bytes, fixed, per_byte, use,
    unit, unit_times, load, memory, room,
):  # fmt: skip
    """Each node of `order` goes where its unit would finish first, after all that was placed there before."""
    devices, room = len(use), room.copy()
    placement, finish = np.full(len(order), -1), np.zeros(len(order))
    decided, free = np.full(len(load), -1), np.zeros(use.shape[1])
    for node in order:
        if not computed[node]:
            continue
        mine = unit[node]
        best, least, best_start = -1, np.inf, 0.0
        for device in range(devices):
            if not may_take(device, mine, decided, unit_times, load, memory, room):
                continue
            start = arrives(node, device, producer_indptr, producers, placement, finish, num_bytes, fixed, per_byte)
            if times[device, node] > 0:
                start = max(start, free_at(device, use, free))
            end = start + (times[device, node] if decided[mine] >= 0 else unit_times[device, mine])
            if end < least:
                best, least, best_start = device, end, start
        if best < 0:
            return placement
        take(best, mine, decided, load, memory, room)
        placement[node] = best
        finish[node] = best_start + times[best, node]
        if times[best, node] > 0:
            for core in range(use.shape[1]):
                if use[best, core]:
                    free[core] = finish[node]
    place_the_rest(placement, unit, decided, unit_times, load, memory, room)
    return placement


@compiled
@no_type_check
def earliest_first(
    order, indptr, consumers, pending, producer_indptr, producers, computed, times, num_bytes, fixed, per_byte, use,
    unit, unit_times, load, memory, room, favourite,
):  # fmt: skip
    """Each device offers an operation: of those whose values are there when it is free the first in `order`, otherwise
    the one whose values are there first. The offer of the earliest start is taken, on devices of different speed that
    of the earliest start plus the time that the fastest device would save.

    A device whose last operation has a favourite child (`favourite`, -1 for none), all of whose producers are placed
    and which could start nowhere earlier, offers that, or, if it must wait for it, an operation whose values are
    everywhere by then.

    Returns:
        device of each node, and the turn in which it was placed, -1 for nodes that are not computed.
    """
    nodes, devices, room = len(order), len(use), room.copy()
    placement, finish, turn = np.full(nodes, -1), np.zeros(nodes), np.full(nodes, -1)
    decided, free = np.full(len(load), -1), np.zeros(use.shape[1])
    place_in_order = np.empty(nodes, np.int64)
    place_in_order[order] = np.arange(nodes)
    fastest = np.empty(len(load))
    for each in range(len(load)):
        fastest[each] = unit_times[:, each].min()
    waiting, arrival = pending.copy(), np.zeros((nodes, devices))
    there, num_there = np.empty((devices, nodes), np.int64), np.zeros(devices, np.int64)  # heaps of places in order
    coming, num_coming = np.empty((devices, nodes), np.int64), np.zeros(devices, np.int64)  # nodes
    last = np.full(devices, -1)
    left = 0
    for node in range(nodes):
        if computed[node]:
            left += 1
            if waiting[node] == 0:
                for device in range(devices):
                    coming[device, num_coming[device]] = node
                    num_coming[device] += 1
    count = 0
    while left:
        best, best_node, best_start, least = -1, -1, 0.0, np.inf
        for device in range(devices):
            now = free_at(device, use, free)
            offered, start = -1, np.inf
            position = 0
            while position < num_coming[device]:
                node = coming[device, position]
                possible = placement[node] < 0 and may_take(device, unit[node], decided, unit_times, load, memory, room)
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
                if placement[node] < 0 and may_take(device, unit[node], decided, unit_times, load, memory, room):
                    offered, start = node, now
                    break
                pop(there[device], num_there[device])
                num_there[device] -= 1
            child = favourite[last[device]] if last[device] >= 0 else -1
            if (
                child >= 0 and placement[child] < 0 and waiting[child] == 0
                and may_take(device, unit[child], decided, unit_times, load, memory, room)
            ):  # fmt: skip
                here, awake = max(arrival[child, device], now), True
                for other in range(devices):
                    awake = awake and here <= max(arrival[child, other], free_at(other, use, free))
                if awake:
                    offered, start = child, here
                    first = np.int64(nodes)
                    for position in range(num_there[device] if here > now else 0):
                        node = order[there[device, position]]
                        if (
                            there[device, position] < first and placement[node] < 0 and arrival[node].max() <= now
                            and may_take(device, unit[node], decided, unit_times, load, memory, room)
                        ):  # fmt: skip
                            first, offered, start = there[device, position], node, now
            if offered < 0:
                continue
            lost = 0.0 if decided[unit[offered]] >= 0 else unit_times[device, unit[offered]] - fastest[unit[offered]]
            key = start + lost
            if key < least or (key == least and place_in_order[offered] < place_in_order[best_node]):
                best, best_node, best_start, least = device, offered, start, key
        if best < 0:
            return placement, turn
        take(best, unit[best_node], decided, load, memory, room)
        placement[best_node], turn[best_node] = best, count
        finish[best_node] = best_start + times[best, best_node]
        last[best] = best_node
        for core in range(use.shape[1]):
            if use[best, core]:
                free[core] = finish[best_node]
        count += 1
        left -= 1
        for position in range(indptr[best_node], indptr[best_node + 1]):
            node = consumers[position]
            waiting[node] -= 1
            if waiting[node] == 0:
                for device in range(devices):
                    arrival[node, device] = arrives(
                        node, device, producer_indptr, producers, placement, finish, num_bytes, fixed, per_byte
                    )
                    coming[device, num_coming[device]] = node
                    num_coming[device] += 1
    place_the_rest(placement, unit, decided, unit_times, load, memory, room)
    return placement, turn


@compiled
@no_type_check
def with_widths(
    order, indptr, consumers, pending, producer_indptr, producers, computed, times, num_bytes, latency, per_byte, use,
    worker, own_core, switch_us, hand_over_us, wake_us, spin_us, worthwhile, crowd,
    unit, unit_times, load, memory, room,
):  # fmt: skip
    """Events in the order of time. Of the ready operations the first in `order` chooses among the devices that are
    worthwhile for its unit and those that give each ready operation its share of the cores, `crowd` times over. It
    takes the device of the earliest end, to which the time is added for which cores would have to wait for others
    while other operations are ready. If some core of that is in use, its other cores are kept for it until the next
    event.

    Args:
        worker: the thread that runs each device; own_core: of each thread. The delays are those of the simulator.
        worthwhile: which devices of each unit; at least one for each.

    Returns:
        device of each node, and the turn in which it began, -1 for nodes that are not computed.
    """
    nodes, devices, cores = len(order), len(use), use.shape[1]
    room = room.copy()
    placement, turn, finish = np.full(nodes, -1), np.full(nodes, -1), np.zeros(nodes)
    decided = np.full(len(load), -1)
    place_in_order = np.empty(nodes, np.int64)
    place_in_order[order] = np.arange(nodes)
    width = np.zeros(devices)
    for device in range(devices):
        width[device] = use[device].sum()
    waiting = pending.copy()
    ready, num_ready = np.empty(nodes, np.int64), 0
    aside = np.empty(nodes, np.int64)
    running, ends = np.full(devices, -1), np.full(devices, np.inf)
    busy_until, in_use = np.zeros(cores), np.zeros(cores, np.bool_)
    covered, idle_since = np.zeros(len(own_core), np.bool_), np.zeros(len(own_core))
    left = 0
    for node in range(nodes):
        if computed[node]:
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
            mine, others = unit[node], num_ready + num_aside
            best, least, best_end = -1, np.inf, 0.0
            for device in range(devices):
                if decided[mine] >= 0 and decided[mine] != device:
                    continue
                if decided[mine] < 0:
                    wasteful = not worthwhile[device, mine] and width[device] * (others + 1) > crowd * cores
                    if wasteful or unit_times[device, mine] == np.inf or load[mine] > room[memory[device]]:
                        continue
                start, is_kept = now, False
                for core in range(cores):
                    if use[device, core]:
                        start = max(start, busy_until[core])
                        is_kept = is_kept or (kept[core] and not in_use[core])
                if is_kept:
                    continue
                idle = 0.0
                for core in range(cores):
                    if use[device, core] and others:
                        idle += start - max(now, busy_until[core])
                thread = worker[device]
                if thread == waker:
                    delay = switch_us
                elif covered[thread] or start - idle_since[thread] > spin_us:
                    delay = wake_us
                else:
                    delay = hand_over_us
                come = arrives(
                    node, device, producer_indptr, producers, placement, finish, num_bytes, latency, per_byte
                )
                end = max(start, come) + delay + times[device, node]
                if end + idle < least:
                    best, least, best_end = device, end + idle, end
            wait = best < 0
            for core in range(cores):
                if best >= 0 and use[best, core]:
                    wait = wait or in_use[core]
                    kept[core] = True
            if wait:
                aside[num_aside] = node
                num_aside += 1
                continue
            if decided[mine] < 0:
                decided[mine] = best
                room[memory[best]] -= load[mine]
            placement[node], turn[node], finish[node] = best, count, best_end
            running[best], ends[best] = node, best_end
            count += 1
            covered[worker[best]] = False
            for core in range(cores):
                if use[best, core]:
                    busy_until[core], in_use[core] = best_end, True
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
        for core in range(cores):
            if use[first, core]:
                in_use[core] = False
        left -= 1
        for position in range(indptr[node], indptr[node + 1]):
            waiting[consumers[position]] -= 1
            if waiting[consumers[position]] == 0:
                push(ready, num_ready, place_in_order[consumers[position]])
                num_ready += 1
    place_the_rest(placement, unit, decided, unit_times, load, memory, room)
    return placement, turn
