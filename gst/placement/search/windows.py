"""Annealing of windows of a schedule, for problems of so many operations that a whole schedule is dear to compute.

A window is a stretch of the order, some dozens of operations that run at about the same time. What comes before it says
when its devices are free and when values arrive; what comes after it says how long the rest takes from each of its
operations and devices on. From these two the longest way through the window after a change inside follows exactly,
without a look at the rest (heads and tails, as in job shops: Carlier, European Journal of Operational Research 11,
1982). The makespan is that way, or the longest way that passes by the window, which no change inside alters.
"""

from __future__ import annotations

import time
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float64, UInt64

from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.published import uniform
from gst.placement.baselines.arrays import Arrays, moved
from gst.placement.search.window_moves import MOST_MOVED, rotate, step_from, take_back
from gst.placement.search.window_schedules import Schedule
from gst.util.compiled import compiled
from gst.util.progress import Progress, no_progress

SIZE = 64  # operations of a window
MOVES = 2.0  # steps for each operation of a window, until the next window
FIRST_MOVES = 0.25  # the same of a first sweep, which shows how many steps a second has
HEATS, COLD = (2.0, 0.08), 0.01
"""First temperatures that are tried, in mean times of an operation; the last temperature, as a share of the first."""
TRIAL = 0.2  # share of the time that a trial of each of these has


def refine(
    problem: Problem, start: Schedule, seconds: float = 1.0, steps: int | None = None, seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[Schedule, int]:  # fmt: skip
    """Anneal windows of a plan that is admitted: the shortest of the plan and the ends of three descents, and how many
    steps were taken.

    A sweep goes over the schedule once, from window to window. A descent is a series of sweeps, whose windows begin
    elsewhere each time, while the temperature falls geometrically with the time. Two trial descents begin with the
    plan, one at each of `HEATS`. A third has the rest of the time: it begins with the shortest plan so far, at the heat
    of the trial that ended with the shorter plan.

    Args:
        seconds: to search, none if 0 or less; the result depends on the machine's speed. Call `warm_up` before.
        steps: to take at most, in place of seconds; the result depends on the seed alone.

    Raises:
        ValueError: devices serve first come first served, so that the order says nothing.

    Examples:
        >>> from experiments.reproductions.public_problems.generated import generated_problem
        >>> from experiments.reproductions.public_problems.baselines import baselines
        >>> problem = generated_problem(1, nodes=2_000, devices=4, shape="layers")
        >>> start = baselines(problem)["heft"]
        >>> plan, count = refine(problem, start, steps=200_000)
        >>> plan.makespan < start.makespan, count <= 200_000
        (True, True)
    """
    if problem.graph.first_come:
        raise ValueError(f"devices of {problem.graph.name} serve first come first served, want an order; use anneal")
    generator, state = np.random.default_rng([seed, 31]), np.array([2 * seed + 1], np.uint64)
    begun, total = time.perf_counter(), 0
    trials: dict[float, Schedule] = {}
    for heat in HEATS:
        trial_steps, share = None if steps is None else int(TRIAL * steps), (TRIAL * len(trials), TRIAL)
        trials[heat], count = _descend(
            problem, start, heat, TRIAL * seconds, trial_steps, generator, state, share, progress
        )
        total += count
    heat = min(trials, key=lambda heat: trials[heat].makespan)
    best = min(start, *trials.values(), key=lambda plan: plan.makespan)
    left, left_steps = seconds - (time.perf_counter() - begun), None if steps is None else steps - total
    share = TRIAL * len(HEATS), 1 - TRIAL * len(HEATS)
    plan, count = _descend(problem, best, heat, left, left_steps, generator, state, share, progress)
    return min(best, plan, key=lambda plan: plan.makespan), total + count


def warm_up(problem: Problem, start: Schedule) -> None:
    """Compile what `refine` calls, before a clock starts."""
    begin, end, state = start.begin.copy(), start.end.copy(), np.array([1], np.uint64)
    sweep(start.home.copy(), start.order.copy(), begin, end, SIZE, 0, 0.0, state, problem.arrays)


def _descend(
    problem: Problem, start: Schedule, heat: float, seconds: float, steps: int | None,
    generator: np.random.Generator, state: UInt64[np.ndarray, " 1"], share: tuple[float, float], progress: Progress,
) -> tuple[Schedule, int]:  # fmt: skip
    """The plan that sweeps end with while the temperature falls from `heat` on, and how many steps they took.

    Args:
        share: of the whole search: what came before this descent, and what this descent is.
    """
    if steps is None and seconds <= 0:
        return start, 0
    count, begun = problem.num_nodes, time.perf_counter()
    home, order, begin, end = start.home.copy(), start.order.copy(), start.begin.copy(), start.end.copy()
    total, spent, done = 0, 0.0, 0.0
    while done < 1:
        left = FIRST_MOVES * count
        if steps is not None:
            left = steps - total
        elif total:
            left = (seconds - spent) * total / spent
        moves = min(MOVES, left / count)
        if moves * SIZE < 1:
            break
        order = order[np.argsort(begin[order], kind="stable")]
        temperature = heat * problem.mean_times.mean() * COLD**done
        num_steps = sweep(
            home, order, begin, end, int(generator.integers(1, SIZE + 1)), int(moves * SIZE), temperature, state,
            problem.arrays,
        )  # fmt: skip
        if num_steps == 0:
            break
        total += num_steps
        spent = time.perf_counter() - begun
        done = total / steps if steps is not None else spent / seconds
        progress("windows", int(1000 * (share[0] + share[1] * min(done, 1))), 1000)
    return Schedule(problem, home, order), total


class Border(NamedTuple):
    """What a window knows of the rest of the schedule.

    Args:
        free: (devices), when each device has ended what comes before.
        arrival: (operations, devices), when the values that come from before are on each device.
        rest: (devices), time from the start of what comes after on each device to the end of the schedule.
        way: (operations, devices), time from the end of each operation to the end of the schedule by way of operations
            after the window that read its value, if it runs on each device.
    """

    free: Float64[np.ndarray, " devices"]
    arrival: Float64[np.ndarray, "operations devices"]
    rest: Float64[np.ndarray, " devices"]
    way: Float64[np.ndarray, "operations devices"]


@compiled
@no_type_check
def sweep(home, order, begin, end, offset, steps, temperature, state, arrays):
    """Anneal a schedule window by window, the first to the last; how many steps were taken.

    Args:
        home, order: of a plan, written.
        begin, end: of each node, as the plan has them, written.
        offset: operations of the first window, 1 to `SIZE`.
        steps: in a window of `SIZE` operations.
        state: of the random numbers, one uint64.
    """
    nodes, devices, total = len(home), arrays.times.shape[0], 0
    used, free = np.zeros(devices), np.zeros(devices)
    for group in range(len(arrays.sizes)):
        used[home[arrays.members[arrays.member_indptr[group]]]] += arrays.sizes[group]
    tail, rests = tails(home, order, offset, arrays)
    local, local_groups = np.full(nodes, -1), np.full(len(arrays.sizes), -1)
    low = 0
    for number in range(len(rests)):
        high = min(offset + number * SIZE, nodes)
        span = order[low:high].copy()
        window, arrival, way = cut_out(span, home, end, tail, local, local_groups, arrays)
        inner, inner_home = np.arange(len(span)), home[span]
        count = steps * len(span) // SIZE
        begins, ends = anneal_window(
            inner_home, inner, used, count, temperature, state, window, Border(free, arrival, rests[number], way)
        )
        total += count
        for position in range(len(span)):
            node = span[position]
            home[node], begin[node], end[node] = inner_home[position], begins[position], ends[position]
        for position in range(len(span)):
            node = span[inner[position]]
            order[low + position], free[home[node]] = node, end[node]
        low = high
    return total


@compiled
@no_type_check
def tails(home, order, offset, arrays):
    """Time from the start of each node to the end of the schedule, and (windows, devices) from the start of what comes
    after each window on each device; arguments as of `sweep`."""
    windows = 1 + max(len(home) - offset + SIZE - 1, 0) // SIZE
    tail, rest = np.zeros(len(home)), np.zeros(arrays.times.shape[0])
    rests, window = np.zeros((windows, len(rest))), windows - 1
    for place in range(len(home) - 1, -1, -1):
        while window >= 0 and place < offset + window * SIZE:
            rests[window] = rest
            window -= 1
        node = order[place]
        device = home[node]
        way = rest[device]
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            consumer = arrays.consumers[position]
            way = max(way, moved(arrays.out_edges[position], device, home[consumer], arrays) + tail[consumer])
        tail[node] = rest[device] = arrays.times[device, node] + way
    return tail, rests


@compiled
@no_type_check
def cut_out(span, home, end, tail, local, local_groups, arrays):
    """The operations of a window as `Arrays` of their own, in the order of `span`, and `arrival` and `way` of `Border`.

    An operation whose colocation group is not whole inside can run on no other device.

    Args:
        local, local_groups: of all nodes and of all groups, -1 everywhere; scratch.
    """
    count, devices = len(span), arrays.times.shape[0]
    num_in, num_out, num_groups = 0, 0, 0
    for inside in range(count):
        node = span[inside]
        local[node] = inside
        num_in += arrays.producer_indptr[node + 1] - arrays.producer_indptr[node]
        num_out += arrays.indptr[node + 1] - arrays.indptr[node]
    indptr, consumers, out_edges = (
        np.zeros(count + 1, np.int64),
        np.empty(num_out, np.int64),
        np.empty(num_out, np.int64),
    )
    producer_indptr, producers = np.zeros(count + 1, np.int64), np.empty(num_in, np.int64)
    in_edges = np.empty(num_in, np.int64)
    times, groups, sizes = np.empty((devices, count)), np.empty(count, np.int64), np.empty(count)
    members, member_indptr = np.empty(count, np.int64), np.zeros(count + 1, np.int64)
    arrival, way = np.zeros((count, devices)), np.zeros((count, devices))
    num_in, num_out, num_members = 0, 0, 0
    for inside in range(count):
        node = span[inside]
        for position in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
            producer, edge = arrays.producers[position], arrays.in_edges[position]
            if local[producer] >= 0:
                producers[num_in], in_edges[num_in] = local[producer], edge
                num_in += 1
                continue
            for device in range(devices):
                there = end[producer] + moved(edge, home[producer], device, arrays)
                arrival[inside, device] = max(arrival[inside, device], there)
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            consumer, edge = arrays.consumers[position], arrays.out_edges[position]
            if local[consumer] >= 0:
                consumers[num_out], out_edges[num_out] = local[consumer], edge
                num_out += 1
                continue
            for device in range(devices):
                whole = moved(edge, device, home[consumer], arrays) + tail[consumer]
                way[inside, device] = max(way[inside, device], whole)
        producer_indptr[inside + 1], indptr[inside + 1] = num_in, num_out
        group, is_whole = arrays.groups[node], True
        for position in range(arrays.member_indptr[group], arrays.member_indptr[group + 1]):
            is_whole = is_whole and local[arrays.members[position]] >= 0
        for device in range(devices):
            times[device, inside] = arrays.times[device, node] if is_whole or device == home[node] else np.inf
        if local_groups[group] < 0:
            local_groups[group], sizes[num_groups] = num_groups, arrays.sizes[group]
            for position in range(arrays.member_indptr[group], arrays.member_indptr[group + 1]):
                if local[arrays.members[position]] >= 0:
                    members[num_members] = local[arrays.members[position]]
                    num_members += 1
            num_groups += 1
            member_indptr[num_groups] = num_members
        groups[inside] = local_groups[group]
    for node in span:
        local[node], local_groups[arrays.groups[node]] = -1, -1
    window = Arrays(
        indptr, consumers, out_edges, producer_indptr, producers, in_edges, times, arrays.amounts, arrays.fixed,
        arrays.per_amount, arrays.table, arrays.kind, groups, member_indptr[: num_groups + 1], members,
        sizes[:num_groups], arrays.memory, arrays.limits, span,
    )  # fmt: skip
    return window, arrival, way


@compiled
@no_type_check
def anneal_window(home, order, used, steps, temperature, state, window, border):
    """Begin and end of each operation of a window after so many steps; `home`, `order` and `used` are written.

    Args:
        home, order: of the operations of the window.
        used: of each memory, by all operations of the problem.
    """
    nodes, is_tight = len(home), window.limits.min() < np.inf
    begin, end, before, whole = np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1), np.zeros(nodes)
    now, _ = run_window(home, order, 0, np.inf, begin, end, before, whole, window, border)
    begin_now, end_now, before_now, whole_now = begin.copy(), end.copy(), before.copy(), whole.copy()
    position, chain, length, is_stale = np.argsort(order), np.empty(nodes, np.int64), 0, True
    moved_groups, sources = np.empty(MOST_MOVED, np.int64), np.empty(MOST_MOVED, np.int64)
    for _ in range(steps):
        if is_stale:
            length, is_stale = _chain(home, begin_now, end_now, before_now, whole_now, window, border, chain), False
        on_chain = uniform(state) < 0.5
        node = chain[np.int64(uniform(state) * length)] if on_chain else np.int64(uniform(state) * nodes)
        count, origin, to, first = step_from(
            node, home, order, position, before_now, used, is_tight, False, state, window, moved_groups, sources
        )
        if count < 0:
            continue
        limit = now - temperature * np.log(uniform(state) + 1e-300)
        took, last = run_window(home, order, first, limit, begin, end, before, whole, window, border)
        if took <= limit:
            now, is_stale = took, True
            for node in order[first:]:
                begin_now[node], end_now[node] = begin[node], end[node]
                before_now[node], whole_now[node] = before[node], whole[node]
            continue
        for node in order[first:last]:
            begin[node], end[node] = begin_now[node], end_now[node]
            before[node], whole[node] = before_now[node], whole_now[node]
        take_back(home, used, window, moved_groups, sources, count)
        if origin >= 0:
            rotate(order, position, to, origin)
    return begin_now, end_now


@compiled
@no_type_check
def run_window(home, order, first, limit, begin, end, before, whole, window, border):
    """The longest of all ways through a window, from the beginning of the schedule to its end, and the place up to
    which it was computed; the ways and that place are infinite and earlier if they would pass `limit`.

    Args:
        first: place from which on is computed.
        begin, end, before: of each operation, see `run_in_order`, written.
        whole: the longest way of those that leave the window after each operation, written.
    """
    producer_indptr, producers, in_edges = window.producer_indptr, window.producers, window.in_edges
    times, arrival, way, rest = window.times, border.arrival, border.way, border.rest
    free, last = border.free.copy(), np.full(len(rest), -1)
    latest = 0.0
    for node in order[:first]:
        free[home[node]], last[home[node]] = end[node], node
        latest = max(latest, whole[node])
    for place in range(first, len(order)):
        node = order[place]
        device = home[node]
        start = max(free[device], arrival[node, device])
        for position in range(producer_indptr[node], producer_indptr[node + 1]):
            producer = producers[position]
            there = end[producer]
            if home[producer] != device:
                there += moved(in_edges[position], home[producer], device, window)
            start = max(start, there)
        stop = start + times[device, node]
        begin[node], end[node], before[node] = start, stop, last[device]
        whole[node] = stop + max(way[node, device], rest[device])
        if whole[node] > limit:
            return np.inf, place + 1
        free[device], last[device] = stop, node
        latest = max(latest, whole[node])
    for device in range(len(rest)):
        latest = max(latest, free[device] + rest[device])
    return latest, len(order)


@compiled
@no_type_check
def _chain(home, begin, end, before, whole, window, border, chain):
    """Write the operations of the longest way through the window, the last first; how many they are."""
    node, length = np.argmax(whole), 0
    while node >= 0:
        chain[length] = node
        length += 1
        start, cause = begin[node], -1
        if before[node] >= 0 and end[before[node]] >= start:
            cause = before[node]
        elif max(border.arrival[node, home[node]], border.free[home[node]]) < start:
            for position in range(window.producer_indptr[node], window.producer_indptr[node + 1]):
                producer = window.producers[position]
                if end[producer] + moved(window.in_edges[position], home[producer], home[node], window) >= start:
                    cause = producer
                    break
        node = cause
    return length
