"""Binary heap of integers in an array, compiled by numba."""

from __future__ import annotations

from typing import no_type_check

from gst.util.compiled import compiled


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
