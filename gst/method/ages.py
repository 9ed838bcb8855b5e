"""Ages of rows, as draws know them: steps since a segment was last fresh under the configuration of the row."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor


class DrawnAges:
    """The last two steps in which each key of an embedding table belonged to a fresh segment.

    It differs from the age of a row in the table only where the table did not take the row (not finite, skipped by
    `GradScaler`, evicted). It depends on draws alone, so that a step can be drawn, and read, while the one before it is
    computed. Of the two steps the earlier one counts where the later one has not come yet: a training that is resumed
    just before a step that had already been drawn draws it alike.

    Examples:
        >>> ages = DrawnAges()
        >>> ages.record(torch.tensor([[0, 2]]), step=3)
        >>> ages.at(torch.tensor([[0, 1], [2, -1]]), step=5).tolist()
        [[2, 5], [2, 0]]
    """

    def __init__(self) -> None:
        self._steps = torch.zeros(2, 0, dtype=torch.int64)

    def at(self, keys: Int64[Tensor, "segments configs"], step: int) -> Int64[Tensor, "segments configs"]:
        """Steps from the last one before `step`; `step` for keys that never were, 0 for the key -1 (padding)."""
        return torch.where(keys >= 0, step - self._last(keys.clamp(min=0).flatten(), step).view_as(keys), 0)

    def record(self, keys: Int64[Tensor, "fresh configs"], step: int) -> None:
        """Take note of the keys of fresh segments."""
        chosen = keys[keys >= 0].unique()
        self._steps[:, chosen] = torch.stack([torch.full_like(chosen, step), self._last(chosen, step)])

    def _last(self, keys: Int64[Tensor, " keys"], step: int) -> Int64[Tensor, " keys"]:
        """The last step before `step` of each key, 0 if none."""
        missing = int(keys.max()) + 1 - self._steps.shape[1] if len(keys) else 0
        if missing > 0:
            room = max(missing, self._steps.shape[1] // 2)  # grows by half, so that many graphs cost linear time
            self._steps = torch.cat([self._steps, self._steps.new_zeros(2, room)], 1)
        later, earlier = self._steps[:, keys]
        return torch.where(later < step, later, torch.where(earlier < step, earlier, 0))

    def state_dict(self) -> dict[str, Tensor]:
        return {"steps": self._steps.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._steps = state["steps"].clone()
