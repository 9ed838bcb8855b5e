"""The disjunctive graph of a schedule, compiled: heads, tails and the makespan.

An operation is numbered `job * machines + step`. Its head is its earliest start; its tail is the longest way from its
start to the end of the schedule, its own time included. Orders are (machines, jobs): which jobs a machine runs, one
after the other.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int64

from experiments.reproductions.jobshop.problem import JobShop
from partitioners.compiled import compiled


def starts_of(shop: JobShop, order: Int64[np.ndarray, "machines jobs"]) -> Int64[np.ndarray, "jobs steps"]:
    """When each operation starts if machines keep to an order and nothing waits for no reason.

    Raises:
        ValueError: the order is no permutation of the jobs on each machine, or jobs wait for each other for ever.

    Examples:
        >>> shop = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]]))
        >>> starts_of(shop, np.array([[0, 1], [1, 0]])).tolist()
        [[0, 3], [0, 3]]
    """
    if order.shape != (shop.num_machines, shop.num_jobs) or (np.sort(order, 1) != np.arange(shop.num_jobs)).any():
        raise ValueError("the order does not hold each job once on each machine")
    arrays = graph_arrays(shop.num_operations)
    if link(shop.machines, order, arrays) and heads_and_tails(shop.times.reshape(-1), shop.num_machines, arrays) >= 0:
        return arrays[2].reshape(shop.times.shape).copy()
    raise ValueError("the order makes jobs wait for each other for ever")


def makespan_of(shop: JobShop, order: Int64[np.ndarray, "machines jobs"]) -> int:
    """When the last operation ends.

    Raises:
        ValueError: as `starts_of`.
    """
    return int((starts_of(shop, order) + shop.times).max())


def graph_arrays(operations: int) -> Int64[np.ndarray, "5 operations"]:
    """Room for the predecessor and the successor on the machine (-1 if none), the head, the tail, and a topological
    order of all operations."""
    return np.zeros((5, operations), np.int64)


@compiled
@no_type_check
def link(machines, order, arrays):
    """Write predecessors and successors on the machines."""
    jobs, last = machines.shape
    step = np.empty((last, jobs), np.int64)
    for job in range(jobs):
        for which in range(last):
            step[machines[job, which], job] = which
    for machine in range(last):
        before = -1
        for number in range(jobs):
            job = order[machine, number]
            operation = job * last + step[machine, job]
            arrays[0, operation], arrays[1, operation] = before, -1
            if before >= 0:
                arrays[1, before] = operation
            before = operation
    return True


@compiled
@no_type_check
def heads_and_tails(times, last, arrays):
    """Write heads, tails and a topological order; the makespan, or -1 if there is a circle."""
    before, after, head, tail, queue = arrays[0], arrays[1], arrays[2], arrays[3], arrays[4]
    operations = len(times)
    size = 0
    for operation in range(operations):  # the tail counts predecessors that have not come, until heads are there
        tail[operation] = (operation % last != 0) + (before[operation] >= 0)
        head[operation] = 0
        if tail[operation] == 0:
            queue[size] = operation
            size += 1
    done, span = 0, 0
    while done < size:
        operation = queue[done]
        done += 1
        end = head[operation] + times[operation]
        span = max(span, end)
        following = operation + 1
        if following % last != 0:
            head[following] = max(head[following], end)
            tail[following] -= 1
            if tail[following] == 0:
                queue[size] = following
                size += 1
        following = after[operation]
        if following >= 0:
            head[following] = max(head[following], end)
            tail[following] -= 1
            if tail[following] == 0:
                queue[size] = following
                size += 1
    if size < operations:
        return -1
    for number in range(operations - 1, -1, -1):
        operation = queue[number]
        longest = 0
        if (operation + 1) % last != 0:
            longest = tail[operation + 1]
        if after[operation] >= 0:
            longest = max(longest, tail[after[operation]])
        tail[operation] = longest + times[operation]
    return span
