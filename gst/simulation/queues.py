"""Queues of the simulator, compiled by numba: a binary heap of integers, and the copies that leave each memory."""

from __future__ import annotations

from typing import no_type_check

from partitioners.compiled import compiled


@compiled
@no_type_check
def push(heap, size, key):
    """Add `key` to a binary heap of `size` keys, the least on top."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= key:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = key


@compiled
@no_type_check
def pop(heap, size):
    """Take the least key from a binary heap of `size` keys."""
    least, last = heap[0], heap[size - 1]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = last
    return least


@compiled
@no_type_check
def enqueue(node, queue, first, size, begin, end):
    """Put the value of a node that has just ended into a lane, behind its first `first` nodes, in the order of
    `_precedes`."""
    position = size
    while position > first and _precedes(node, queue[position - 1], begin, end):
        queue[position] = queue[position - 1]
        position -= 1
    queue[position] = node


@compiled
@no_type_check
def _precedes(node, other, begin, end):
    """Return True if a node comes before another in a lane of copies: by begin, then by end, then by number."""
    if begin[node] != begin[other]:
        return begin[node] < begin[other]
    return end[node] < end[other] or (end[node] == end[other] and node < other)


@compiled
@no_type_check
def next_reader(node, last, home, memory, indptr, consumers, away):
    """Return the first reader of a value in the next memory that gets a copy of it, in program order; -1 without one.

    Args:
        last: first reader in the memory that got a copy last; -1 at the beginning.
        away: int64 (memories), overwritten.
    """
    away[:] = len(home)
    for position in range(indptr[node], indptr[node + 1]):
        consumer = consumers[position]
        there = memory[home[consumer]]
        if there != memory[home[node]]:
            away[there] = min(away[there], consumer)
    result = len(home)
    for there in range(len(away)):
        if away[there] > last:
            result = min(result, away[there])
    return result if result < len(home) else -1
