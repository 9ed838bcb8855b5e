"""Which rows leave when a table is full: those written the longest ago."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int32, Int64

from embedding_cache.compiled import compiled


class WriteOrder:
    """The slots in use, from the least to the most recently written, at 12 bytes per slot.

    A ring: `after[0]` is the oldest slot and `before[0]` the newest, as slot 0 belongs to no key. A write, with the
    eviction it may cause, takes the same time however many slots there are.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._key_of, self._before, self._after = (np.zeros(1, np.int32) for _ in range(3))

    @property
    def nbytes(self) -> int:
        return 3 * self._key_of.nbytes

    def grow(self, num_slots: int) -> None:
        self._key_of, self._before, self._after = (
            np.concatenate([array, np.zeros(num_slots - len(array), np.int32)])
            for array in (self._key_of, self._before, self._after)
        )

    def assign(
        self, slot_of: Int32[np.ndarray, " all_keys"], keys: Int64[np.ndarray, " keys"], in_use: int
    ) -> tuple[Int32[np.ndarray, " keys"], int]:
        """The slots that distinct `keys`, at most `capacity`, are written to in their order, and the slots then in use.
        A new key takes a free slot, or the oldest one from the key that has it; `slot_of` follows."""
        slots = np.empty(len(keys), np.int32)
        in_use = _assign(slot_of, self._key_of, self._before, self._after, keys, slots, in_use, self.capacity)
        return slots, in_use

    def oldest_first(self) -> Int32[np.ndarray, " in_use"]:
        """The slots in use, the least recently written first."""
        return _follow(self._after)


@compiled
@no_type_check
def _assign(slot_of, key_of, before, after, keys, slots, in_use, capacity):
    for i in range(len(keys)):
        slot = slot_of[keys[i]]
        if slot == 0 and in_use < capacity:
            in_use += 1
            slot = in_use
        else:
            if slot == 0:
                slot = after[0]
                slot_of[key_of[slot]] = 0
            after[before[slot]], before[after[slot]] = after[slot], before[slot]
        newest = before[0]
        after[newest], before[slot], after[slot], before[0] = slot, newest, 0, slot
        slot_of[keys[i]], key_of[slot], slots[i] = slot, keys[i], slot
    return in_use


@compiled
@no_type_check
def _follow(after):
    slots = np.empty(len(after) - 1, np.int32)
    found, slot = 0, after[0]
    while slot != 0:
        slots[found] = slot
        found, slot = found + 1, after[slot]
    return slots[:found]
