"""A table of embedding rows, each remembered with the step it was written at."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

_MAX_KEYS = 2**31 - 2  # slots are int32, and slot 0 is taken


class EmbeddingTable(nn.Module):
    """The last known row of each key. Memory is taken for the keys in use, not for all that may be.

    Slot 0 of the storage is a row of zeros that no key owns: keys never written point at it, so that one
    gather answers for known and unknown keys alike. The index costs 4 bytes per key, a row in use 8 bytes
    besides itself.

    A module, so that `state_dict` carries it in checkpoints; it has no parameters and no buffers, so `.to()`,
    `.half()` and DistributedDataParallel leave it where and as it was made.

    The clock is the caller's step: `step` is the greatest one pushed (0 at first), and a row's age is the
    step asked about minus the step the row was written at.

    Args:
        num_keys: keys are 0..num_keys-1.
        channels: length of a row.
        dtype: of the rows kept and returned; rows pushed in another one are converted.
        device: where the rows live and are returned.

    Raises:
        ValueError: a size below 1, more keys than int32 slots, or a dtype that is not floating.
    """

    def __init__(
        self,
        num_keys: int,
        channels: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if not 1 <= num_keys <= _MAX_KEYS:
            raise ValueError(f"num_keys is {num_keys}; wanted 1..{_MAX_KEYS}: split the keys over tables")
        if channels < 1:
            raise ValueError(f"channels is {channels}; wanted at least 1: pass the length of a row")
        if not dtype.is_floating_point:
            raise ValueError(f"dtype is {dtype}; wanted a floating one: pass torch.float32")
        self.num_keys = num_keys
        self.channels = channels
        self.dtype = dtype
        self.device = torch.device(device)
        self.clear()

    def clear(self) -> None:
        """Forget every row, give its memory back and set the clock to 0: the table is as new."""
        self.step = 0
        self.rows_in_use = 0
        with torch.inference_mode(False):  # storage born in inference mode could never be written outside it
            self._slots = torch.zeros(self.num_keys, dtype=torch.int32, device=self.device)
            self._rows = torch.zeros(1, self.channels, dtype=self.dtype, device=self.device)
            self._written = torch.zeros(1, dtype=torch.int64, device=self.device)

    def pull(
        self, keys: Int64[Tensor, " keys"], step: int | None = None
    ) -> tuple[Float[Tensor, "keys channels"], Int64[Tensor, " keys"], Bool[Tensor, " keys"]]:
        """What is known of `keys`, which may repeat.

        Args:
            keys: each 0..num_keys-1.
            step: now, at least `self.step`, which is meant where none is given.

        Returns:
            rows: a copy, zeros where nothing was ever written.
            ages: steps since the row was written; -1 where nothing was.
            known: whether anything was.

        Raises:
            ValueError: a key is out of range, or `step` lies before the last push.
        """
        now = self.step if step is None else step
        if now < self.step:
            raise ValueError(f"step is {now}; wanted at least {self.step}, the last pushed: pass a later one")
        keys = self._checked(keys)
        if keys.numel():
            self._check_range(*(int(bound) for bound in keys.aminmax()))
        slots = self._slots.index_select(0, keys)
        known = slots > 0
        ages = torch.where(known, now - self._written.index_select(0, slots), -1)
        return self._rows.index_select(0, slots), ages, known

    def known(self, keys: Int64[Tensor, " keys"]) -> Bool[Tensor, " keys"]:
        """Whether anything was ever written for `keys`: `pull(keys)[2]` without the rows."""
        keys = self._checked(keys)
        if keys.numel():
            self._check_range(*(int(bound) for bound in keys.aminmax()))
        return self._slots.index_select(0, keys) > 0

    def push(self, keys: Int64[Tensor, " keys"], rows: Float[Tensor, "rows channels"], step: int) -> None:
        """Write one row per key, without its gradient. Rows are not searched for NaN.

        Args:
            keys: each 0..num_keys-1 and at most once.
            rows: exactly one row per key, nothing is broadcast.
            step: now, at least 0; `self.step` becomes the greater of the two.

        Raises:
            ValueError: a key is out of range or repeated, the rows do not fit, or `step` is negative. The
                table is then as it was.
        """
        if step < 0:
            raise ValueError(f"step is {step}; wanted at least 0: count steps from 0")
        keys = self._checked(keys)
        if rows.shape != (len(keys), self.channels):
            raise ValueError(
                f"rows have shape {tuple(rows.shape)}; wanted ({len(keys)}, {self.channels}): "
                "pass one row per key, expanded if they are meant to be equal"
            )
        if not rows.is_floating_point():
            raise ValueError(f"rows are {rows.dtype}; wanted floating numbers: convert with .float()")
        self._check_distinct(keys)
        self.step = max(self.step, step)
        self._write(keys, rows, torch.full_like(keys, step))

    def resize(self, num_keys: int) -> None:
        """Make room for keys 0..num_keys-1; rows keep their keys.

        Raises:
            ValueError: fewer keys than there are, or more than int32 slots.
        """
        if not self.num_keys <= num_keys <= _MAX_KEYS:
            raise ValueError(f"num_keys is {num_keys}; wanted {self.num_keys}..{_MAX_KEYS}: tables only grow")
        with torch.inference_mode(False):
            grown = torch.zeros(num_keys, dtype=torch.int32, device=self.device)
            grown[: self.num_keys] = self._slots
        self._slots, self.num_keys = grown, num_keys

    def export_rows(
        self,
    ) -> tuple[Int64[Tensor, " in_use"], Float[Tensor, "in_use channels"], Int64[Tensor, " in_use"]]:
        """Copies of the keys in use, ascending, their rows, and the steps these were written at."""
        keys = self._slots.nonzero().squeeze(1)
        slots = self._slots.index_select(0, keys)
        return keys, self._rows.index_select(0, slots), self._written.index_select(0, slots)

    def statistics(self) -> dict[str, float]:
        """What to log.

        Returns:
            age_mean, age_max: steps, over the rows in use, as of `self.step`; -1 without any.
            share_unknown: share of all keys never written, 0..1.
            rows_in_use: rows.
            bytes: of the index and the storage, spare capacity included.
        """
        ages = self.step - self._written[1 : self.rows_in_use + 1]
        return {
            "age_mean": float(ages.double().mean()) if self.rows_in_use else -1.0,
            "age_max": int(ages.max()) if self.rows_in_use else -1,
            "share_unknown": 1 - self.rows_in_use / self.num_keys,
            "rows_in_use": self.rows_in_use,
            "bytes": sum(storage.nbytes for storage in (self._slots, self._rows, self._written)),
        }

    def get_extra_state(self) -> dict[str, Any]:
        """For `state_dict`: tensors and integers only, and no spare capacity."""
        keys, rows, written = self.export_rows()
        return {"num_keys": self.num_keys, "step": self.step, "keys": keys, "rows": rows, "written": written}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """For `load_state_dict`: replaces everything; a smaller table grows to the saved number of keys.

        Raises:
            ValueError: the state is of a table of other channels or dtype; the table is then as it was.
        """
        rows, keys = state["rows"], state["keys"]
        saved = (rows.shape[1], rows.dtype)
        if saved != (self.channels, self.dtype):
            raise ValueError(
                "saved table has channels, dtype = {}, {}; ".format(*saved)
                + f"wanted {self.channels}, {self.dtype}: make the table like the saved one"
            )
        if state["num_keys"] > self.num_keys:
            self.resize(state["num_keys"])
        self.clear()
        self.step = state["step"]
        self._write(keys.to(self.device), rows, state["written"])

    def extra_repr(self) -> str:
        return f"num_keys={self.num_keys}, channels={self.channels}, dtype={self.dtype}, device={self.device}"

    def _checked(self, keys: Tensor) -> Int64[Tensor, " keys"]:
        if keys.ndim != 1 or keys.dtype != torch.int64:
            raise ValueError(
                f"keys have shape {tuple(keys.shape)} and dtype {keys.dtype}; wanted one axis of int64: "
                "flatten and convert them"
            )
        return keys.to(self.device)

    def _check_range(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= self.num_keys:
            raise ValueError(f"keys are {lowest}..{highest}; wanted 0..{self.num_keys - 1}: resize first")

    def _check_distinct(self, keys: Int64[Tensor, " keys"]) -> None:
        """Checks the range too: one sort finds both ends and all repetitions."""
        if not len(keys):
            return
        ordered = keys.sort().values
        self._check_range(int(ordered[0]), int(ordered[-1]))
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            raise ValueError(f"key {int(repeated[0])} is repeated; wanted each once: push its newest row")

    def _slots_for(self, keys: Int64[Tensor, " keys"]) -> Int64[Tensor, " keys"]:
        """The slots of distinct `keys`, which get new ones where they have none."""
        slots = self._slots[keys].long()
        new = (slots == 0).nonzero().squeeze(1)
        if len(new):
            first = self.rows_in_use + 1
            slots[new] = torch.arange(first, first + len(new), device=self.device)
            self._slots[keys] = slots.int()
            self.rows_in_use += len(new)
            self._grow(self.rows_in_use + 1)
        return slots

    @torch.inference_mode(False)
    def _write(self, keys: Int64[Tensor, " keys"], rows: Tensor, written: Tensor) -> None:
        slots = self._slots_for(keys)
        self._rows[slots] = rows.detach().to(device=self.device, dtype=self.dtype)
        self._written[slots] = written.to(self.device)

    def _grow(self, needed: int) -> None:
        """Make `needed` slots, by doubling, so that n pushes copy O(n) rows in all."""
        capacity = len(self._rows)
        if needed <= capacity:
            return
        capacity = min(max(needed, 2 * capacity), self.num_keys + 1)
        rows = self._rows.new_empty(capacity, self.channels)
        written = self._written.new_empty(capacity)
        rows[: len(self._rows)] = self._rows
        written[: len(self._written)] = self._written
        self._rows, self._written = rows, written
