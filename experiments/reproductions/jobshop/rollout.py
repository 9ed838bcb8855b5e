"""Rollouts of the job shop policy, compiled: a schedule built one operation after the other.

Giffler and Thompson's procedure (Algorithms for solving production-scheduling problems, 1960): the machine is that of
the operation which could end first, and the candidates are the jobs whose operation on it could start before that end.
A window between 0 (non-delay: only what could start first) and 1 (active: all of these) narrows the candidates
(Bierwirth and Mattfeld, Production scheduling and rescheduling with genetic algorithms, 1999); training chooses it.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np

from experiments.reproductions.jobshop.network import HIDDEN, LAYER, LINEAR, NUM_FEATURES, OUTPUT
from experiments.reproductions.jobshop.problem import JobShop
from gst.placement.search.moves import uniform
from partitioners.compiled import compiled

NETWORK, UNIFORM, MOST_WORK, SHORTEST, FIRST_COME = range(5)
"""Who chooses among the candidates: the network, chance, or a dispatching rule (most work remaining, shortest
processing time, first come first served)."""


class Tables(NamedTuple):
    """Tables of a problem for rollouts.

    Args:
        machines, times: (jobs, steps) int64.
        before: (jobs, steps + 1) float64: a job's work before each step.
        position: (machines, jobs) int64: at which step a job visits a machine.
        by_tail: (machines, jobs) int64: jobs by their work behind that machine, the longest first.
        scale, horizon: the mean time of an operation, and the greatest load of a machine or job.
    """

    machines: np.ndarray
    times: np.ndarray
    before: np.ndarray
    position: np.ndarray
    by_tail: np.ndarray
    scale: float
    horizon: float


def tables_of(shop: JobShop) -> Tables:
    """Tables of a problem.

    Examples:
        >>> shop = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]]))
        >>> tables_of(shop).horizon
        7.0
    """
    jobs, steps = shop.machines.shape
    before = np.zeros((jobs, steps + 1))
    np.cumsum(shop.times, axis=1, out=before[:, 1:])
    position = np.argsort(shop.machines, axis=1).T.copy()
    tails = before[:, -1][None] - before[np.arange(jobs)[None], position + 1]
    by_tail = np.argsort(-tails, axis=1, kind="stable")
    loads = np.bincount(shop.machines.reshape(-1), shop.times.reshape(-1), steps)
    horizon = max(float(loads.max()), float(before[:, -1].max()), 1e-9)
    scale = max(float(shop.times.mean()), 1e-9)
    return Tables(
        shop.machines.astype(np.int64), shop.times.astype(np.int64), before, position, by_tail, scale, horizon
    )


@compiled
@no_type_check
def machine_bound(tables, machine, free, without, step, ready):
    """Bound on the end of all jobs that still visit `machine`, free at `free`: for each tail, all operations with tails
    as long come one after the other from the earliest head on (0 if there are none)."""
    low, total, bound = np.inf, 0.0, 0.0
    last = tables.machines.shape[1]
    for job in tables.by_tail[machine]:
        position = tables.position[machine, job]
        if position < step[job] or job == without:
            continue
        head = max(free, ready[job] + tables.before[job, position] - tables.before[job, step[job]])
        low = min(low, head)
        total += tables.times[job, position]
        bound = max(bound, low + total + tables.before[job, last] - tables.before[job, position + 1])
    return bound


@compiled
@no_type_check
def next_arrival(tables, machine, without, step, ready):
    """When the next job may come to a machine, without one of them; infinite if none."""
    low = np.inf
    for job in range(len(step)):
        position = tables.position[machine, job]
        if position >= step[job] and job != without:
            low = min(low, ready[job] + tables.before[job, position] - tables.before[job, step[job]])
    return low


@compiled
@no_type_check
def roll_out(tables, weights, chooser, window, state, order):
    """Build one schedule and return its makespan.

    Args:
        weights: float32, see `experiments.reproductions.jobshop.network`.
        chooser: `NETWORK`, `UNIFORM` or a rule.
        window: 0 to 1; below 0 the one of the weights.
        state: of the random numbers, one uint64.
        order: (machines, jobs) int64, written: which jobs a machine runs, in order.
    """
    machines, times, before = tables.machines, tables.times, tables.before
    jobs, last = machines.shape
    scale, horizon = 1.0 / tables.scale, 1.0 / tables.horizon
    step, ready = np.zeros(jobs, np.int64), np.zeros(jobs)
    free, placed, work = np.zeros(last), np.zeros(last, np.int64), np.zeros(last)
    bounds = np.zeros(last)
    for job in range(jobs):
        for which in range(last):
            work[machines[job, which]] += times[job, which]
    for machine in range(last):
        bounds[machine] = machine_bound(tables, machine, 0.0, -1, step, ready)
    if window < 0.0:
        window = 1.0 / (1.0 + np.exp(-4.0 * weights[0]))
    candidates, starts = np.empty(jobs, np.int64), np.empty(jobs)
    after = np.empty(jobs)
    inputs = np.empty(NUM_FEATURES, np.float32)
    left_work, latest = before[:, last].sum(), 0.0
    active = jobs
    for done in range(jobs * last):
        first_end, machine = np.inf, -1
        for job in range(jobs):
            if step[job] < last:
                which = machines[job, step[job]]
                end = max(ready[job], free[which]) + times[job, step[job]]
                if end < first_end:
                    first_end, machine = end, which
        first_start = np.inf
        for job in range(jobs):
            if step[job] < last and machines[job, step[job]] == machine:
                first_start = min(first_start, max(ready[job], free[machine]))
        limit, count = first_start + window * (first_end - first_start), 0
        for job in range(jobs):
            if step[job] < last and machines[job, step[job]] == machine:
                start = max(ready[job], free[machine])
                if start <= first_start or (start <= limit and start < first_end):
                    candidates[count], starts[count] = job, start
                    count += 1
        choice = 0
        if count > 1 and chooser == UNIFORM:
            choice = np.int64(uniform(state) * count)
        elif count > 1 and chooser != NETWORK:
            best = -np.inf
            for number in range(count):
                job = candidates[number]
                if chooser == MOST_WORK:
                    value = before[job, last] - before[job, step[job]]
                elif chooser == SHORTEST:
                    value = -np.float64(times[job, step[job]])
                else:
                    value = -ready[job]
                if value > best:
                    best, choice = value, number
        elif count > 1:
            bounds[machine] = machine_bound(tables, machine, free[machine], -1, step, ready)
            least_bound, longest, first, second = np.inf, 0.0, np.inf, np.inf
            for number in range(count):
                job = candidates[number]
                end = starts[number] + times[job, step[job]]
                tail = before[job, last] - before[job, step[job] + 1]
                after[number] = max(end + tail, machine_bound(tables, machine, end, job, step, ready))
                least_bound, longest = min(least_bound, after[number]), max(longest, tail)
                if end < first:
                    first, second = end, first
                else:
                    second = min(second, end)
                if step[job] + 1 < last:
                    coming = machines[job, step[job] + 1]
                    bounds[coming] = machine_bound(tables, coming, free[coming], -1, step, ready)
            lower, bottleneck = latest, 0
            for which in range(last):
                if bounds[which] > bounds[bottleneck]:
                    bottleneck = which
            lower = max(latest, bounds[bottleneck])
            highest = -np.inf
            for number in range(count):
                job, start = candidates[number], starts[number]
                place = step[job]
                time = times[job, place]
                end, tail = start + time, before[job, last] - before[job, place + 1]
                inputs[0] = (start - first_start) * scale
                inputs[1] = (end - first) * scale
                inputs[2] = time * scale
                inputs[3] = (tail - longest) * scale
                inputs[4] = tail * horizon
                inputs[5] = (end + tail - lower) * scale
                inputs[6] = (after[number] - least_bound) * scale
                inputs[7] = (after[number] - lower) * scale
                inputs[8] = (start - free[machine]) * scale
                inputs[9] = (start - ready[job]) * scale
                inputs[10] = (last - place) / last
                inputs[11] = work[machine] * horizon
                for which in range(12, 17):
                    inputs[which] = 0.0
                inputs[23] = 0.0
                if place + 1 < last:
                    coming = machines[job, place + 1]
                    arrival = next_arrival(tables, coming, job, step, ready)
                    inputs[12] = times[job, place + 1] * scale
                    inputs[13] = (free[coming] - end) * scale
                    inputs[14] = min((max(arrival, free[coming]) - end) * scale, 20.0)
                    inputs[15] = work[coming] * horizon
                    inputs[16] = (bounds[coming] - lower) * scale
                    if place + 2 < last:
                        inputs[23] = (bounds[machines[job, place + 2]] - lower) * scale
                inputs[17] = (bounds[machine] - lower) * scale
                inputs[18] = count * 0.25
                inputs[19] = done / (jobs * last)
                inputs[20] = (tail + time - left_work / active) * scale
                inputs[21] = ((second if end == first else first) + time + tail - lower) * scale
                whither = tables.position[bottleneck, job]
                inputs[22] = (before[job, whither] - before[job, place]) * scale if whither > place else -2.0
                inputs[24] = np.log(jobs / last)
                delay = 0.0
                for other in range(count):
                    if other != number:
                        rival = candidates[other]
                        delay += max(0.0, end + before[rival, last] - before[rival, step[rival]] - lower + 2.0 / scale)
                inputs[25] = delay * scale / (count - 1)
                inputs[26] = (last - place - (jobs * last - done) / active) * 0.5
                value = score(inputs, weights)
                if value > highest:
                    highest, choice = value, number
        job = candidates[choice]
        time = times[job, step[job]]
        end = starts[choice] + time
        order[machine, placed[machine]] = job
        placed[machine] += 1
        step[job] += 1
        active -= step[job] == last
        ready[job], free[machine] = end, end
        work[machine] -= time
        left_work -= time
        latest = max(latest, end)
    return latest


@compiled
@no_type_check
def score(inputs, weights):
    """Score of a candidate: a linear function of its features, each squashed to x / (1 + |x|), and of `HIDDEN`
    rectified units of them."""
    total = np.float32(0.0)
    for feature in range(NUM_FEATURES):
        value = inputs[feature] / (np.float32(1.0) + abs(inputs[feature]))
        inputs[feature] = value
        total += weights[LINEAR + feature] * value
    for hidden in range(HIDDEN):
        row = LAYER + hidden * (NUM_FEATURES + 1)
        unit = weights[row + NUM_FEATURES]
        for feature in range(NUM_FEATURES):
            unit += weights[row + feature] * inputs[feature]
        if unit > 0:
            total += weights[OUTPUT + hidden] * unit
    return total


@compiled
@no_type_check
def roll_out_many(tables, weights, chooser, window, state, spans, best_order):
    """Build a schedule with each row of weights, (rollouts, weights), and write its makespan; the number of the best,
    whose order is written too."""
    best, order = -1, np.empty(best_order.shape, np.int64)
    for number in range(len(weights)):
        spans[number] = roll_out(tables, weights[number], chooser, window, state, order)
        if best < 0 or spans[number] < spans[best]:
            best = number
            best_order[:] = order
    return best
