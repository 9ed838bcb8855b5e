"""Discrete-event loop of a simulated run, compiled by numba.

Where copies queue, each memory has one lane of copies, as in a stream program: a value goes once to each other memory
where it is read, in the order in which the operations that made the values began.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np

from gst.util.compiled import compiled

LEAST_RATE = 0.2  # of an operation that runs with others, as a share of its speed alone


class Work(NamedTuple):
    """Operations of a program, and their costs on each device.

    Args:
        indptr, consumers: computed nodes that read each node, in program order, in compressed rows.
        producer_indptr, producers: computed nodes that each node reads, in compressed rows.
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
        overlap: whether two devices share a core.
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
    overlap: bool


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

    Of what happens at one moment, copies arrive first; then operations end in the order of devices, and others start
    after each of them; then values arrive on idle devices.
    """
    # Unpacked once: an array taken from a tuple within a loop is counted as a reference each time.
    indptr, consumers, producer_indptr, producers, pending, computed, times, traffic, num_bytes = work
    cores, words, worker, leader, covers_indptr, covers, threads, latency, bandwidth, memory, num_lanes, overlap = (
        machine
    )  # fmt: skip
    remote_us_per_byte = contention.remote_ns_per_byte / 1e3
    slowdown, memory_slowdown = contention.slowdown, contention.memory_slowdown
    is_slowed = slowdown != 0.0 or memory_slowdown != 0.0
    nodes, devices = len(home), len(cores)
    begin, end, arrival = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes)
    waiting, by_rank = pending.copy(), np.empty(nodes, np.int64)
    crosses = np.zeros(nodes, np.bool_)  # nodes whose value another memory reads, where copies queue
    # Rows of arrays that have a place for each node of a device, or for each value that leaves a memory.
    base, queue_base = np.zeros(devices + 1, np.int64), np.zeros(num_lanes + 1, np.int64)
    num_left = 0
    for node in range(nodes):
        by_rank[rank[node]] = node
        base[home[node] + 1] += 1
        num_left += computed[node]
        if num_lanes:
            for position in range(indptr[node], indptr[node + 1]):
                crosses[node] |= memory[home[consumers[position]]] != memory[home[node]]
            queue_base[memory[home[node]] + 1] += crosses[node]
    for device in range(devices):
        base[device + 1] += base[device]
    for lane in range(num_lanes):
        queue_base[lane + 1] += queue_base[lane]
    # Of each device: what is ready; what is on its way there, and when the first arrives; what runs, how much of it is
    # left, and how fast it is; the next event, which is the end of what runs, or `soonest` of an idle device.
    ready, num_ready = np.empty(nodes, np.int64), np.zeros(devices, np.int64)
    coming, num_coming, soonest = np.empty(nodes, np.int64), np.zeros(devices, np.int64), np.full(devices, np.inf)
    running, num_running, event = np.full(devices, -1), 0, np.full(devices, np.inf)
    left, rate, intensity = np.zeros(devices), np.ones(devices), np.zeros(devices)
    candidates, num_candidates = np.empty(devices, np.int64), 0  # devices that are idle and have something ready
    in_use, claimed = np.zeros(cores.shape[1], np.uint64), np.zeros(cores.shape[1], np.uint64)
    # Of each thread.
    idle_since, covered = np.zeros(len(leader)), np.zeros(len(leader), np.bool_)
    helped_until = np.full(len(leader), -np.inf)
    # Of each lane of copies: what is made and waits, in order; how far its first is; what is copied, to which of its
    # readers (a position in `consumers`), and until when; the last value that each other memory got.
    queue, num_queued = np.empty(queue_base[num_lanes], np.int64), np.zeros(num_lanes, np.int64)
    first_queued, reader = np.zeros(num_lanes, np.int64), np.full(num_lanes, -1)
    copied, copied_until = np.full(num_lanes, -1), np.full(num_lanes, np.inf)
    got = np.full((num_lanes, num_lanes), -1)
    num_idle_lanes = 0  # that have something to copy
    now, waker = 0.0, -1
    for node in range(nodes):
        if computed[node] and waiting[node] == 0:
            device = home[node]
            push(ready, num_ready[device], rank[node], base[device])
            if num_ready[device] == 0:
                candidates[num_candidates] = device
                num_candidates += 1
            num_ready[device] += 1
    while num_left:
        # Start: in the order of rank each device's first claims its cores, whether it can start now or must wait.
        if overlap:
            num_candidates = 0
            for device in range(devices):
                if running[device] < 0 and soonest[device] <= now:
                    _take_in(device, now, arrival, coming, num_coming, soonest, ready, num_ready, rank, base)
                    event[device] = soonest[device]
                if running[device] < 0 and num_ready[device]:
                    for word in range(words[device, 0], words[device, 1]):
                        if cores[device, word] & ~in_use[word]:  # otherwise it can neither start nor claim a core
                            candidates[num_candidates] = device
                            num_candidates += 1
                            break
            for word in range(len(claimed)):
                claimed[word] = in_use[word]
        while num_candidates:
            first = 0
            for position in range(1, num_candidates if overlap else 0):
                if ready[base[candidates[position]]] < ready[base[candidates[first]]]:
                    first = position
            device = candidates[first]
            num_candidates -= 1
            candidates[first] = candidates[num_candidates]
            if overlap:
                is_free = True
                for word in range(words[device, 0], words[device, 1]):
                    is_free = is_free and cores[device, word] & claimed[word] == 0
                    claimed[word] |= cores[device, word]
                if not is_free:
                    continue
                for word in range(words[device, 0], words[device, 1]):
                    in_use[word] |= cores[device, word]
            elif soonest[device] <= now:
                _take_in(device, now, arrival, coming, num_coming, soonest, ready, num_ready, rank, base)
            node = by_rank[pop(ready, num_ready[device], base[device])]
            num_ready[device] -= 1
            thread = worker[device]
            if thread == waker:
                delay = contention.switch_us
            elif covered[thread] or now - idle_since[thread] > contention.spin_us:
                delay = contention.wake_us
            else:
                delay = contention.hand_over_us
            took = delay + times[device, node]
            if remote_us_per_byte != 0.0:
                remote = 0.0
                for position in range(producer_indptr[node], producer_indptr[node + 1]):
                    if worker[home[producers[position]]] != thread:
                        remote += num_bytes[producers[position]]
                took += remote * remote_us_per_byte
            if threads[device] > 1 and now - helped_until[thread] > contention.helper_spin_us:
                took += contention.helper_us
            begin[node], event[device], left[device], running[device] = now + delay, now + took, took, node
            num_running += 1
            if is_slowed:
                intensity[device] = traffic[node] / max(times[device, node], 1e-3)
            covered[thread] = False
            for position in range(covers_indptr[device], covers_indptr[device + 1]):
                covered[covers[position]] = True
        # Speed of each operation that runs.
        if is_slowed:
            total, others = 0.0, (num_running - 1) * slowdown
            for device in range(devices):
                total += intensity[device]
            for device in range(devices):
                lost = others + memory_slowdown * intensity[device] * (total - intensity[device])
                rate[device] = max(1.0 - lost, LEAST_RATE)
                until = now + left[device] / rate[device]
                event[device] = until if running[device] >= 0 else event[device]
        # The next event: an operation ends, a value arrives, or a copy ends.
        first, then = 0, event[0]
        for device in range(1, devices):  # without branches, which would be mispredicted
            is_sooner = event[device] < then
            first = device if is_sooner else first
            then = event[device] if is_sooner else then
        if running[first] < 0:  # what ends at the same moment comes first
            for device in range(devices):
                if running[device] >= 0 and event[device] == then:
                    first = device
                    break
        waker, is_copy = -1, False
        if num_idle_lanes and then > now:  # all operations of this moment have begun and ended
            for lane in range(num_lanes):
                if copied[lane] >= 0 or first_queued[lane] == num_queued[lane]:
                    continue
                node = queue[queue_base[lane] + first_queued[lane]]
                is_next = True  # no operation that still runs there makes a value that copies wait for
                for device in range(devices):
                    other = running[device]
                    if other >= 0 and memory[device] == lane:
                        is_next = is_next and not (crosses[other] and begin[other] < begin[node])
                if is_next:
                    if reader[lane] < 0:
                        reader[lane] = first_reader_away(node, home, memory, indptr, consumers)
                    here, there = home[node], home[consumers[reader[lane]]]
                    copied[lane] = node
                    copied_until[lane] = now + latency[here, there] + num_bytes[node] / bandwidth[here, there]
                    num_idle_lanes -= 1
        for lane in range(num_lanes):
            is_sooner = copied_until[lane] <= then
            is_copy |= is_sooner
            then = copied_until[lane] if is_sooner else then
        assert then < np.inf, "nothing more ends: an operation cannot run on its device, or the program has a cycle"
        if is_slowed:
            for device in range(devices):
                left[device] -= (then - now) * rate[device]
        now = max(now, then)
        if is_copy:
            for lane in range(num_lanes):
                if copied_until[lane] > now:  # all that arrive at this moment
                    continue
                node, there, next_reader = copied[lane], memory[home[consumers[reader[lane]]]], -1
                got[lane, there] = node
                for position in range(reader[lane], indptr[node + 1]):
                    consumer = consumers[position]
                    device = home[consumer]
                    if memory[device] == there:
                        waiting[consumer] -= 1
                        if waiting[consumer] == 0:
                            push(ready, num_ready[device], rank[consumer], base[device])
                            if num_ready[device] == 0 and running[device] < 0:
                                candidates[num_candidates] = device
                                num_candidates += 1
                            num_ready[device] += 1
                    elif next_reader < 0 and memory[device] != lane and got[lane, memory[device]] != node:
                        next_reader = position
                copied[lane], copied_until[lane], reader[lane] = -1, np.inf, next_reader
                first_queued[lane] += next_reader < 0
                num_idle_lanes += first_queued[lane] < num_queued[lane]
            if running[first] < 0 or event[first] > now:
                continue
        node = running[first]
        if node >= 0:  # an operation ends
            end[node], running[first], intensity[first] = now, -1, 0.0
            num_running, num_left = num_running - 1, num_left - 1
            waker = worker[first]
            idle_since[waker] = now
            if threads[first] > 1:
                helped_until[waker] = now
            for word in range(words[first, 0], words[first, 1] if overlap else 0):
                in_use[word] &= ~cores[first, word]
            for position in range(indptr[node], indptr[node + 1]):
                consumer = consumers[position]
                device = home[consumer]
                if memory[device] != memory[first]:
                    continue
                arrives = now + latency[first, device] + num_bytes[node] / bandwidth[first, device]
                arrival[consumer] = max(arrival[consumer], arrives)
                waiting[consumer] -= 1
                if waiting[consumer] > 0:
                    continue
                if arrival[consumer] > now:
                    coming[base[device] + num_coming[device]] = consumer
                    num_coming[device] += 1
                    soonest[device] = min(soonest[device], arrival[consumer])
                    if running[device] < 0:
                        event[device] = soonest[device]
                    continue
                push(ready, num_ready[device], rank[consumer], base[device])
                if num_ready[device] == 0 and running[device] < 0 and device != first:
                    candidates[num_candidates] = device
                    num_candidates += 1
                num_ready[device] += 1
            if crosses[node]:
                lane = memory[first]
                num_idle_lanes += copied[lane] < 0 and first_queued[lane] == num_queued[lane]
                is_first_begun = copied[lane] >= 0 or reader[lane] >= 0
                at = queue_base[lane]
                enqueue(node, queue, at + first_queued[lane] + is_first_begun, at + num_queued[lane], begin, end)
                num_queued[lane] += 1
        event[first] = soonest[first]
        if num_ready[first] or soonest[first] <= now:
            candidates[num_candidates] = first
            num_candidates += 1
    return begin, end


@compiled
@no_type_check
def _take_in(device, now, arrival, coming, num_coming, soonest, ready, num_ready, rank, base):
    """Make ready what has arrived at a device, and find out when the next value arrives."""
    position, stop, soonest[device] = base[device], base[device] + num_coming[device], np.inf
    while position < stop:
        node = coming[position]
        if arrival[node] > now:
            soonest[device] = min(soonest[device], arrival[node])
            position += 1
            continue
        push(ready, num_ready[device], rank[node], base[device])
        num_ready[device] += 1
        stop -= 1
        coming[position] = coming[stop]
    num_coming[device] = stop - base[device]


@compiled
@no_type_check
def push(heap, size, key, base=0):
    """Add `key` to a binary heap of `size` keys that begins at `base`, the least on top."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[base + parent] <= key:
            break
        heap[base + child] = heap[base + parent]
        child = parent
    heap[base + child] = key


@compiled
@no_type_check
def pop(heap, size, base=0):
    """Take the least key from a binary heap of `size` keys that begins at `base`."""
    least, last = heap[base], heap[base + size - 1]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size - 1:
            break
        child += child + 1 < size - 1 and heap[base + child + 1] < heap[base + child]
        if heap[base + child] >= last:
            break
        heap[base + parent] = heap[base + child]
        parent = child
    heap[base + parent] = last
    return least


@compiled
@no_type_check
def enqueue(node, queue, first, size, begin, end):
    """Put the value of a node that has just ended into a lane, which ends before `queue[size]`, behind what is before
    `queue[first]`, in the order of `precedes`."""
    position = size
    while position > first and precedes(node, queue[position - 1], begin, end):
        queue[position] = queue[position - 1]
        position -= 1
    queue[position] = node


@compiled
@no_type_check
def precedes(node, other, begin, end):
    """Return True if a node comes before another in a lane of copies: by begin, then by end, then by number."""
    if begin[node] != begin[other]:
        return begin[node] < begin[other]
    return end[node] < end[other] or (end[node] == end[other] and node < other)


@compiled
@no_type_check
def first_reader_away(node, home, memory, indptr, consumers):
    """Return the position in `consumers` of the first reader of a value, in program order, in another memory."""
    position = indptr[node]
    while memory[home[consumers[position]]] == memory[home[node]]:
        position += 1
    return position
