"""The bound of a part of a plan, compiled: chains with transfers, and preemptive schedules of the work of each core."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.placement.baselines.bounds import heads, tails
from gst.placement.baselines.units import Arrays
from gst.simulation.event_kernel import pop, push
from partitioners.compiled import compiled

ROUNDS = 4  # in which devices are struck out


class Placing(NamedTuple):
    """A placement problem as the kernels read it.

    Args:
        arrays: operations, devices, links and groups.
        members: nodes by group.
        limits: bytes of each memory.
        use: which device takes which core.
        prices: for each sort of work the price of a core's time; those of one sort add up to 1.
        size_prices: for each sort of work and each memory the price of its bytes.
        chain_prices: of the bytes of each memory, for the chain that is longest when they are paid for.
        alike: class of each device; those of one may be exchanged for each other.
    """

    arrays: Arrays
    member_indptr: Int64[np.ndarray, " groups_plus_one"]
    members: Int64[np.ndarray, " nodes"]
    limits: Float64[np.ndarray, " memories"]
    use: Bool[np.ndarray, "devices cores"]
    prices: Float64[np.ndarray, "sorts cores"]
    size_prices: Float64[np.ndarray, "sorts memories"]
    chain_prices: Float64[np.ndarray, " memories"]
    alike: Int64[np.ndarray, " devices"]


@compiled
@no_type_check
def preemptive(head, work, tail):
    """When one machine ends all work at the earliest, if it may be interrupted: at each moment it does what is there
    with the longest tail (Jackson's schedule; Carlier, The one-machine sequencing problem, EJOR 11, 1982). That is the
    greatest least head + work + least tail of all sets of operations.

    Args:
        head: before each operation can start; `work`, which it takes; `tail`, which is to come after it.

    Examples:
        >>> preemptive(np.array([0.0, 2.0]), np.array([4.0, 1.0]), np.array([0.0, 9.0]))
        12.0
    """
    count = len(head)
    by_head, by_tail = np.argsort(head), np.argsort(-tail)
    rank = np.empty(count, np.int64)
    rank[by_tail] = np.arange(count)
    left, heap = work.copy(), np.empty(count, np.int64)
    size, coming, now, latest = 0, 0, 0.0, 0.0
    while size or coming < count:
        if size == 0:
            now = max(now, head[by_head[coming]])
        while coming < count and head[by_head[coming]] <= now:
            push(heap, size, rank[by_head[coming]])
            size += 1
            coming += 1
        node = by_tail[heap[0]]
        until = head[by_head[coming]] if coming < count else np.inf
        if left[node] <= until - now:
            now += left[node]
            latest = max(latest, now + tail[node])
            pop(heap, size)
            size -= 1
        else:
            left[node] -= until - now
            now = until
    return latest


@compiled
@no_type_check
def partial_bound(part, placing, most):
    """Return a lower bound of every plan that places some groups as a partial plan does.

    - Chains give the head and tail of each operation on each device. Where head + time + tail is no less than `most`,
      the device is struck out for the group.
    - What an operation takes of a core at least, of all devices that are left, is the work of that core, between heads
      and tails; of all cores together it is the least cost at the `prices`. Bytes have prices too: those of a memory
      are paid back once, as no more fit into it (the dual of a linear program).
    - So it is for the longest chain, at the `chain_prices`: no chain has more bytes in a memory than fit into it.

    Args:
        part: device of each group; -1 = anywhere.
        placing: `Placing`.
        most: no longer plan is of interest.

    Returns:
        The bound, infinite if there is no such plan below `most`; and how urgent each group is.
    """
    arrays = placing.arrays
    nodes = len(arrays.groups)
    urgent = np.zeros(len(arrays.sizes))
    times, every, fits = _left(part, placing)
    if not fits:
        return np.inf, urgent
    head, tail = np.zeros((len(every), nodes)), np.zeros((len(every), nodes))
    bound = 0.0
    for _ in range(ROUNDS):
        head, tail = heads(times, every, arrays), tails(times, every, arrays)
        changed = False
        for group in range(len(part)):
            able, urgent[group] = 0, 0.0
            members = placing.members[placing.member_indptr[group] : placing.member_indptr[group + 1]]
            for number, device in enumerate(every):
                longest = 0.0
                for node in members:
                    longest = max(longest, head[number, node] + times[device, node] + tail[number, node])
                if longest < most:
                    able += 1
                    urgent[group] = longest if able == 1 else min(urgent[group], longest)
                    continue
                for node in members:
                    changed = changed or times[device, node] < np.inf
                    times[device, node] = np.inf
            if able == 0:
                return np.inf, urgent
            bound = max(bound, urgent[group])
        if not changed:
            break
    bound = max(bound, _work_bound(times, head, tail, every, placing))
    if placing.chain_prices.max() > 0:
        bound = max(bound, _paid_chain(times, every, placing))
    return bound, urgent


@compiled
@no_type_check
def _left(part, placing):
    """Times where groups may still be, infinite elsewhere; the devices that are looked at, those in use and two others
    of each class: here, and elsewhere; and whether what is placed fits."""
    arrays = placing.arrays
    devices = arrays.times.shape[0]
    times, room = arrays.times.copy(), placing.limits.copy()
    looked, others = np.zeros(devices, np.bool_), np.zeros(devices, np.int64)
    for group in range(len(part)):
        if part[group] >= 0:
            room[arrays.memory[part[group]]] -= arrays.sizes[group]
            looked[part[group]] = True
    for device in range(devices):
        if not looked[device] and others[placing.alike[device]] < 2:
            others[placing.alike[device]] += 1
            looked[device] = True
    for group in range(len(part)):
        for device in range(devices):
            if device == part[group] or (part[group] < 0 and arrays.sizes[group] <= room[arrays.memory[device]]):
                continue
            for position in range(placing.member_indptr[group], placing.member_indptr[group + 1]):
                times[device, placing.members[position]] = np.inf
    return times, np.flatnonzero(looked), room.min() >= 0


@compiled
@no_type_check
def _work_bound(times, head, tail, every, placing):
    """The greatest bound of the work of a core, and of all cores at each sort of prices."""
    arrays = placing.arrays
    nodes = times.shape[1]
    least_head, least_tail = np.full(nodes, np.inf), np.full(nodes, np.inf)
    for number, device in enumerate(every):
        for node in range(nodes):
            if times[device, node] < np.inf:
                least_head[node] = min(least_head[node], head[number, node])
                least_tail[node] = min(least_tail[node], tail[number, node])
    bound, cores = 0.0, placing.use.shape[1]
    work = np.empty(nodes)
    for case in range(cores + placing.prices.shape[0]):
        work[:] = np.inf
        back, sort = 0.0, case - cores
        if sort >= 0:
            for memory in range(len(placing.limits)):
                if placing.size_prices[sort, memory] > 0:
                    back += placing.size_prices[sort, memory] * placing.limits[memory]
        for device in every:
            rate = 0.0
            if sort < 0:
                rate = 1.0 if placing.use[device, case] else 0.0
            else:
                for core in range(cores):
                    rate += placing.prices[sort, core] * placing.use[device, core]
            for node in range(nodes):
                if times[device, node] < np.inf:
                    cost = rate * times[device, node]
                    if sort >= 0 and placing.size_prices[sort, arrays.memory[device]] > 0:
                        cost += placing.size_prices[sort, arrays.memory[device]] * _share(node, placing)
                    work[node] = min(work[node], cost)
        some = work > 0
        if some.any():
            bound = max(bound, preemptive(least_head[some], work[some], least_tail[some]) - back)
    return bound


@compiled
@no_type_check
def _share(node, placing):
    """Bytes of a node: its part of those of its group."""
    arrays = placing.arrays
    group = arrays.groups[node]
    return arrays.sizes[group] / (placing.member_indptr[group + 1] - placing.member_indptr[group])


@compiled
@no_type_check
def _paid_chain(times, every, placing):
    """The longest chain if bytes are paid for, minus the price of all bytes that there are."""
    arrays = placing.arrays
    back, paid = 0.0, times.copy()
    for memory in range(len(placing.limits)):
        if placing.chain_prices[memory] > 0:
            back += placing.chain_prices[memory] * placing.limits[memory]
    for device in every:
        price = placing.chain_prices[arrays.memory[device]]
        if price > 0:
            for node in range(times.shape[1]):
                paid[device, node] += price * _share(node, placing)
    head, tail = heads(paid, every, arrays), tails(paid, every, arrays)
    longest = 0.0
    for node in range(times.shape[1]):
        least = np.inf
        for number, device in enumerate(every):
            least = min(least, head[number, node] + paid[device, node] + tail[number, node])
        longest = max(longest, least)
    return longest - back
