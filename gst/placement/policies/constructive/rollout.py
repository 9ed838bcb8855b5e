"""Rollouts of the constructive policy, compiled: a schedule built one operation after the other.

An operation is ready when all its producers are placed. The network scores the first few ready ones by priority on each
device that may run them, and the best pair is placed after the operations of its device.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.placement.baselines.arrays import moved
from gst.placement.policies.constructive.network import (
    HIDDEN,
    LAYER,
    MOST_CONSUMERS,
    NUM_FEATURES,
    NUM_PRIORITIES,
    OUTPUT,
)
from gst.placement.search.moves import uniform
from partitioners.compiled import compiled

PAIRS, MOST_WINDOW = 32, 8
"""About `PAIRS` pairs of an operation and a device are scored at a step, of at most `MOST_WINDOW` operations."""


def window_of(devices: int) -> int:
    """Return the number of ready operations that are scored on so many devices.

    Examples:
        >>> [window_of(devices) for devices in (1, 2, 8, 100)]
        [8, 8, 4, 2]
    """
    return max(2, min(MOST_WINDOW, PAIRS // devices))


@compiled
@no_type_check
def roll_out(arrays, tables, weights, window, is_uniform, first_come, state, home, order):
    """Build one schedule, and return its makespan, infinite if the memories do not hold all operations. Where devices
    share no core, it is that of `gst.placement.search.windows.schedule`.

    Args:
        weights: float32, see `gst.placement.policies.constructive.network`.
        window: number of ready operations that are scored.
        is_uniform: draw pairs at random, without the network.
        first_come: devices serve operations in the order in which they become ready.
        state: that of the random numbers, one uint64.
        home, order: device of each node and order of all, written.
    """
    times, devices, nodes = arrays.times, arrays.times.shape[0], len(home)
    indptr, consumers, out_edges = arrays.indptr, arrays.consumers, arrays.out_edges
    groups, memory, limits = arrays.groups, arrays.memory, arrays.limits
    able, shares, is_view_free = tables.able, tables.shares, tables.is_view_free
    optimistic, transfers, rank = tables.optimistic, tables.transfers, tables.rank
    scale, horizon = 1.0 / tables.scale, 1.0 / tables.horizon
    waiting = arrays.producer_indptr[1:] - arrays.producer_indptr[:-1]
    arrival, pull = np.zeros((nodes, devices)), np.zeros((nodes, devices))
    place, used, free = np.full(len(arrays.sizes), -1), np.zeros(len(limits)), np.zeros(devices)
    key, heap, size = np.empty(nodes), np.empty(nodes, np.int64), 0
    looked, count = np.empty(window + 1, np.int64), 0
    start, finish = np.empty((window, devices)), np.empty((window, devices))
    later, forward = np.empty((window, devices)), np.empty((window, devices))
    elsewhere = np.empty((window, devices))
    pairs = window * devices
    inputs = np.zeros((NUM_FEATURES, pairs), np.float32)
    unit, score = np.empty(pairs, np.float32), np.empty(pairs, np.float32)
    pair_op, pair_device = np.empty(pairs, np.int64), np.empty(pairs, np.int64)
    num_ready, done_work, all_work = 0, 0.0, max(tables.mean_times.sum(), 1e-300)
    ratio = tables.ratio
    latest = 0.0
    fresh = np.empty(nodes, np.int64)  # operations that have just become ready
    num_fresh = 0
    for node in range(nodes):
        if waiting[node] == 0:
            fresh[num_fresh] = node
            num_fresh += 1
    for step in range(nodes):
        num_ready += num_fresh
        for number in range(num_fresh):
            node = fresh[number]
            soonest = np.inf
            for device in range(devices):
                soonest = min(soonest, arrival[node, device])
            value = 0.0
            for which in range(NUM_PRIORITIES - 1):
                value += weights[which] * tables.priorities[which, node]
            value += weights[NUM_PRIORITIES - 1] * soonest * horizon
            key[node] = -soonest if first_come else value
            if count == window and key[node] > key[looked[count - 1]]:  # the last one looked at gives way
                moving = looked[count - 1]
                count -= 1
            elif count == window:
                moving = node
            else:
                moving = -1
            if moving != node:
                slot = count
                while slot > 0 and key[looked[slot - 1]] < key[node]:
                    looked[slot] = looked[slot - 1]
                    slot -= 1
                looked[slot] = node
                count += 1
            if moving >= 0:
                child = size
                size += 1
                while child > 0:
                    parent = (child - 1) >> 1
                    if key[heap[parent]] >= key[moving]:
                        break
                    heap[child] = heap[parent]
                    child = parent
                heap[child] = moving
        num_fresh = 0
        # ---- which pairs there are, and when they would start and finish
        least_free, mean_free = np.inf, 0.0
        for device in range(devices):
            least_free = min(least_free, free[device])
            mean_free += free[device] / devices
        num_pairs, first_start, first_finish, top = 0, np.inf, np.inf, -np.inf
        for slot in range(count):
            node = looked[slot]
            group = groups[node]
            top = max(top, rank[node])
            for device in range(devices):
                finish[slot, device] = np.inf
                if place[group] >= 0:
                    if place[group] != device:
                        continue
                elif not able[device, group] or (used[memory[device]] + arrays.sizes[group] > limits[memory[device]]):
                    continue
                begin = arrival[node, device]
                if times[device, node] > 0 or not is_view_free:
                    begin = max(free[device], begin)
                start[slot, device], finish[slot, device] = begin, begin + times[device, node]
                first_start, first_finish = min(first_start, begin), min(first_finish, finish[slot, device])
                pair_op[num_pairs], pair_device[num_pairs] = slot, device
                num_pairs += 1
        if num_pairs == 0:
            return np.inf
        choice = 0
        if is_uniform:
            choice = np.int64(uniform(state) * num_pairs)
        elif num_pairs > 1:
            # ---- features: of the operation, then of the pair
            for slot in range(count):
                node = looked[slot]
                alone, nearest, most = 0, np.inf, 0.0
                for device in range(devices):
                    forward[slot, device] = 0.0
                for number in range(MOST_CONSUMERS):
                    position = tables.heads[node, number]
                    if position < 0:
                        break
                    consumer = consumers[position]
                    alone += waiting[consumer] == 1
                    whither = place[groups[consumer]]
                    for device in range(devices):
                        forward[slot, device] += pull[consumer, device]
                    if whither >= 0:
                        forward[slot, whither] += transfers[out_edges[position]]
                for device in range(devices):
                    most = max(most, forward[slot, device])
                for device in range(devices):
                    elsewhere[slot, device] = most - forward[slot, device]
                    if tables.heads[node, 0] >= 0:
                        consumer = consumers[tables.heads[node, 0]]
                        later[slot, device] = max(finish[slot, device], arrival[consumer, device])
                    else:
                        later[slot, device] = finish[slot, device]
                    nearest = min(nearest, later[slot, device])
                for device in range(devices):
                    later[slot, device] -= nearest
                best, second, ahead, quickest, soonest = np.inf, np.inf, np.inf, np.inf, np.inf
                for device in range(devices):
                    if finish[slot, device] == np.inf:
                        continue
                    if finish[slot, device] < best:
                        best, second = finish[slot, device], best
                    else:
                        second = min(second, finish[slot, device])
                    ahead = min(ahead, finish[slot, device] + optimistic[device, node])
                    quickest = min(quickest, times[device, node])
                    soonest = min(soonest, arrival[node, device])
                suffers = (second - best) * scale if second < np.inf else 10.0
                to_come = (
                    0.0 if place[groups[node]] >= 0 else tables.group_times[groups[node]] - tables.mean_times[node]
                )
                for pair in range(num_pairs):
                    if pair_op[pair] != slot:
                        continue
                    device = pair_device[pair]
                    begin, end = start[slot, device], finish[slot, device]
                    inputs[0, pair] = rank[node] * horizon
                    inputs[1, pair] = (rank[node] - top) * scale
                    inputs[2, pair] = suffers
                    inputs[3, pair] = tables.outgoing[node] * scale
                    inputs[4, pair] = (indptr[node + 1] - indptr[node]) * 0.25
                    inputs[5, pair] = alone
                    inputs[6, pair] = tables.mean_times[node] * scale
                    inputs[7, pair] = (soonest - least_free) * scale
                    inputs[8, pair] = to_come * scale
                    inputs[9, pair] = (begin - first_start) * scale
                    inputs[10, pair] = (end - best) * scale
                    inputs[11, pair] = (end - first_finish) * scale
                    inputs[12, pair] = (begin - free[device]) * scale
                    inputs[13, pair] = (begin - arrival[node, device]) * scale
                    inputs[14, pair] = (end + optimistic[device, node] - ahead) * scale
                    inputs[15, pair] = (optimistic[device, node] + end - best) * horizon
                    inputs[16, pair] = (end + rank[node] - tables.mean_times[node]) * horizon
                    inputs[17, pair] = (times[device, node] - quickest) * scale
                    inputs[18, pair] = pull[node, device] * scale
                    inputs[19, pair] = (tables.incoming[node] - pull[node, device]) * scale
                    inputs[20, pair] = forward[slot, device] * scale
                    inputs[21, pair] = elsewhere[slot, device] * scale
                    inputs[22, pair] = later[slot, device] * scale
                    inputs[23, pair] = (free[device] - least_free) * scale
                    inputs[24, pair] = (free[device] - mean_free) * horizon
                    left, limit = 1.0, limits[memory[device]]
                    if limit < np.inf:
                        left = (limit - used[memory[device]]) / max(limit, 1e-300)
                    inputs[25, pair] = left
                    inputs[26, pair] = 1.0 - done_work / all_work
                    inputs[27, pair] = num_ready / devices
                    inputs[28, pair] = ratio
                    inputs[29, pair] = 1.0 if first_come else 0.0
            score_pairs(inputs, weights, num_pairs, unit, score)
            for pair in range(1, num_pairs):
                if score[pair] > score[choice]:
                    choice = pair
        # ---- the pair is placed
        slot, device = pair_op[choice], pair_device[choice]
        node = looked[slot]
        group, end = groups[node], finish[slot, device]
        if place[group] < 0:
            place[group] = device
            used[memory[device]] += arrays.sizes[group]
        home[node], order[step] = device, node
        if times[device, node] > 0 or not is_view_free:
            for other in range(devices):
                if shares[device, other]:
                    free[other] = max(free[other], end)
        latest = max(latest, end)
        done_work += tables.mean_times[node]
        num_ready -= 1
        count -= 1
        for other in range(slot, count):
            looked[other] = looked[other + 1]
        if size:
            looked[count] = heap[0]
            count += 1
            size -= 1
            moving, parent = heap[size], 0
            while True:
                child = 2 * parent + 1
                if child >= size:
                    break
                if child + 1 < size and key[heap[child + 1]] > key[heap[child]]:
                    child += 1
                if key[heap[child]] <= key[moving]:
                    break
                heap[parent] = heap[child]
                parent = child
            heap[parent] = moving
        for position in range(indptr[node], indptr[node + 1]):
            consumer, edge = consumers[position], out_edges[position]
            pull[consumer, device] += transfers[edge]
            for other in range(devices):
                there = end + moved(edge, device, other, arrays)
                if there > arrival[consumer, other]:
                    arrival[consumer, other] = there
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                fresh[num_fresh] = consumer
                num_fresh += 1
    return latest


@compiled
@no_type_check
def score_pairs(inputs, weights, num_pairs, unit, score):
    """Score pairs: a linear function of the features, each squashed to x / (1 + |x|), and of `HIDDEN` rectified units.
    `inputs`, (features, pairs), are squashed in place; `unit` and `score`, (pairs), are written."""
    for pair in range(num_pairs):
        score[pair] = np.float32(0.0)
    for feature in range(NUM_FEATURES):
        weight = weights[NUM_PRIORITIES + feature]
        for pair in range(num_pairs):
            value = inputs[feature, pair]
            value = value / (np.float32(1.0) + abs(value))
            inputs[feature, pair] = value
            score[pair] += weight * value
    for hidden in range(HIDDEN):
        row = LAYER + hidden * (NUM_FEATURES + 1)
        bias = weights[row + NUM_FEATURES]
        for pair in range(num_pairs):
            unit[pair] = bias
        for feature in range(NUM_FEATURES):
            weight = weights[row + feature]
            for pair in range(num_pairs):
                unit[pair] += weight * inputs[feature, pair]
        weight = weights[OUTPUT + hidden]
        for pair in range(num_pairs):
            score[pair] += weight * max(unit[pair], np.float32(0.0))
