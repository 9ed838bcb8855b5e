"""Lower bounds of a job shop: each machine alone, with heads and tails, preemption allowed (Carlier, 1982)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from experiments.reproductions.jobshop.problem import JobShop


def lower_bound(shop: JobShop) -> int:
    """The greatest of the jobs' lengths and of the machines' bounds; in units of the problem.

    Examples:
        >>> lower_bound(JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]])))
        7
    """
    ends = np.cumsum(shop.times, axis=1)
    heads, tails = ends - shop.times, ends[:, -1:] - ends
    bounds = [int(ends[:, -1].max())]
    for machine in range(shop.num_machines):
        here = shop.machines == machine
        bounds.append(preemptive_bound(heads[here].tolist(), shop.times[here].tolist(), tails[here].tolist()))
    return max(bounds)


def preemptive_bound(heads: Sequence[int], times: Sequence[int], tails: Sequence[int]) -> int:
    """The least makespan of one machine if operations may be interrupted: Jackson's preemptive schedule, which always
    runs the operation of the longest tail of those that have come.

    Examples:
        >>> preemptive_bound([0, 1], [4, 2], [0, 5])
        8
    """
    coming = sorted(zip(heads, times, tails, strict=True))
    waiting: list[tuple[int, int]] = []
    clock, bound, number = 0, 0, 0
    while number < len(coming) or waiting:
        if not waiting:
            clock = max(clock, coming[number][0])
        while number < len(coming) and coming[number][0] <= clock:
            heapq.heappush(waiting, (-coming[number][2], coming[number][1]))
            number += 1
        tail, left = heapq.heappop(waiting)
        until = coming[number][0] if number < len(coming) else clock + left
        spent = min(left, until - clock)
        clock += spent
        if spent < left:
            heapq.heappush(waiting, (tail, left - spent))
        else:
            bound = max(bound, clock - tail)
    return bound
