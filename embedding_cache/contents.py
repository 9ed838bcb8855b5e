"""What a table holds: the index, the rows and the drift, kept in step with each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from embedding_cache.index import KeyIndex
from embedding_cache.refresh import DriftEstimate
from embedding_cache.storage import Rows


class Contents:
    """Public: `index`, `rows` and `drift` (None if it is not tracked), to be read; written here alone."""

    def __init__(self, index: KeyIndex, rows: Rows, drift: DriftEstimate | None) -> None:
        self.index, self.rows, self.drift = index, rows, drift

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.rows.nbytes + (0 if self.drift is None else self.drift.nbytes)

    def place(
        self, keys: Int64[np.ndarray, " keys"], rows: Tensor, step: int, settle: Callable[[], None]
    ) -> Callable[[], None]:
        """Give `keys` their slots; what is returned writes the rows there.

        Args:
            settle: called before rows are moved to a larger place; nothing may then be under way.

        Raises:
            ValueError: a key is out of range or repeated; nothing was changed.
            OSError: there is no room; nothing was changed.
        """
        beyond = len(keys) - self.index.most_rows
        if beyond > 0:
            self.index.find(keys)  # refuses what is wrong with those not kept
            keys, rows = keys[beyond:], rows[beyond:]
        ages = None if self.drift is None else self.index.look_up(keys, step)[1]
        slots, before = self._reserve(keys, step, settle)
        return partial(self._write, slots, rows, before, ages)

    def state(self) -> dict[str, Any]:
        """Of the rows in use alone, those written last at the end."""
        keys, slots, written = self.index.by_write()
        state: dict[str, Any] = {"num_keys": self.index.num_keys, "step": self.index.step}
        state |= {"keys": torch.from_numpy(keys), "rows": self.rows.copied(slots), "written": torch.from_numpy(written)}
        return state if self.drift is None else state | {"drift": self.drift.state(slots)}

    def load(self, state: dict[str, Any]) -> None:
        """`state` into what is still empty; without room for all rows, those written last."""
        kept = slice(max(0, len(state["keys"]) - self.index.most_rows), None)
        keys, written = (state[name].cpu().numpy()[kept] for name in ("keys", "written"))
        slots, _ = self._reserve(keys, state["step"])
        self.index.stamp(slots, written)
        self.rows.scatter(slots, state["rows"][kept])
        if self.drift is not None and "drift" in state:
            drift = state["drift"]
            self.drift.load(drift | {"factors": drift["factors"][kept]}, slots)

    def _reserve(
        self, keys: Int64[np.ndarray, " keys"], step: int, settle: Callable[[], None] = lambda: None
    ) -> tuple[Int32[np.ndarray, " keys"], Int32[np.ndarray, " keys"]]:
        """The slots that `keys` are written to at `step`, and those they had before (0 for none). Storage grows by
        doubling, so that n pushes copy O(n) rows in all."""
        before, num_new = self.index.find(keys)
        needed = 1 + min(self.index.rows_in_use + num_new, self.index.most_rows)
        if needed > self.rows.num_rows:
            settle()
            num_rows = min(max(needed, 2 * self.rows.num_rows), 1 + self.index.most_rows)
            self.rows.grow(num_rows)
            self.index.grow(num_rows)
            if self.drift is not None:
                self.drift.grow(num_rows)
        return self.index.assign(keys, before, step), before

    def _write(
        self,
        slots: Int32[np.ndarray, " keys"],
        rows: Float[Tensor, "keys channels"],
        before: Int32[np.ndarray, " keys"],
        ages: Int64[np.ndarray, " keys"] | None,
    ) -> None:
        if self.drift is not None and ages is not None:
            self.drift.observe(slots, before, ages, rows, self.rows.gather(before))
        self.rows.scatter(slots, rows)
