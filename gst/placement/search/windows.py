"""Annealing of windows of a schedule, for tasks of so many operations that a whole simulation is slow.

A window is a stretch of the order, and its border the times before and after it. The longest path through the window
follows from these alone (heads and tails, as in job shops: Carlier, European Journal of Operational Research 11, 1982).
Links never queue here, and operations do not slow each other down: a simulator has to judge the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from gst.placement.baselines.arrays import Scheduled, mean_times, moved
from gst.placement.search.moves import MOST_MOVED, rotate, step_from, take_back, uniform
from gst.util.compiled import compiled
from gst.util.progress import Progress, no_progress

SIZE = 64  # operations of a window
MOVES = 2.0  # steps for each operation of a window, before the next window
HEATS, COLD = (2.0, 0.08), 0.01
"""First temperatures of the trials, in mean times of an operation; the last temperature, as a share of the first."""
TRIAL = 0.2  # share of the steps that each trial has


@dataclass(frozen=True, eq=False)
class Schedule:
    """The device and the times of each operation, and the order in which each core runs its operations.

    Args:
        home: device of each operation.
        order: all operations, every producer before its consumers.
        begin, end: in the unit of `Arrays.times`.
    """

    home: Int64[np.ndarray, " nodes"]
    order: Int64[np.ndarray, " nodes"]
    begin: Float64[np.ndarray, " nodes"]
    end: Float64[np.ndarray, " nodes"]

    @property
    def makespan(self) -> float:
        return float(self.end.max(initial=0.0))


class Run(NamedTuple):
    """Times of operations while a window is annealed.

    Args:
        before: the operation that left the cores of each one last, within its window, or -1.
        whole: the longest path through the schedule that leaves the window after each operation.
    """

    begin: Float64[np.ndarray, " nodes"]
    end: Float64[np.ndarray, " nodes"]
    before: Int64[np.ndarray, " nodes"]
    whole: Float64[np.ndarray, " nodes"]


class Border(NamedTuple):
    """The times outside a window on which it depends.

    Args:
        free: end of the operations before the window on each core.
        rest: time from the start of the operations after the window on each core to the end of the schedule.
        way: time from the end of each operation to the end of the schedule through readers after the window, if the
            operation runs on each device.
    """

    free: Float64[np.ndarray, " cores"]
    rest: Float64[np.ndarray, " cores"]
    way: Float64[np.ndarray, "nodes devices"]


def schedule(what: Scheduled, home: Int64[np.ndarray, " nodes"], order: Int64[np.ndarray, " nodes"]) -> Schedule:
    """Compute the times of each operation; arguments as in `Schedule`."""
    nodes, (devices, cores) = len(home), what.use.shape
    run = Run(np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1), np.zeros(nodes))
    border = Border(np.zeros(cores), np.zeros(cores), np.zeros((nodes, devices)))
    run_window(home, order, 0, 0, nodes, np.inf, run, what, border)
    return Schedule(home, order, run.begin, run.end)


def refine(
    what: Scheduled, start: Schedule, steps: int, seed: int = 0, progress: Progress = no_progress
) -> tuple[Schedule, int]:
    """Anneal the windows of a schedule, and return the shortest schedule and the number of steps taken.

    A sweep visits the windows of the schedule once. A descent is a series of sweeps, each with other bounds of windows,
    while the temperature falls geometrically. Two trial descents begin with `start`, one at each of `HEATS`. A third
    has the steps that remain: it begins with the shortest schedule so far, at the heat of the better trial.

    Args:
        start: keeps the limits of the memories, and every operation can run on its device.
        steps: at most.

    Examples:
        >>> from gst.placement.search.annealing import ComputedOperations
        >>> from gst.placement.machines import generated_task
        >>> what = ComputedOperations(generated_task(0, num_nodes=400, num_devices=2)).what
        >>> order = np.arange(len(what.computed))
        >>> start = schedule(what, order % 2, order)
        >>> result, count = refine(what, start, steps=20_000)
        >>> result.makespan < 0.9 * start.makespan, count <= 20_000
        (True, True)
    """
    generator, state = np.random.default_rng([seed, 31]), np.array([2 * seed + 1], np.uint64)
    trials: dict[float, Schedule] = {}
    total = 0
    for heat in HEATS:
        share = TRIAL * len(trials), TRIAL
        trials[heat], count = _descend(what, start, heat, int(TRIAL * steps), generator, state, share, progress)
        total += count
    heat = min(trials, key=lambda heat: trials[heat].makespan)
    best = min(start, *trials.values(), key=lambda each: each.makespan)
    share = TRIAL * len(HEATS), 1 - TRIAL * len(HEATS)
    result, count = _descend(what, best, heat, steps - total, generator, state, share, progress)
    return min(best, result, key=lambda each: each.makespan), total + count


def _descend(
    what: Scheduled, start: Schedule, heat: float, steps: int, generator: np.random.Generator,
    state: UInt64[np.ndarray, " 1"], share: tuple[float, float], progress: Progress,
) -> tuple[Schedule, int]:  # fmt: skip
    """Run sweeps while the temperature falls from `heat`; return the last schedule and the number of steps. `share` is
    the part of the search before this descent, and the part of this descent."""
    home, order, begin, end = start.home.copy(), start.order.copy(), start.begin.copy(), start.end.copy()
    unit, total, done = mean_times(what.arrays.times).mean() if len(home) else 0.0, 0, 0.0
    while done < 1 and (moves := min(MOVES, (steps - total) / len(home))) * SIZE >= 1:
        order = order[np.argsort(begin[order], kind="stable")]
        offset, temperature = int(generator.integers(1, SIZE + 1)), heat * unit * COLD**done
        count = sweep(home, order, begin, end, offset, int(moves * SIZE), temperature, state, what)
        if count == 0:
            break
        total += count
        done = total / steps
        progress("windows", int(1000 * (share[0] + share[1] * min(done, 1))), 1000)
    return schedule(what, home, order), total


@compiled
@no_type_check
def sweep(home, order, begin, end, offset, steps, temperature, state, what):
    """Anneal a schedule (`home`, `order`, `begin`, `end`, written) window by window; return the number of steps.

    Args:
        offset: operations of the first window, 1 to `SIZE`.
        steps: in a window of `SIZE` operations.
        state: that of the random numbers, one uint64.
    """
    arrays, core_indptr, cores = what.arrays, what.core_indptr, what.cores
    nodes, (devices, num_cores) = len(home), what.use.shape
    used, free, way = np.zeros(len(arrays.limits)), np.zeros(num_cores), np.zeros((nodes, devices))
    for group in range(len(arrays.sizes)):
        used[arrays.memory[home[arrays.members[arrays.member_indptr[group]]]]] += arrays.sizes[group]
    tail, rests = tails(home, order, offset, what)
    position = np.empty(nodes, np.int64)
    for place in range(nodes):
        position[order[place]] = place
    now = Run(begin, end, np.full(nodes, -1), np.zeros(nodes))
    trial = Run(begin.copy(), end.copy(), np.full(nodes, -1), np.zeros(nodes))
    low, total = 0, 0
    for number in range(len(rests)):
        high = min(offset + number * SIZE, nodes)
        for node in order[low:high]:
            for where in range(arrays.indptr[node], arrays.indptr[node + 1]):
                consumer, edge = arrays.consumers[where], arrays.out_edges[where]
                for device in range(devices if position[consumer] >= high else 0):
                    through = moved(edge, device, home[consumer], arrays) + tail[consumer]
                    way[node, device] = max(way[node, device], through)
        count, border = steps * (high - low) // SIZE, Border(free, rests[number], way)
        anneal_window(home, order, position, low, high, used, count, temperature, state, now, trial, what, border)
        total += count
        for node in order[low:high]:
            for core in cores[core_indptr[home[node]] : core_indptr[home[node] + 1]]:
                free[core] = end[node]
        low = high
    return total


@compiled
@no_type_check
def tails(home, order, offset, what):
    """Compute the time from the start of each node to the end of the schedule, and the same for each window and core
    from the first operation after the window."""
    arrays, core_indptr, cores = what.arrays, what.core_indptr, what.cores
    windows = 1 + max(len(home) - offset + SIZE - 1, 0) // SIZE
    tail, rest = np.zeros(len(home)), np.zeros(what.use.shape[1])
    rests, window = np.zeros((windows, len(rest))), windows - 1
    for place in range(len(home) - 1, -1, -1):
        while window >= 0 and place < offset + window * SIZE:
            rests[window] = rest
            window -= 1
        node = order[place]
        device, way = home[node], 0.0
        mine = cores[core_indptr[device] : core_indptr[device + 1]]
        for core in mine:
            way = max(way, rest[core])
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            consumer = arrays.consumers[position]
            way = max(way, moved(arrays.out_edges[position], device, home[consumer], arrays) + tail[consumer])
        tail[node] = arrays.times[device, node] + way
        for core in mine:
            rest[core] = tail[node]
    return tail, rests


@compiled
@no_type_check
def anneal_window(home, order, position, low, high, used, steps, temperature, state, now, trial, what, border):
    """Anneal the window of `order` from `low` to `high`. `used` are the bytes of each memory, `now` and `trial` the
    times of the schedule and of a changed one; all are written."""
    arrays, is_tight = what.arrays, what.arrays.limits.min() < np.inf
    span, chain, length, is_stale = order[low:high].copy(), np.empty(high - low, np.int64), 0, True
    moved_groups, sources = np.empty(MOST_MOVED, np.int64), np.empty(MOST_MOVED, np.int64)
    least, _ = run_window(home, order, low, low, high, np.inf, trial, what, border)
    copy_run(trial, now, span)
    for _ in range(steps):
        if is_stale:
            length, is_stale = _chain(home, position, low, span, now, arrays, chain), False
        on_chain = uniform(state) < 0.5
        node = chain[np.int64(uniform(state) * length)] if on_chain else span[np.int64(uniform(state) * len(span))]
        count, origin, to, first = step_from(
            node, span, low, home, order, position, now.before, used, is_tight, state, arrays, moved_groups,
            sources,
        )  # fmt: skip
        if count < 0:
            continue
        limit = least - temperature * np.log(uniform(state) + 1e-300)
        took, last = run_window(home, order, low, first, high, limit, trial, what, border)
        if took <= limit:
            least, is_stale = took, True
            copy_run(trial, now, order[first:high])
            continue
        copy_run(now, trial, order[first:last])
        take_back(home, used, arrays, moved_groups, sources, count)
        if origin >= 0:
            rotate(order, position, to, origin)


@compiled
@no_type_check
def copy_run(source, target, nodes):
    """Copy some nodes of a `Run` to another."""
    for node in nodes:
        target.begin[node], target.end[node] = source.begin[node], source.end[node]
        target.before[node], target.whole[node] = source.before[node], source.whole[node]


@compiled
@no_type_check
def run_window(home, order, low, first, high, limit, run, what, border):
    """Compute the longest path through a window of `order`, `low` to `high`; operations before `first` did not change.

    Returns:
        The length, infinite if it would pass `limit`; and the place before which operations were computed.
    """
    arrays, core_indptr, cores, times = what.arrays, what.core_indptr, what.cores, what.arrays.times
    producer_indptr, producers, in_edges = arrays.producer_indptr, arrays.producers, arrays.in_edges
    begin, end, before, whole = run.begin, run.end, run.before, run.whole
    free, last = border.free.copy(), np.full(len(border.free), -1)
    latest = 0.0
    for node in order[low:first]:
        latest = max(latest, whole[node])
        for where in range(core_indptr[home[node]], core_indptr[home[node] + 1]):
            free[cores[where]], last[cores[where]] = end[node], node
    for place in range(first, high):
        node = order[place]
        device = home[node]
        start, rest, previous = 0.0, border.way[node, device], -1
        for where in range(core_indptr[device], core_indptr[device + 1]):
            core = cores[where]
            start, rest = max(start, free[core]), max(rest, border.rest[core])
            if last[core] >= 0 and (previous < 0 or end[last[core]] > end[previous]):
                previous = last[core]
        for where in range(producer_indptr[node], producer_indptr[node + 1]):
            producer = producers[where]
            there = end[producer]
            if home[producer] != device:
                there += moved(in_edges[where], home[producer], device, arrays)
            start = max(start, there)
        stop = start + times[device, node]
        begin[node], end[node], before[node], whole[node] = start, stop, previous, stop + rest
        if whole[node] > limit:
            return np.inf, place + 1
        for where in range(core_indptr[device], core_indptr[device + 1]):
            free[cores[where]], last[cores[where]] = stop, node
        latest = max(latest, whole[node])
    for core in range(len(free)):
        latest = max(latest, free[core] + border.rest[core])
    return latest, high


@compiled
@no_type_check
def _chain(home, position, low, span, run, arrays, chain):
    """Write the operations of the longest path through a window, the last first; return their number."""
    node, length = span[0], 0
    for other in span:
        if run.whole[other] > run.whole[node]:
            node = other
    while node >= 0:
        chain[length] = node
        length += 1
        start, cause = run.begin[node], -1
        if run.before[node] >= 0 and run.end[run.before[node]] >= start:
            cause = run.before[node]
        else:
            for where in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
                producer = arrays.producers[where]
                transfer = moved(arrays.in_edges[where], home[producer], home[node], arrays)
                if position[producer] >= low and run.end[producer] + transfer >= start:
                    cause = producer
                    break
        node = cause
    return length
