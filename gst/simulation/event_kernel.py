"""Discrete-event loop of a simulated run, compiled by numba.

Where copies queue, each memory has one lane of copies, as in a stream program: a value goes once to each other memory
where it is read, in the order in which the operations that made the values began.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np

from gst.simulation.queues import enqueue, next_reader, pop, push
from partitioners.compiled import compiled

LEAST_RATE = 0.2  # of an operation that runs with others, as a share of its speed alone


class Work(NamedTuple):
    """Operations of a program, and their costs on each device.

    Args:
        indptr, consumers: computed nodes that read each node, in compressed rows.
        producer_indptr, producers: computed nodes that each node reads, likewise.
        pending: int64 (nodes); number of computed producers of each node.
        computed: bool (nodes); false for inputs and constants.
        times: float64 (devices, nodes); microseconds of each operation alone.
        traffic: float64 (nodes); bytes that each operation reads and writes, in units of 10 kB.
        num_bytes: float64 (nodes); of the value of each node.
    """

    indptr: np.ndarray
    consumers: np.ndarray
    producer_indptr: np.ndarray
    producers: np.ndarray
    pending: np.ndarray
    computed: np.ndarray
    times: np.ndarray
    traffic: np.ndarray
    num_bytes: np.ndarray


class Cores(NamedTuple):
    """Devices as the cores and threads that they use, and the links between them.

    Args:
        cores: uint64 (devices, words); a bit for each core of a device, 64 to a word.
        words: int64 (devices, 2); the first word of each device with a bit in it, and the one behind the last.
        worker: int64 (devices); number of the thread that runs the device.
        leader: int64 (threads); number of each thread's own core.
        covers_indptr, covers: threads of others whose own cores a device uses, in compressed rows.
        threads: int64 (devices); of one operation.
        latency: float64 (devices, devices); microseconds until a value is there.
        bandwidth: float64 (devices, devices); bytes per microsecond of a copy.
        memory: int64 (devices); number of the memory of each device where copies queue, otherwise -1.
        num_lanes: memories where copies queue, otherwise 0.
    """

    cores: np.ndarray
    words: np.ndarray
    worker: np.ndarray
    leader: np.ndarray
    covers_indptr: np.ndarray
    covers: np.ndarray
    threads: np.ndarray
    latency: np.ndarray
    bandwidth: np.ndarray
    memory: np.ndarray
    num_lanes: int


@compiled
@no_type_check
def simulate(home, rank, work, machine, contention):
    """Return begin and end of each node, in microseconds.

    Args:
        home: device of each node, int64.
        rank: of each node, int64, distinct; of ready operations the one of least rank starts first.
        work: `Work` of the program.
        machine: `Cores` of the devices.
        contention: `gst.simulation.simulator.Contention`.
    """
    # Unpacked once: an array taken from a tuple within a loop is counted as a reference each time.
    indptr, consumers, producer_indptr, producers, pending, computed, times, traffic, num_bytes = work
    cores, words, worker, leader, covers_indptr, covers, threads, latency, bandwidth, memory, num_lanes = machine
    remote_us_per_byte = contention.remote_ns_per_byte / 1e3
    nodes, devices = len(home), len(cores)
    begin, end, arrival = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes)
    waiting = pending.copy()
    by_rank = np.empty(nodes, np.int64)
    by_rank[rank] = np.arange(nodes)
    ready, num_ready = np.empty((devices, nodes), np.int64), np.zeros(devices, np.int64)
    # Values under way between memories: when the last that a node waits for arrives.
    coming = np.empty(nodes)
    coming_nodes = np.empty(nodes, np.int64)
    num_coming = 0
    # Lanes of copies: what is made and waits in each, in order; how far its first is; what is under way whither, until.
    queue, num_queued = np.empty((num_lanes, nodes), np.int64), np.zeros(num_lanes, np.int64)
    first_queued, reader = np.zeros(num_lanes, np.int64), np.full(num_lanes, -1)
    copied, copied_until = np.full(num_lanes, -1), np.full(num_lanes, np.inf)
    away = np.empty(num_lanes, np.int64)
    crosses = np.zeros(nodes, np.bool_)  # nodes whose value another memory reads
    for node in range(nodes if num_lanes else 0):
        for position in range(indptr[node], indptr[node + 1]):
            crosses[node] |= memory[home[consumers[position]]] != memory[home[node]]
    is_slowed = contention.slowdown != 0.0 or contention.memory_slowdown != 0.0
    active, num_active = np.empty(devices, np.int64), 0  # devices that run an operation, in increasing order
    candidates = np.empty(devices, np.int64)
    running = np.full(devices, -1)
    left, rate, intensity = np.zeros(devices), np.ones(devices), np.zeros(devices)
    idle_since = np.zeros(len(leader))
    covered = np.zeros(len(leader), np.bool_)
    helped_until = np.full(len(leader), -np.inf)
    in_use, claimed = np.zeros(cores.shape[1], np.uint64), np.zeros(cores.shape[1], np.uint64)
    now, num_left, waker = 0.0, 0, -1
    for node in range(nodes):
        if computed[node]:
            num_left += 1
            if waiting[node] == 0:
                push(ready[home[node]], num_ready[home[node]], rank[node])
                num_ready[home[node]] += 1
    while num_left:
        # Start: in the order of rank each device's first claims its cores, whether it can start now or must wait.
        num_candidates = 0
        for device in range(devices):
            if num_ready[device] and running[device] < 0:
                for word in range(words[device, 0], words[device, 1]):
                    if cores[device, word] & ~in_use[word]:  # otherwise it can neither start nor claim a core
                        candidates[num_candidates] = device
                        num_candidates += 1
                        break
        if num_candidates:
            for word in range(len(claimed)):
                claimed[word] = in_use[word]
        while num_candidates:
            first, least = 0, ready[candidates[0], 0]
            for position in range(1, num_candidates):
                if ready[candidates[position], 0] < least:
                    first, least = position, ready[candidates[position], 0]
            chosen = candidates[first]
            num_candidates -= 1
            candidates[first] = candidates[num_candidates]
            is_free = True
            for word in range(words[chosen, 0], words[chosen, 1]):
                is_free = is_free and cores[chosen, word] & claimed[word] == 0
                claimed[word] |= cores[chosen, word]
            if is_free:
                node = by_rank[pop(ready[chosen], num_ready[chosen])]
                num_ready[chosen] -= 1
                thread = worker[chosen]
                if thread == waker:
                    delay = contention.switch_us
                elif covered[thread] or now - idle_since[thread] > contention.spin_us:
                    delay = contention.wake_us
                else:
                    delay = contention.hand_over_us
                remote = 0.0
                for position in range(producer_indptr[node], producer_indptr[node + 1]):
                    if worker[home[producers[position]]] != thread:
                        remote += num_bytes[producers[position]]
                begin[node] = now + delay
                running[chosen] = node
                left[chosen] = delay + times[chosen, node] + remote * remote_us_per_byte
                if threads[chosen] > 1 and now - helped_until[thread] > contention.helper_spin_us:
                    left[chosen] += contention.helper_us
                intensity[chosen] = traffic[node] / max(times[chosen, node], 1e-3)
                for word in range(words[chosen, 0], words[chosen, 1]):
                    in_use[word] |= cores[chosen, word]
                covered[thread] = False
                for position in range(covers_indptr[chosen], covers_indptr[chosen + 1]):
                    covered[covers[position]] = True
                position = num_active
                while position > 0 and active[position - 1] > chosen:
                    active[position] = active[position - 1]
                    position -= 1
                active[position] = chosen
                num_active += 1
        # Speed of each operation that runs, and the next event: an operation ends, or a value arrives.
        total = 0.0
        for position in range(num_active if is_slowed else 0):
            total += intensity[active[position]]
        first, soonest = -1, np.inf
        for position in range(num_active):
            device = active[position]
            until = left[device]
            if is_slowed:
                lost = (num_active - 1) * contention.slowdown
                lost += contention.memory_slowdown * intensity[device] * (total - intensity[device])
                rate[device] = max(1.0 - lost, LEAST_RATE)
                until /= rate[device]
            if until < soonest:
                first, soonest = device, until
        waker = -1
        for lane in range(num_lanes if soonest > 0 else 0):  # when all operations of this moment have begun and ended
            if copied[lane] < 0 and first_queued[lane] < num_queued[lane]:
                node = queue[lane, first_queued[lane]]
                is_next = True  # no operation that still runs there makes a value that copies wait for
                for position in range(num_active):
                    other = running[active[position]]
                    is_before = memory[active[position]] == lane and begin[other] < begin[node]
                    is_next = is_next and not (is_before and crosses[other])
                if is_next:
                    if reader[lane] < 0:
                        reader[lane] = next_reader(node, -1, home, memory, indptr, consumers, away)
                    here, there = home[node], home[reader[lane]]
                    copied[lane] = node
                    copied_until[lane] = now + latency[here, there] + num_bytes[node] / bandwidth[here, there]
        next_copy, next_arrival = -1, -1
        for lane in range(num_lanes):
            if copied_until[lane] - now < soonest:
                next_copy, soonest = lane, copied_until[lane] - now
        for position in range(num_coming):
            if coming[position] - now < soonest:
                next_arrival, soonest = position, coming[position] - now
        assert soonest < np.inf, "nothing more ends: an operation cannot run on its device, or the program has a cycle"
        soonest = max(soonest, 0.0)
        now += soonest
        for position in range(num_active):
            left[active[position]] -= soonest * rate[active[position]]
        if next_copy >= 0 and next_arrival < 0:
            now = copied_until[next_copy]
            for lane in range(num_lanes):
                if copied_until[lane] > now:  # all that arrive at this moment
                    continue
                node, there = copied[lane], memory[home[reader[lane]]]
                for position in range(indptr[node], indptr[node + 1]):
                    consumer = consumers[position]
                    if memory[home[consumer]] == there:
                        waiting[consumer] -= 1
                        if waiting[consumer] == 0:
                            push(ready[home[consumer]], num_ready[home[consumer]], rank[consumer])
                            num_ready[home[consumer]] += 1
                copied[lane], copied_until[lane] = -1, np.inf
                reader[lane] = next_reader(node, reader[lane], home, memory, indptr, consumers, away)
                if reader[lane] < 0:
                    first_queued[lane] += 1
            continue
        if next_arrival >= 0:
            now = coming[next_arrival]
            position = 0
            while position < num_coming:  # all that arrive at this moment
                if coming[position] > now:
                    position += 1
                    continue
                node = coming_nodes[position]
                num_coming -= 1
                coming[position], coming_nodes[position] = coming[num_coming], coming_nodes[num_coming]
                push(ready[home[node]], num_ready[home[node]], rank[node])
                num_ready[home[node]] += 1
            continue
        node = running[first]
        end[node] = now
        running[first] = -1
        num_active -= 1
        position = 0
        while active[position] != first:
            position += 1
        while position < num_active:
            active[position] = active[position + 1]
            position += 1
        for word in range(words[first, 0], words[first, 1]):
            in_use[word] &= ~cores[first, word]
        waker = worker[first]
        idle_since[waker] = now
        if threads[first] > 1:
            helped_until[waker] = now
        num_left -= 1
        for position in range(indptr[node], indptr[node + 1]):
            consumer = consumers[position]
            there = home[consumer]
            if memory[there] != memory[first]:
                continue
            moved = latency[first, there] + num_bytes[node] / bandwidth[first, there]
            arrival[consumer] = max(arrival[consumer], now + moved)
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                if arrival[consumer] > now:
                    coming[num_coming], coming_nodes[num_coming] = arrival[consumer], consumer
                    num_coming += 1
                else:
                    push(ready[there], num_ready[there], rank[consumer])
                    num_ready[there] += 1
        if crosses[node]:
            lane = memory[first]
            is_first_begun = copied[lane] >= 0 or reader[lane] >= 0
            enqueue(node, queue[lane], first_queued[lane] + is_first_begun, num_queued[lane], begin, end)
            num_queued[lane] += 1
    return begin, end
