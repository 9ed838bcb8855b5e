"""A binary heap of ids, least key first (equal keys: lowest id first), whose keys may change in place.

`heap[slot]` is an id, `slots[id]` where it stands, `keys[id]` its key.
"""

from __future__ import annotations

from typing import no_type_check

from partitioners.compiled import compiled


@compiled
@no_type_check
def sift_up(heap, slots, keys, slot):
    """Restore the order after the key of the id at `slot` has become less."""
    moving = heap[slot]
    while slot > 0:
        parent = heap[(slot - 1) // 2]
        if keys[parent] < keys[moving] or (keys[parent] == keys[moving] and parent < moving):
            break
        heap[slot] = parent
        slots[parent] = slot
        slot = (slot - 1) // 2
    heap[slot] = moving
    slots[moving] = slot


@compiled
@no_type_check
def sift_down(heap, slots, keys, length, slot):
    """Restore the order of `heap[:length]` after the key of the id at `slot` has become greater."""
    moving = heap[slot]
    while 2 * slot + 1 < length:
        below = 2 * slot + 1
        child = heap[below]
        if below + 1 < length:
            other = heap[below + 1]
            if keys[other] < keys[child] or (keys[other] == keys[child] and other < child):
                below, child = below + 1, other
        if keys[moving] < keys[child] or (keys[moving] == keys[child] and moving < child):
            break
        heap[slot] = child
        slots[child] = slot
        slot = below
    heap[slot] = moving
    slots[moving] = slot
