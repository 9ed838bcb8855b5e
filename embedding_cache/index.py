"""Which row belongs to which key, when it was written, and which rows leave a full table. On the host."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Int32, Int64

from embedding_cache.kernels import compiled


class KeyIndex:
    """Keys 0..num_keys-1 -> slots of rows, at 4 bytes per key and 8 per slot.

    Slot 0 is a row of zeros that no key owns: keys never written point at it, so that one gather answers for known
    and unknown keys alike. Slots 1..rows_in_use are taken, without gaps.

    Args:
        num_keys: keys there may be.
        capacity: most rows at a time; None for as many as keys.
    """

    def __init__(self, num_keys: int, capacity: int | None) -> None:
        self.num_keys = num_keys
        self.rows_in_use = 0
        self.step = 0  # the greatest pushed
        self._order = None if capacity is None else WriteOrder(capacity)
        self._slot_of = np.zeros(num_keys, np.int32)
        self._written = np.zeros(1, np.int64)

    @property
    def most_rows(self) -> int:
        return self.num_keys if self._order is None else min(self._order.capacity, self.num_keys)

    @property
    def nbytes(self) -> int:
        return self._slot_of.nbytes + self._written.nbytes + (self._order.nbytes if self._order else 0)

    def look_up(
        self, keys: Int64[np.ndarray, " keys"], now: int
    ) -> tuple[Int32[np.ndarray, " keys"], Int64[np.ndarray, " keys"], Bool[np.ndarray, " keys"]]:
        """Slots (0 where nothing was written), ages at step `now` (-1 there), and whether anything was written.

        Raises:
            ValueError: a key is out of range.
        """
        slots, ages, is_known = (
            np.empty(len(keys), np.int32),
            np.empty(len(keys), np.int64),
            np.empty(len(keys), np.bool_),
        )
        fault = _look_up(self._slot_of, self._written, keys, now, slots, ages, is_known)
        if fault >= 0:
            self._refuse(keys, fault)
        return slots, ages, is_known

    def find(self, keys: Int64[np.ndarray, " keys"]) -> tuple[Int32[np.ndarray, " keys"], int]:
        """The slots of keys about to be written, and how many of them have none yet.

        Raises:
            ValueError: a key is out of range or repeated.
        """
        slots = np.empty(len(keys), np.int32)
        fault, num_new = _find(self._slot_of, keys, slots)
        if fault >= 0:
            self._refuse(keys, fault)
        return slots, num_new

    def assign(
        self, keys: Int64[np.ndarray, " keys"], found: Int32[np.ndarray, " keys"], step: int
    ) -> Int32[np.ndarray, " keys"]:
        """The slots that keys are written to at `step`; new ones get one, from others if `capacity` is reached.

        Args:
            keys: distinct, at most `most_rows`; room was made for those that are new.
            found: what `find` said of them.
        """
        if self._order is not None:
            found, self.rows_in_use = self._order.assign(self._slot_of, keys, self.rows_in_use)
        slots = np.empty_like(found)
        self.rows_in_use = _assign(self._slot_of, self._written, keys, found, slots, step, self.rows_in_use)
        self.step = max(self.step, step)
        return slots

    def stamp(self, slots: Int32[np.ndarray, " slots"], steps: Int64[np.ndarray, " slots"]) -> None:
        """Say when rows were really written."""
        self._written[slots] = steps

    def grow(self, num_slots: int) -> None:
        self._written = np.concatenate([self._written, np.zeros(num_slots - len(self._written), np.int64)])
        if self._order is not None:
            self._order.grow(num_slots)

    def resize(self, num_keys: int) -> None:
        """Make room for more keys."""
        larger = np.zeros(num_keys, np.int32)
        larger[: self.num_keys] = self._slot_of
        self._slot_of, self.num_keys = larger, num_keys

    def ages(self, now: int) -> Int64[np.ndarray, " in_use"]:
        """Of the rows in use, in no order."""
        return now - self._written[1 : self.rows_in_use + 1]

    def in_use(self) -> tuple[Int64[np.ndarray, " in_use"], Int32[np.ndarray, " in_use"], Int64[np.ndarray, " in_use"]]:
        """Keys in use, ascending, their slots, and the steps these were written at."""
        keys = self._slot_of.nonzero()[0]
        slots = self._slot_of[keys]
        return keys, slots, self._written[slots]

    def by_write(
        self,
    ) -> tuple[Int64[np.ndarray, " in_use"], Int32[np.ndarray, " in_use"], Int64[np.ndarray, " in_use"]]:
        """`in_use` from the least to the most recently written; without a capacity, by step and key."""
        keys, slots, written = self.in_use()
        if self._order is None:
            order = np.argsort(written, kind="stable")
        else:
            place = np.empty(len(slots) + 1, np.int64)
            place[slots] = np.arange(len(slots))
            order = place[self._order.oldest_first()]
        return keys[order], slots[order], written[order]

    def _refuse(self, keys: Int64[np.ndarray, " keys"], fault: int) -> None:
        lowest, highest = keys.min(), keys.max()
        if lowest < 0 or highest >= self.num_keys:
            raise ValueError(f"keys are {lowest}..{highest}; wanted 0..{self.num_keys - 1}: resize first")
        raise ValueError(f"key {keys[fault]} is repeated; wanted each once: push its newest row")


@compiled
@no_type_check
def _look_up(slot_of, written, keys, now, slots, ages, is_known):
    """-1, or where the first key out of range is."""
    for i in range(len(keys)):
        key = keys[i]
        if key < 0 or key >= len(slot_of):
            return i
        slot = slot_of[key]
        slots[i], is_known[i] = slot, slot > 0
        ages[i] = now - written[slot] if slot > 0 else -1
    return -1


@compiled
@no_type_check
def _find(slot_of, keys, slots):
    """-1 and the number of new keys, or where the first faulty key is. A key seen has its slot noted as -1 - slot until
    all are, so the second sight of one shows; then all are as they were."""
    fault, num_new, seen = -1, 0, 0
    for i in range(len(keys)):
        key = keys[i]
        if key < 0 or key >= len(slot_of) or slot_of[key] < 0:
            fault = i
            break
        slots[i] = slot_of[key]
        slot_of[key] = -1 - slots[i]
        num_new += slots[i] == 0
        seen += 1
    for i in range(seen):
        slot_of[keys[i]] = slots[i]
    return fault, num_new


@compiled
@no_type_check
def _assign(slot_of, written, keys, found, slots, step, in_use):
    """Keep the slots that were found and give the keys without one (0) the next free; returns the slots then in use."""
    for i in range(len(keys)):
        slot = found[i]
        if slot == 0:
            in_use += 1
            slot = slot_of[keys[i]] = in_use
        slots[i] = slot
        written[slot] = step
    return in_use


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
        in_use = _assign_by_write(slot_of, self._key_of, self._before, self._after, keys, slots, in_use, self.capacity)
        return slots, in_use

    def oldest_first(self) -> Int32[np.ndarray, " in_use"]:
        """The slots in use, the least recently written first."""
        return _follow(self._after)


@compiled
@no_type_check
def _assign_by_write(slot_of, key_of, before, after, keys, slots, in_use, capacity):
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
