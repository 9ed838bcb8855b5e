"""The loop of the list scheduler of operations that may run on one core or on several, compiled."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.devices.simulate.event_kernel import pop, push
from gst.placement.baselines.list_kernels import arrives, place_the_rest
from partitioners.compiled import compiled


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
