"""The slow twin of the table, and what the tests of tables share."""

from __future__ import annotations

import io
import tempfile
from collections import OrderedDict
from typing import Any

import pytest
import torch
from reference import rows_in_use
from torch import Tensor

from embedding_cache import EmbeddingTable

TIERS = ["device", "pinned", "disk", "dense"]  # the last is the first, with a row for every key
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DIRECTORY = tempfile.gettempdir()  # files of tables have no names, so one does for all
Pulled = tuple[Tensor, Tensor, Tensor]


class SlowTable:
    """A dictionary from key to its row and the step it was written at, the least recently written first."""

    def __init__(self, num_keys: int, channels: int, dtype: torch.dtype, capacity: int | None = None) -> None:
        self.num_keys, self.channels, self.dtype, self.capacity = num_keys, channels, dtype, capacity
        self.step = 0
        self.written: OrderedDict[int, tuple[Tensor, int]] = OrderedDict()

    def push(self, keys: list[int], rows: Tensor, step: int) -> None:
        for key, row in zip(keys, rows, strict=True):
            self.written[key] = (row.to(self.dtype).clone(), step)
            self.written.move_to_end(key)
            if self.capacity is not None and len(self.written) > self.capacity:
                self.written.popitem(last=False)
        self.step = max(self.step, step)

    def pull(self, keys: list[int], step: int | None = None) -> Pulled:
        step = self.step if step is None else step
        nothing = (torch.zeros(self.channels, dtype=self.dtype), step + 1)
        found = [self.written.get(key, nothing) for key in keys]
        rows = torch.stack([row for row, _ in found]) if found else torch.zeros(0, self.channels, dtype=self.dtype)
        ages = torch.tensor([step - written for _, written in found], dtype=torch.int64)
        return rows, ages, torch.tensor([key in self.written for key in keys], dtype=torch.bool)


def table_in(tier: str, *arguments: Any, **options: Any) -> EmbeddingTable:
    path = DIRECTORY if tier == "disk" else None
    table = EmbeddingTable(*arguments, tier="device" if tier == "dense" else tier, path=path, **options)
    if tier == "dense" and table.capacity is None:
        table.dense()
    return table


def assert_same(pulled: Pulled, expected: Pulled) -> None:
    for ours, theirs in zip(pulled, expected, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs)


def assert_agree(table: EmbeddingTable, twin: SlowTable) -> None:
    assert table.step == twin.step and table.num_keys == twin.num_keys
    keys = [*range(twin.num_keys), 0, twin.num_keys - 1]
    for step in (None, twin.step + 3):
        assert_same(table.pull(torch.tensor(keys), step), twin.pull(keys, step))
    assert table.is_known(torch.tensor(keys)).tolist() == twin.pull(keys)[2].tolist()
    steps = [twin.written[key][1] if key in twin.written else -1 for key in keys]
    assert table.written(torch.tensor(keys)).tolist() == steps
    in_use, rows, written = rows_in_use(table)
    assert in_use.tolist() == sorted(twin.written)
    assert written.tolist() == [twin.written[key][1] for key in sorted(twin.written)]
    assert torch.equal(rows, table.pull(in_use)[0])
    ages_in_use = [twin.step - step for _, step in twin.written.values()]
    measured = table.statistics()
    assert measured["rows_in_use"] == table.rows_in_use == len(twin.written)
    assert measured["share_unknown"] == pytest.approx(1 - len(twin.written) / twin.num_keys)
    assert measured["age_max"] == max(ages_in_use, default=-1)
    mean = sum(ages_in_use) / len(ages_in_use) if ages_in_use else -1
    assert measured["age_mean"] == pytest.approx(mean)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
