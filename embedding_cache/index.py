"""Indexes of a table: the row of each key, the step of each write, and the rows that leave a full table.

`KeyIndex` is on the host. With `DenseIndex` every key has a row, which an accelerator finds and writes by itself.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from embedding_cache.storage import compiled

Keys = Int64[np.ndarray, " keys"]
Slots = Int32[np.ndarray, " keys"]
InUse = tuple[Int64[np.ndarray, " in_use"], Int32[np.ndarray, " in_use"], Int64[np.ndarray, " in_use"]]


class WriteOrder(NamedTuple):
    """The slots in use as a ring by time of writing: `after[0]` is the oldest, `before[0]` the newest; 0 has no key."""

    key_of: Int32[np.ndarray, " slots"]
    before: Int32[np.ndarray, " slots"]
    after: Int32[np.ndarray, " slots"]


class KeyIndex:
    """Keys 0..num_keys-1 -> slots of at most `capacity` rows, at 4 bytes per key and 8 per slot.

    Slot 0 is a row of zeros that no key owns: keys never written point at it, so that one gather answers for known
    and unknown keys alike. Slots 1..rows_in_use are taken, without gaps.
    """

    def __init__(self, num_keys: int, capacity: int | None) -> None:
        self.num_keys = num_keys
        self.rows_in_use = 0
        self.step = 0  # the greatest pushed
        self._capacity = capacity
        self._order = None if capacity is None else WriteOrder(*np.zeros((3, 1), np.int32))
        self._slot_of = self._all_slots = np.zeros(num_keys, np.int32)  # the first is a part of the second
        self._written = np.zeros(1, np.int64)

    @property
    def most_rows(self) -> int:
        return self.num_keys if self._capacity is None else min(self._capacity, self.num_keys)

    @property
    def nbytes(self) -> int:
        arrays = (self._all_slots, self._written, *(self._order or ()))
        return sum(array.nbytes for array in arrays)

    def look_up(self, keys: Keys, now: int) -> tuple[Slots, Keys, Bool[np.ndarray, " keys"]]:
        """Return slots and ages at step `now` (0 and -1 if never written), and known flags; or raise ValueError."""
        fault, *result = _look_up(self._slot_of, self._written, keys, now)
        if fault >= 0:
            refuse(keys, fault, self.num_keys)
        slots, ages, is_known = result
        return slots, ages, is_known

    def find(self, keys: Keys) -> tuple[Slots, int]:
        """Return the slots of keys about to be written, and the number of those without one; or raise ValueError."""
        fault, slots, num_new = _find(self._slot_of, keys)
        if fault >= 0:
            refuse(keys, fault, self.num_keys)
        return slots, num_new

    def assign(self, keys: Keys, before: Slots, step: int) -> Slots:
        """Return the slots for writing at most `most_rows` distinct `keys`; `before` are their slots, from `find`."""
        if self._order is None:
            slots, self.rows_in_use = _assign(self._slot_of, keys, before, self.rows_in_use)
        else:
            slots, self.rows_in_use = _assign_by_write(
                self._slot_of, self._order, keys, self.rows_in_use, self.most_rows
            )
        self._written[slots] = step
        self.step = max(self.step, step)
        return slots

    def stamp(self, slots: Int32[np.ndarray, " slots"], steps: Int64[np.ndarray, " slots"]) -> None:
        """Say when rows were really written."""
        self._written[slots] = steps

    def grow(self, num_slots: int) -> None:
        """Make room for more rows."""
        more = num_slots - len(self._written)
        self._written = np.pad(self._written, (0, more))
        if self._order is not None:
            self._order = WriteOrder(*(np.pad(array, (0, more)) for array in self._order))

    def resize(self, num_keys: int) -> None:
        """Make room for more keys; by doubling, so that keys added one by one are not copied each time."""
        if num_keys > len(self._all_slots):
            larger = np.zeros(max(num_keys, 2 * self.num_keys), np.int32)
            larger[: self.num_keys] = self._slot_of
            self._all_slots = larger
        self._slot_of, self.num_keys = self._all_slots[:num_keys], num_keys

    def in_use(self) -> InUse:
        """Keys in use, ascending, their slots, and the steps of their last writes."""
        keys = self._slot_of.nonzero()[0]
        slots = self._slot_of[keys]
        return keys, slots, self._written[slots]

    def by_write(self) -> InUse:
        """`in_use` from the least to the most recently written; without a capacity, by step and key."""
        keys, slots, written = self.in_use()
        if self._order is None:
            return by_step(keys, slots, written)
        place = np.empty(len(slots) + 1, np.int64)
        place[slots] = np.arange(len(slots))
        order = place[_follow(self._order.after)]
        return keys[order], slots[order], written[order]


def by_step(keys: np.ndarray, slots: np.ndarray, steps: np.ndarray) -> InUse:
    """Sort keys in use, which ascend, by step."""
    order = np.argsort(steps, kind="stable")
    return keys[order], slots[order], steps[order]


def refuse(keys: Keys, fault: int, num_keys: int) -> NoReturn:
    """Raise ValueError, as a key is out of range or the one at `fault` repeated."""
    lowest, highest = keys.min(), keys.max()
    if lowest < 0 or highest >= num_keys:
        raise ValueError(f"keys are {lowest}..{highest}; wanted 0..{num_keys - 1}: resize first")
    raise ValueError(f"key {keys[fault]} is repeated; wanted each once: push its newest row")


@compiled
@no_type_check
def _look_up(slot_of, written, keys, now):
    """-1, or the position of the first key out of range; then slots, ages and whether there is a row."""
    slots, ages, is_known = np.empty(len(keys), np.int32), np.empty(len(keys), np.int64), np.empty(len(keys), np.bool_)
    fault = -1
    for i in range(len(keys)):
        key = keys[i]
        if key < 0 or key >= len(slot_of):
            fault = i
            break
        slot = slot_of[key]
        slots[i], is_known[i] = slot, slot > 0
        ages[i] = now - written[slot] if slot > 0 else -1
    return fault, slots, ages, is_known


@compiled
@no_type_check
def _find(slot_of, keys):
    """-1, or the position of the first key that is out of range or repeated; the slots, and the number of new keys."""
    slots = np.empty(len(keys), np.int32)
    fault, num_new, passed = -1, 0, 0
    for i in range(len(keys)):
        key = keys[i]
        if key < 0 or key >= len(slot_of) or slot_of[key] < 0:
            fault = i
            break
        slots[i] = slot_of[key]
        slot_of[key] = -1 - slots[i]
        num_new += slots[i] == 0
        passed += 1
    for i in range(passed):
        slot_of[keys[i]] = slots[i]
    return fault, slots, num_new


@compiled
@no_type_check
def _assign(slot_of, keys, before, in_use):
    """Keys keep their slots `before`; those without one (0) get the next free. Also returns how many are in use."""
    slots = before.copy()
    for i in range(len(keys)):
        if slots[i] == 0:
            in_use += 1
            slots[i] = slot_of[keys[i]] = in_use
    return slots, in_use


@compiled
@no_type_check
def _assign_by_write(slot_of, order, keys, in_use, capacity):
    """Return the slots of distinct `keys`, new ones free or the oldest, and the number of slots in use."""
    key_of, before, after = order
    slots = np.empty(len(keys), np.int32)
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
    return slots, in_use


@compiled
@no_type_check
def _follow(after):
    """The slots of a ring from the oldest to the newest."""
    slots = np.empty(len(after) - 1, np.int32)
    length, slot = 0, after[0]
    while slot != 0:
        slots[length] = slot
        length, slot = length + 1, after[slot]
    return slots[:length]


class DenseIndex:
    """Does what `KeyIndex` does, with key k at slot 1 + k. The results of its methods are on the host, which waits for
    them.

    Args:
        steps: at which each slot was written, on the device of the table; -1 if it holds no row.
    """

    def __init__(self, num_keys: int, device: torch.device, step: int = 0) -> None:
        self.num_keys, self.steps, self._pushed = num_keys, _no_steps(num_keys + 1, device), step

    @property
    def step(self) -> int:
        """The greatest one pushed by the host, or of a row."""
        return max(self._pushed, int(self.steps.max()))

    @property
    def rows_in_use(self) -> int:
        return int((self.steps >= 0).sum())

    @property
    def most_rows(self) -> int:
        return self.num_keys

    @property
    def nbytes(self) -> int:
        return self.steps.nbytes

    def look_up(self, keys: Keys, now: int) -> tuple[Slots, Keys, Bool[np.ndarray, " keys"]]:
        self._check(keys)
        steps = self._at(keys + 1)
        is_known = steps >= 0
        return np.where(is_known, keys + 1, 0).astype(np.int32), np.where(is_known, now - steps, -1), is_known

    def find(self, keys: Keys) -> tuple[Slots, int]:
        """Return the slots of keys about to be written, and the number of those without a row; or raise ValueError."""
        self._check(keys)
        first = np.unique(keys, return_index=True)[1]
        if len(first) < len(keys):
            refuse(keys, np.setdiff1d(np.arange(len(keys)), first)[0], self.num_keys)
        return (keys + 1).astype(np.int32), int((self._at(keys + 1) < 0).sum())

    def assign(self, keys: Keys, before: Slots, step: int) -> Slots:
        self._pushed = max(self.step, step)
        self.stamp(before, np.full(len(keys), step))
        return before

    def stamp(self, slots: Int32[np.ndarray, " slots"], steps: Int64[np.ndarray, " slots"]) -> None:
        places, new_steps = (torch.from_numpy(each).to(self.steps) for each in (slots, steps))
        self.steps[places] = new_steps

    def grow(self, num_slots: int) -> None:
        """Nothing is left to grow: every key has its row."""

    def slots_for(self, num_keys: int) -> int:
        """Return how many slots there will be after `resize`: twice as many, if there are too few."""
        return len(self.steps) if num_keys < len(self.steps) else max(num_keys + 1, 2 * len(self.steps))

    def resize(self, num_keys: int) -> None:
        if (num_slots := self.slots_for(num_keys)) > len(self.steps):
            larger = _no_steps(num_slots, self.steps.device)
            larger[: len(self.steps)] = self.steps
            self.steps = larger
        self.num_keys = num_keys

    def in_use(self) -> InUse:
        steps = self.steps.cpu().numpy()
        slots = (steps >= 0).nonzero()[0]
        return slots - 1, slots.astype(np.int32), steps[slots]

    def by_write(self) -> InUse:
        """`in_use` by step and key."""
        return by_step(*self.in_use())

    def _at(self, slots: Int64[np.ndarray, " slots"]) -> Int64[np.ndarray, " slots"]:
        return self.steps[torch.from_numpy(slots).to(self.steps.device)].cpu().numpy()

    def _check(self, keys: Keys) -> None:
        if len(keys) and (keys.min() < 0 or keys.max() >= self.num_keys):
            refuse(keys, 0, self.num_keys)


@torch.inference_mode(False)
def _no_steps(num_slots: int, device: torch.device) -> Tensor:
    return torch.full((num_slots,), -1, dtype=torch.int64, device=device)


def write_where(
    mask: Bool[Tensor, " new"], slots: Int64[Tensor, " new"], new_rows: Float[Tensor, "new channels"],
    step: Int64[Tensor, ""], rows: Float[Tensor, "slots channels"], steps: Int64[Tensor, " slots"],
) -> None:  # fmt: skip
    """Write those rows under `mask`, whose slots are distinct, and their step: by operations of fixed shapes.

    Examples:
        >>> rows, steps = torch.zeros(3, 1), torch.full((3,), -1)
        >>> mask, slots, new_rows = torch.tensor([False, True]), torch.tensor([1, 2]), torch.ones(2, 1)
        >>> write_where(mask, slots, new_rows, torch.tensor(7), rows, steps)
        >>> rows.flatten(), steps
        (tensor([0., 0., 1.]), tensor([-1, -1,  7]))
    """
    slots = torch.where(mask, slots, 0)  # row 0 is written as it was
    rows.index_copy_(0, slots, torch.where(mask[:, None], new_rows, 0.0))
    steps.index_copy_(0, slots, torch.where(mask, step, -1))
