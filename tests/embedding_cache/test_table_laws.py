"""Any sequence of acts, on any tier, in any dtype, with or without a capacity, equals the slow twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import rows_in_use
from slow_table import DTYPES, TIERS, SlowTable, assert_agree, assert_same, table_in, through_a_file

from embedding_cache import EmbeddingTable
from embedding_cache.index import write_where

ACTS = [*["push", "stage", "pull", "write_where"] * 2, "look", "clear", "reload", "resize"]


class Pair:
    """A table and its twin, to which the same is done."""

    def __init__(self, data: st.DataObject, tier: str, dtype: torch.dtype, device: str = "cpu") -> None:
        self.data, self.device = data, device
        num_keys, channels = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([1, 2, 3, 4, 32]))
        capacity = data.draw(st.none() | st.integers(1, 8))
        self.options = {"device": device, "capacity": capacity}
        self.table = table_in(tier, num_keys, channels, dtype, **self.options)
        self.twin = SlowTable(num_keys, channels, dtype, capacity)
        self.generator = torch.Generator().manual_seed(0)
        self.pulled: list[tuple] = []

    def push(self, name: str = "push") -> None:
        key = st.integers(0, self.twin.num_keys - 1)
        keys = self.data.draw(st.lists(key, unique=True, max_size=self.twin.num_keys))
        rows = torch.randn(len(keys), self.twin.channels, generator=self.generator)
        step = self.data.draw(st.integers(0, 50))
        getattr(self.table, name)(torch.tensor(keys, dtype=torch.int64), rows.to(self.device), step)
        self.twin.push(keys, rows, step)

    def stage(self) -> None:
        self.push("stage")

    def write_where(self) -> None:
        """As a recorded step does, to tables that can have a row for every key."""
        if self.table.tier != "device" or self.table.capacity is not None:
            return
        num_keys = self.twin.num_keys
        rows, written = self.table.dense()
        wanted, slots = torch.rand(num_keys, generator=self.generator) < 0.5, torch.arange(num_keys) + 1
        given, step = torch.randn(num_keys, self.twin.channels, generator=self.generator).to(self.twin.dtype), 7
        there = [each.to(self.device) for each in (wanted, slots, given, torch.tensor(step))]
        write_where(*there, rows, written)
        if wanted.any():  # else no push was made
            self.twin.push(wanted.nonzero().flatten().tolist(), given[wanted], step)

    def pull(self) -> None:
        keys = self.data.draw(st.lists(st.integers(0, self.twin.num_keys - 1), max_size=30))
        step = self.twin.step + self.data.draw(st.integers(0, 3))
        shape, dtype = (len(keys), self.twin.channels), self.twin.dtype
        out = torch.empty(shape, dtype=dtype, device=self.device) if self.data.draw(st.booleans()) else None
        pulled = self.table.pull(torch.tensor(keys, dtype=torch.int64), step, out)
        self.pulled.append((pulled, out, self.twin.pull(keys, step)))

    def look(self) -> None:
        assert_agree(self.table, self.twin)

    def clear(self) -> None:
        self.table.clear()
        self.twin.step = 0
        self.twin.written.clear()

    def reload(self) -> None:
        """Into a new table of any tier."""
        state = through_a_file(self.table.state_dict())
        tier = self.data.draw(st.sampled_from(TIERS))
        self.table = table_in(tier, self.twin.num_keys, self.twin.channels, self.twin.dtype, **self.options)
        self.table.load_state_dict(state)

    def resize(self) -> None:
        self.twin.num_keys += self.data.draw(st.integers(0, 3))
        self.table.resize(self.twin.num_keys)

    def settle(self) -> None:
        """What was pulled is what the twin said when it was asked for, whatever came after."""
        for pulled, out, expected in self.pulled:
            assert_same(pulled, expected)
            assert out is None or pulled[0] is out
        self.look()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tier", TIERS)
@given(st.data())
def test_any_sequence_of_acts_equals_the_slow_twin(tier: str, dtype: torch.dtype, data: st.DataObject) -> None:
    pair = Pair(data, tier, dtype)
    for name in data.draw(st.lists(st.sampled_from(ACTS), max_size=12)):
        getattr(pair, name)()
    pair.settle()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: side streams and pinned copies do not run")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tier", TIERS)
@given(st.data())
def test_any_sequence_of_acts_on_a_gpu(tier: str, dtype: torch.dtype, data: st.DataObject) -> None:
    pair = Pair(data, tier, dtype, "cuda")
    for name in data.draw(st.lists(st.sampled_from(ACTS), max_size=12)):
        getattr(pair, name)()
    pair.settle()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing runs on a stream of its own")
@pytest.mark.parametrize("tier", TIERS)
def test_streams_wait_for_each_other(tier: str) -> None:
    table, weight = table_in(tier, 4096, 256, device="cuda"), torch.randn(256, 256, device="cuda") / 16
    keys, rows = torch.arange(4096), torch.randn(4096, 256, device="cuda")
    for step in range(20):
        expected = rows
        for _ in range(20):
            expected = torch.tanh(expected @ weight)
        table.stage(keys, expected, step)
        pulled = table.pull(keys)[0]
        assert torch.equal(pulled + 1, expected + 1)
        rows = expected + 0.1


# A full table keeps the rows written last


def push(table: EmbeddingTable, keys: list[int], step: int) -> None:
    table.push(torch.tensor(keys), torch.tensor([[float(key)] for key in keys]), step)


def test_the_order_is_that_of_writing_and_not_of_steps() -> None:
    table = EmbeddingTable(10, 1, capacity=2)
    for key, step in ((1, 9), (2, 0), (3, 0)):
        push(table, [key], step)
    assert rows_in_use(table)[0].tolist() == [2, 3]


@pytest.mark.parametrize("keys", [[3, 3, 1, 2], [10, 1, 2]])
def test_a_push_of_more_than_fits_is_checked_whole(keys: list[int]) -> None:
    table = EmbeddingTable(10, 1, capacity=2)
    with pytest.raises(ValueError, match=r"key 3 is repeated|keys are 1\.\.10"):
        push(table, keys, 0)
    assert not table.is_known(torch.arange(10)).any()
