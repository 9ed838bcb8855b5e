"""Queues of the simulator, compiled by numba: a binary heap of integers, and the copies that leave each memory."""

from __future__ import annotations

from typing import no_type_check

from gst.util.compiled import compiled


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
