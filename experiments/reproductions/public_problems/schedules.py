"""Schedules of published problems, compiled: devices in the order of the plan, and devices first come first served.

Links never queue: a value is at another device a transfer after it was made, whatever else moves.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from experiments.reproductions.public_problems.problem import Problem
from gst.placement.baselines.arrays import Arrays, moved
from partitioners.compiled import compiled


@compiled
@no_type_check
def run_in_order(home, order, arrays, begin, end, before, first, ahead, limit):
    """Makespan if each device runs its nodes in the order given, each as soon as its values are there.

    Args:
        home: device of each node.
        order: of all nodes; every producer comes before its consumers.
        begin, end: of each node, written.
        before: the node that ran before each on its device, or -1, written.
        first: place in the order from which on is computed; `begin` and `end` of those before are as they are.
        ahead: time that is to come at least after each node.
        limit: infinity is returned as soon as the makespan would pass this.
    """
    producer_indptr, producers, in_edges, times = (
        arrays.producer_indptr, arrays.producers, arrays.in_edges, arrays.times,
    )  # fmt: skip
    devices = times.shape[0]
    free, last = np.zeros(devices), np.full(devices, -1)
    latest = 0.0
    for node in order[:first]:
        free[home[node]], last[home[node]] = end[node], node
        latest = max(latest, end[node])
    for node in order[first:]:
        device = home[node]
        start = free[device]
        for position in range(producer_indptr[node], producer_indptr[node + 1]):
            producer = producers[position]
            arrival = end[producer]
            if home[producer] != device:
                arrival += moved(in_edges[position], home[producer], device, arrays)
            start = max(start, arrival)
        begin[node], end[node] = start, start + times[device, node]
        if end[node] + ahead[node] > limit:
            return np.inf
        before[node] = last[device]
        free[device], last[device] = end[node], node
        latest = max(latest, end[node])
    return latest


READY, GRANTED, ENDED, RELEASED, FINISHED, ARRIVED, COUNTED = range(7)
"""Events of a first come first served run, in the steps in which DOPPLER's simulator (env/cost.py, on simpy) takes
them: an operation asks for its device, gets it, ends, and frees it; its value leaves, arrives, and is counted."""


@compiled
@no_type_check
def run_first_come(home, arrays, begin, end, before, ahead, limit):
    """Return the makespan if each device serves its nodes in the order in which they become ready. Events at one moment
    have the order of DOPPLER's simulator.

    Args:
        home: device of each node.
        begin, end, before, ahead, limit: see `run_in_order`.
    """
    nodes, devices, edges = len(home), arrays.times.shape[0], len(arrays.amounts)
    indptr, consumers, out_edges = arrays.indptr, arrays.consumers, arrays.out_edges
    waiting = arrays.producer_indptr[1:] - arrays.producer_indptr[:-1]
    when, serial = np.empty(nodes + edges), np.empty(nodes + edges, np.int64)  # a heap of what is to come
    coming = np.empty(nodes + edges, np.int64)
    size, pushed = 0, 0
    now_kind, now_what = np.empty(5 * nodes + 2 * edges, np.int8), np.empty(5 * nodes + 2 * edges, np.int64)
    head, tail = 0, 0  # of the list of what happens at this moment
    queue, next_waiting, last_waiting = np.full(nodes, -1), np.full(devices, -1), np.full(devices, -1)
    busy, last = np.zeros(devices, np.bool_), np.full(devices, -1)
    now = 0.0
    first = np.argsort(arrays.file_rank)
    for node in first:
        if waiting[node] == 0:
            now_kind[tail], now_what[tail] = READY, node
            tail += 1
    while True:
        if size and when[0] <= now:  # what was to come at this moment, before what came of it
            what = coming[0]
            kind = ENDED if what < nodes else ARRIVED
            what = what if what < nodes else what - nodes
            size -= 1
            key, number, value, parent = when[size], serial[size], coming[size], 0
            while True:
                child = 2 * parent + 1
                if child >= size:
                    break
                if child + 1 < size and (
                    when[child + 1] < when[child]
                    or (when[child + 1] == when[child] and serial[child + 1] < serial[child])
                ):
                    child += 1
                if when[child] > key or (when[child] == key and serial[child] > number):
                    break
                when[parent], serial[parent], coming[parent] = when[child], serial[child], coming[child]
                parent = child
            when[parent], serial[parent], coming[parent] = key, number, value
        elif head < tail:
            kind, what = now_kind[head], now_what[head]
            head += 1
        elif size:
            now = when[0]
            head, tail = 0, 0
            continue
        else:
            break
        delay, later = -1.0, -1
        if kind == READY:
            device = home[what]
            if next_waiting[device] < 0:
                next_waiting[device] = what
            else:
                queue[last_waiting[device]] = what
            last_waiting[device] = what
        if kind in (READY, RELEASED):
            device = home[what]
            if not busy[device] and next_waiting[device] >= 0:
                node = next_waiting[device]
                next_waiting[device] = queue[node]
                busy[device] = True
                now_kind[tail], now_what[tail] = GRANTED, node
                tail += 1
        elif kind == GRANTED:
            device = home[what]
            begin[what], before[what] = now, last[device]
            last[device] = what
            delay, later = arrays.times[device, what], what
            if now + delay + ahead[what] > limit:
                return np.inf
        elif kind == ENDED:
            end[what] = now
            busy[home[what]] = False
            now_kind[tail], now_what[tail] = RELEASED, what
            now_kind[tail + 1], now_what[tail + 1] = FINISHED, what
            tail += 2
        elif kind == ARRIVED:
            now_kind[tail], now_what[tail] = COUNTED, what
            tail += 1
        elif kind == COUNTED:
            node = consumers[what]
            waiting[node] -= 1
            if waiting[node] == 0:
                now_kind[tail], now_what[tail] = READY, node
                tail += 1
        position, stop = 0, 1
        if kind == FINISHED:
            position, stop = indptr[what], indptr[what + 1]
        elif later < 0:
            stop = 0
        while position < stop:  # what takes time, or none
            if kind == FINISHED:
                delay = moved(out_edges[position], home[what], home[consumers[position]], arrays)
                later = nodes + position
            if delay > 0:
                child = size
                size += 1
                pushed += 1
                at = now + delay
                while child > 0:
                    parent = (child - 1) >> 1
                    if when[parent] <= at:
                        break
                    when[child], serial[child], coming[child] = when[parent], serial[parent], coming[parent]
                    child = parent
                when[child], serial[child], coming[child] = at, pushed, later
            else:
                now_kind[tail] = ENDED if later < nodes else ARRIVED
                now_what[tail] = later if later < nodes else later - nodes
                tail += 1
            position += 1
    latest = 0.0
    for node in range(nodes):
        latest = max(latest, end[node])
    return latest


@compiled
@no_type_check
def run_by_ready(home, arrays, ahead, limit):
    """Makespan of `run_first_come` but for the order of operations that become ready at the same moment, several times
    as fast: a screen for it.

    Args:
        home, ahead, limit: see `run_first_come`.
    """
    nodes, indptr, consumers, out_edges = len(home), arrays.indptr, arrays.consumers, arrays.out_edges
    waiting = arrays.producer_indptr[1:] - arrays.producer_indptr[:-1]
    ready, free, latest = np.zeros(nodes), np.zeros(arrays.times.shape[0]), 0.0
    when, what, size = np.empty(nodes), np.empty(nodes, np.int64), 0  # a heap of those that are ready
    serial, pushed = np.empty(nodes, np.int64), 0  # of equals the first that came
    for node in np.argsort(arrays.file_rank):
        if waiting[node] == 0:
            when[size], what[size], serial[node] = 0.0, node, pushed
            size += 1
            pushed += 1
    while size:
        node, device = what[0], home[what[0]]
        size -= 1
        key, value, parent = when[size], what[size], 0
        while True:
            child = 2 * parent + 1
            if child >= size:
                break
            if child + 1 < size and (
                when[child + 1] < when[child]
                or (when[child + 1] == when[child] and serial[what[child + 1]] < serial[what[child]])
            ):
                child += 1
            if when[child] > key or (when[child] == key and serial[what[child]] > serial[value]):
                break
            when[parent], what[parent] = when[child], what[child]
            parent = child
        when[parent], what[parent] = key, value
        end = max(ready[node], free[device]) + arrays.times[device, node]
        if end + ahead[node] > limit:
            return np.inf
        free[device] = end
        latest = max(latest, end)
        for position in range(indptr[node], indptr[node + 1]):
            consumer = consumers[position]
            arrival = end
            if home[consumer] != device:
                arrival += moved(out_edges[position], device, home[consumer], arrays)
            ready[consumer] = max(ready[consumer], arrival)
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                child, serial[consumer] = size, pushed
                size += 1
                pushed += 1
                while child > 0:
                    parent = (child - 1) >> 1
                    if when[parent] <= ready[consumer]:
                        break
                    when[child], what[child] = when[parent], what[parent]
                    child = parent
                when[child], what[child] = ready[consumer], consumer
    return latest


class Schedule:
    """Device of each node, an order of all nodes, and what comes of them.

    Args:
        problem: what is placed where.
        home: device of each node.
        order: of all nodes, every producer before its consumers; the topological one if None. It says nothing where
            devices serve first come first.

    Attributes:
        begin, end: of each node.
        makespan: in `problem.graph.unit`; NaN if the plan is not admitted.
        reason: why it is not, one line; empty if it is.
    """

    def __init__(
        self, problem: Problem, home: Int64[np.ndarray, " nodes"], order: Int64[np.ndarray, " nodes"] | None = None
    ) -> None:
        self.home = np.ascontiguousarray(home, np.int64)
        self.order = np.arange(problem.num_nodes) if order is None else order
        self.begin, self.end = np.zeros(problem.num_nodes), np.zeros(problem.num_nodes)
        self.reason = refused(problem, self.home)
        self.makespan = float("nan")
        if not self.reason:
            self.makespan = run(problem, self.home, self.order, self.begin, self.end) / problem.graph.scale


def run(
    problem: Problem,
    home: Int64[np.ndarray, " nodes"],
    order: Int64[np.ndarray, " nodes"],
    begin: Float64[np.ndarray, " nodes"],
    end: Float64[np.ndarray, " nodes"],
) -> float:
    """Makespan in the file's own numbers; begin and end of each node are written."""
    before, ahead = np.empty(problem.num_nodes, np.int64), np.zeros(problem.num_nodes)
    if problem.graph.first_come:
        return float(run_first_come(home, problem.arrays, begin, end, before, ahead, np.inf))
    return float(run_in_order(home, order, problem.arrays, begin, end, before, 0, ahead, np.inf))


def refused(problem: Problem, home: Int64[np.ndarray, " nodes"]) -> str:
    """Why a placement is not admitted, in one line; empty if it is."""
    arrays: Arrays = problem.arrays
    if (unable := np.isinf(arrays.times[home, np.arange(len(home))])).any():
        node = int(unable.argmax())
        return f"node {problem.graph.ids[node]} cannot run on {problem.devices[home[node]]}"
    leader = np.unique(arrays.groups, return_index=True)[1]
    apart: Bool[np.ndarray, " nodes"] = home != home[leader][arrays.groups]
    if apart.any():
        return f"node {problem.graph.ids[int(apart.argmax())]} is not on the device of its colocation group"
    used = np.bincount(home[leader], arrays.sizes, len(problem.devices))
    if (over := used > arrays.limits).any():
        device = int(over.argmax())
        return f"{problem.devices[device]} would hold {used[device]:.4g} bytes of {arrays.limits[device]:.4g}"
    return ""
