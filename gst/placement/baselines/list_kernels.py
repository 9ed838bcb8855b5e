"""The loops of the list schedulers, compiled: the first operation of a unit decides where the whole of it goes.

A node for which there was no place is on device -1.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.devices.simulate.event_kernel import pop, push
from partitioners.compiled import compiled


class TaskArrays(NamedTuple):
    """Costs of a task, with edges between computed nodes only: values of inputs and constants are there from the start.

    Args:
        indptr, consumers: who reads the value of each node; `producer_indptr` and `producers` whose values it reads.
        times_us: of each operation alone on each device.
        fixed_us: from device to device, until the smallest value is there and its reader's thread has seen it.
        us_per_byte: from device to device.
        use: which device takes which core.
        core_indptr, cores: the same as the cores of each device, in compressed rows.
    """

    indptr: Int64[np.ndarray, " nodes_plus_one"]
    consumers: Int64[np.ndarray, " edges"]
    producer_indptr: Int64[np.ndarray, " nodes_plus_one"]
    producers: Int64[np.ndarray, " edges"]
    computed: Bool[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices nodes"]
    num_bytes: Float64[np.ndarray, " nodes"]
    fixed_us: Float64[np.ndarray, "devices devices"]
    us_per_byte: Float64[np.ndarray, "devices devices"]
    use: Bool[np.ndarray, "devices cores"]
    core_indptr: Int64[np.ndarray, " devices_plus_one"]
    cores: Int64[np.ndarray, " uses"]


class UnitArrays(NamedTuple):
    """Units and where they are; the kernels write `room` and `device`.

    Args:
        of: unit of each node.
        memory: of each device.
        room: bytes that are left in each memory.
        device: of each unit; -1 where it is not decided yet.
    """

    of: Int64[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices units"]
    load_bytes: Float64[np.ndarray, " units"]
    memory: Int64[np.ndarray, " devices"]
    room: Float64[np.ndarray, " memories"]
    device: Int64[np.ndarray, " units"]


class Threads(NamedTuple):
    """Threads of the simulator, and its delays between operations (`Contention`).

    Args:
        worker: thread of each device.
        own_core: of each thread.
    """

    worker: Int64[np.ndarray, " devices"]
    own_core: Int64[np.ndarray, " threads"]
    switch_us: float
    hand_over_us: float
    wake_us: float
    spin_us: float


@compiled
@no_type_check
def arrives(node, device, task, placement, finish):
    """When all values that a node reads are at a device."""
    latest = 0.0
    for position in range(task.producer_indptr[node], task.producer_indptr[node + 1]):
        producer = task.producers[position]
        home = placement[producer]
        moved = task.num_bytes[producer] * task.us_per_byte[home, device]
        latest = max(latest, finish[producer] + task.fixed_us[home, device] + moved)
    return latest


@compiled
@no_type_check
def free_at(device, task, free):
    """When the last core of a device is free."""
    latest = 0.0
    for position in range(task.core_indptr[device], task.core_indptr[device + 1]):
        latest = max(latest, free[task.cores[position]])
    return latest


@compiled
@no_type_check
def may_take(device, unit, units):
    """Whether a unit is on a device or can still go there."""
    if units.device[unit] >= 0:
        return units.device[unit] == device
    return units.times_us[device, unit] < np.inf and units.load_bytes[unit] <= units.room[units.memory[device]]


@compiled
@no_type_check
def take(device, unit, units):
    """Put a unit on a device, if it is not there already."""
    if units.device[unit] < 0:
        units.device[unit] = device
        units.room[units.memory[device]] -= units.load_bytes[unit]


@compiled
@no_type_check
def place_the_rest(placement, units):
    """Nodes that take no time, inputs and constants, go where their unit is, or where there is most room."""
    for node in range(len(placement)):
        if placement[node] >= 0:
            continue
        best, most = -1, -np.inf
        for device in range(len(units.memory)):
            room = units.room[units.memory[device]]
            if may_take(device, units.of[node], units) and (best < 0 or room > most):
                best, most = device, room
        if best >= 0:
            take(best, units.of[node], units)
            placement[node] = best


@compiled
@no_type_check
def in_order(order, task, units):
    """Each node of `order` goes where its unit would finish first, after all that was placed there before."""
    devices, times = len(task.use), task.times_us
    placement, finish = np.full(len(order), -1), np.zeros(len(order))
    free = np.zeros(task.use.shape[1])
    for node in order:
        if not task.computed[node]:
            continue
        mine = units.of[node]
        best, least, best_start = -1, np.inf, 0.0
        for device in range(devices):
            if not may_take(device, mine, units):
                continue
            start = arrives(node, device, task, placement, finish)
            if times[device, node] > 0:
                start = max(start, free_at(device, task, free))
            end = start + (times[device, node] if units.device[mine] >= 0 else units.times_us[device, mine])
            if end < least:
                best, least, best_start = device, end, start
        if best < 0:
            return placement
        take(best, mine, units)
        placement[node] = best
        finish[node] = best_start + times[best, node]
        if times[best, node] > 0:
            for position in range(task.core_indptr[best], task.core_indptr[best + 1]):
                free[task.cores[position]] = finish[node]
    place_the_rest(placement, units)
    return placement


@compiled
@no_type_check
def earliest_first(order, task, units, favourite):
    """Each device offers an operation: of those whose values are there when it is free the first in `order`, otherwise
    the one whose values are there first. The offer of the earliest start is taken, on devices of different speed that
    of the earliest start plus the time that the fastest device would save.

    A device whose last operation has a favourite child (`favourite`, -1 for none), all of whose producers are placed
    and which could start nowhere earlier, offers that, or, if it must wait for it, an operation whose values are
    everywhere by then.

    Returns:
        device of each node, and the turn in which it was placed, -1 for nodes that are not computed.
    """
    nodes, devices, times = len(order), len(task.use), task.times_us
    placement, finish, turn = np.full(nodes, -1), np.zeros(nodes), np.full(nodes, -1)
    free = np.zeros(task.use.shape[1])
    place_in_order = np.empty(nodes, np.int64)
    place_in_order[order] = np.arange(nodes)
    fastest = np.empty(len(units.load_bytes))
    for each in range(len(units.load_bytes)):
        fastest[each] = units.times_us[:, each].min()
    waiting, arrival = np.diff(task.producer_indptr), np.zeros((nodes, devices))
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
                possible = placement[node] < 0 and may_take(device, units.of[node], units)
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
                if placement[node] < 0 and may_take(device, units.of[node], units):
                    offered, start = node, now
                    break
                pop(there[device], num_there[device])
                num_there[device] -= 1
            child = favourite[last[device]] if last[device] >= 0 else -1
            if child >= 0 and placement[child] < 0 and waiting[child] == 0 and may_take(device, units.of[child], units):
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
                            and may_take(device, units.of[node], units)
                        ):
                            first, offered, start = there[device, position], node, now
            if offered < 0:
                continue
            mine = units.of[offered]
            lost = 0.0 if units.device[mine] >= 0 else units.times_us[device, mine] - fastest[mine]
            key = start + lost
            if key < least or (key == least and place_in_order[offered] < place_in_order[best_node]):
                best, best_node, best_start, least = device, offered, start, key
        if best < 0:
            return placement, turn
        take(best, units.of[best_node], units)
        placement[best_node], turn[best_node] = best, count
        finish[best_node] = best_start + times[best, best_node]
        last[best] = best_node
        for position in range(task.core_indptr[best], task.core_indptr[best + 1]):
            free[task.cores[position]] = finish[best_node]
        count += 1
        left -= 1
        for position in range(task.indptr[best_node], task.indptr[best_node + 1]):
            node = task.consumers[position]
            waiting[node] -= 1
            if waiting[node] == 0:
                for device in range(devices):
                    arrival[node, device] = arrives(node, device, task, placement, finish)
                    coming[device, num_coming[device]] = node
                    num_coming[device] += 1
    place_the_rest(placement, units)
    return placement, turn


@compiled
@no_type_check
def with_widths(order, task, units, threads, worthwhile, crowd):
    """Events in the order of time. Of the ready operations the first in `order` chooses among the devices that are
    worthwhile for its unit and those that give each ready operation its share of the cores, `crowd` times over. It
    takes the device of the earliest end, to which the time is added for which cores would have to wait for others
    while other operations are ready. If some core of that is in use, its other cores are kept for it until the next
    event.

    Args:
        task: with the helpers' delay in `times_us`, and without threads' delays in `fixed_us`.
        worthwhile: which devices of each unit; at least one for each.

    Returns:
        device of each node, and the turn in which it began, -1 for nodes that are not computed.
    """
    use, worker, own_core = task.use, threads.worker, threads.own_core
    first_core, core_of = task.core_indptr, task.cores
    nodes, devices, cores = len(order), len(use), use.shape[1]
    placement, turn, finish = np.full(nodes, -1), np.full(nodes, -1), np.zeros(nodes)
    place_in_order = np.empty(nodes, np.int64)
    place_in_order[order] = np.arange(nodes)
    width = np.zeros(devices)
    for device in range(devices):
        width[device] = use[device].sum()
    waiting = np.diff(task.producer_indptr)
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
            mine, others = units.of[node], num_ready + num_aside
            best, least, best_end = -1, np.inf, 0.0
            for device in range(devices):
                wasteful = not worthwhile[device, mine] and width[device] * (others + 1) > crowd * cores
                if not may_take(device, mine, units) or (wasteful and units.device[mine] < 0):
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
                    delay = threads.switch_us
                elif covered[thread] or start - idle_since[thread] > threads.spin_us:
                    delay = threads.wake_us
                else:
                    delay = threads.hand_over_us
                come = arrives(node, device, task, placement, finish)
                end = max(start, come) + delay + task.times_us[device, node]
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
            take(best, mine, units)
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
        for position in range(task.indptr[node], task.indptr[node + 1]):
            waiting[task.consumers[position]] -= 1
            if waiting[task.consumers[position]] == 0:
                push(ready, num_ready, place_in_order[task.consumers[position]])
                num_ready += 1
    place_the_rest(placement, units)
    return placement, turn
