"""Index of a table that has a row for every key: an accelerator finds and writes rows by it, without the host."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from embedding_cache.index import InUse, Keys, Slots, by_step, refuse


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
        """Return slots and ages at step `now` (0 and -1 if never written), and known flags; or raise ValueError."""
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
        """Return the slots for writing distinct `keys`."""
        self._pushed = max(self.step, step)
        self.stamp(before, np.full(len(keys), step))
        return before

    def stamp(self, slots: Int32[np.ndarray, " slots"], steps: Int64[np.ndarray, " slots"]) -> None:
        """Say when rows were really written."""
        places, new_steps = (torch.from_numpy(each).to(self.steps) for each in (slots, steps))
        self.steps[places] = new_steps

    def grow(self, num_slots: int) -> None:
        """Nothing is left to grow: every key has its row."""

    def slots_for(self, num_keys: int) -> int:
        """Return how many slots there will be after `resize`: twice as many, if there are too few."""
        return len(self.steps) if num_keys < len(self.steps) else max(num_keys + 1, 2 * len(self.steps))

    def resize(self, num_keys: int) -> None:
        """Make room for more keys."""
        if (num_slots := self.slots_for(num_keys)) > len(self.steps):
            larger = _no_steps(num_slots, self.steps.device)
            larger[: len(self.steps)] = self.steps
            self.steps = larger
        self.num_keys = num_keys

    def in_use(self) -> InUse:
        """Keys in use, ascending, their slots, and the steps of their last writes."""
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
