"""What is saved, and where it can be loaded."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from typing import Any

import pytest
import torch
from slow_table import DTYPES, TIERS, SlowTable, assert_agree, assert_same, table_in, through_a_file
from torch import Tensor

from embedding_cache import EmbeddingTable
from embedding_cache.table import KeyRanges
from tests.choices import with_rest


def some_pushes(table: Any, start: int, stop: int, num_keys: int = 30) -> None:
    """Of ever other keys; the same for a table and its twin."""
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(step)
        keys = torch.randperm(num_keys, generator=generator)[: 3 + step % 5]
        rows = torch.randn(len(keys), table.channels, generator=generator)
        table.push(keys if isinstance(table, EmbeddingTable) else keys.tolist(), rows, step)


PAIRS = with_rest(itertools.product(TIERS, TIERS), [*zip(TIERS, TIERS[1:] + TIERS[:1], strict=True)])


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("capacity", [None, 7])
@pytest.mark.parametrize(("tier", "saved_tier"), PAIRS)
def test_resumed_on_any_tier_it_goes_on_as_if_never_stopped(
    tier: str, saved_tier: str, capacity: int | None, dtype: torch.dtype
) -> None:
    options: dict[str, Any] = {"capacity": capacity}
    straight = table_in(saved_tier, 30, 8, dtype, **options)
    some_pushes(straight, 0, 12)
    resumed = table_in(tier, 30, 8, dtype, **options)
    some_pushes(resumed, 50, 53)  # to be forgotten
    resumed.load_state_dict(through_a_file(straight.state_dict()))
    some_pushes(straight, 12, 20)
    some_pushes(resumed, 12, 20)
    keys = torch.arange(30)
    assert_same(resumed.pull(keys), straight.pull(keys))
    assert saved_as_bytes(resumed) == saved_as_bytes(straight)


def saved_as_bytes(table: EmbeddingTable) -> bytes:
    """NaN equals itself in bytes alone."""
    return pickle.dumps(
        {
            name: value.contiguous().view(torch.uint8).numpy().tobytes() if isinstance(value, Tensor) else value
            for name, value in table.get_extra_state().items()
        }
    )


def test_users_of_a_table_keep_their_keys_after_a_checkpoint_and_share_none() -> None:
    class User: ...

    ranges, user, other = KeyRanges(), User(), User()
    slot = ranges.slot(user)
    keys = [ranges.first_key(slot, name, 3) for name in "ab"]
    resumed = KeyRanges()
    resumed.load(ranges.state())
    assert resumed.slot(user, slot) == slot and [resumed.first_key(slot, name, 3) for name in "ab"] == keys
    another = resumed.slot(other, slot)  # whose checkpoint says the same, of another table
    assert another != slot and resumed.first_key(another, "a", 3) == 6
    resumed.load(ranges.state())
    assert resumed.slot(User()) not in (slot, another), "a slot whose user is not there yet is taken, too"
    empty = KeyRanges()
    empty.load(ranges.state())
    assert empty.slot(other) != slot
    given = KeyRanges()
    assert given.slot(user, 0) != given.slot(other)


def test_a_checkpoint_holds_the_rows_in_use_alone() -> None:
    table = EmbeddingTable(100_000, 64)
    for step in range(40):  # several doublings, so that there is spare capacity
        table.push(torch.arange(step * 13, step * 13 + 13), torch.ones(13, 64), step)
    file = io.BytesIO()
    torch.save(table.state_dict(), file)
    assert 520 * 64 * 4 < len(file.getvalue()) < 520 * (64 * 4 + 16) + 8_000


@pytest.mark.parametrize("tier", TIERS)
def test_neither_a_saved_state_nor_a_copy_follows_the_table(tier: str) -> None:
    table = table_in(tier, 3, 1, capacity=2)
    table.push(torch.tensor([0]), torch.tensor([[1.0]]), step=0)
    state, copied, pickled = table.state_dict(), copy.deepcopy(table), pickle.loads(pickle.dumps(table))  # noqa: S301
    table.push(torch.tensor([0]), torch.tensor([[2.0]]), step=1)
    for other in (copied, pickled):
        assert other.pull(torch.tensor([0]))[0].item() == 1
        assert repr(other) == repr(table)
    table.load_state_dict(state)
    assert table.pull(torch.tensor([0]))[0].item() == 1


@pytest.mark.parametrize("num_keys", [1, 4, 9])
def test_a_smaller_table_grows_to_the_saved_keys_and_a_larger_one_stays(num_keys: int) -> None:
    saved, other = EmbeddingTable(4, 2), EmbeddingTable(num_keys, 2)
    saved.push(torch.tensor([3]), torch.ones(1, 2), 5)
    other.load_state_dict(saved.state_dict())
    assert other.num_keys == max(num_keys, 4)
    assert other.is_known(torch.arange(4)).tolist() == [False, False, False, True]


@pytest.mark.parametrize("saved_capacity", [None, 12])
@pytest.mark.parametrize("capacity", [1, 5, 12, None])
def test_a_table_with_less_room_keeps_what_was_written_last(capacity: int | None, saved_capacity: int | None) -> None:
    saved = EmbeddingTable(30, 2, capacity=saved_capacity)
    twin = SlowTable(30, 2, torch.float32, saved_capacity)
    for target in (saved, twin):
        for step, key in enumerate([5, 1, 9, 5, 3, 20, 1, 17]):
            target.push(torch.tensor([key]) if target is saved else [key], torch.full((1, 2), float(step)), step)
    loaded = EmbeddingTable(30, 2, capacity=capacity)
    loaded.load_state_dict(saved.state_dict())
    while capacity is not None and len(twin.written) > capacity:
        twin.written.popitem(last=False)
    assert_agree(loaded, twin)


def test_a_state_of_another_shape_is_refused() -> None:
    saved = EmbeddingTable(4, 2)
    saved.push(torch.tensor([1]), torch.ones(1, 2), 5)
    for other in (EmbeddingTable(4, 3), EmbeddingTable(4, 2, torch.bfloat16)):
        other.push(torch.tensor([2]), torch.ones(1, other.channels), 1)
        with pytest.raises(ValueError, match=r"channels, dtype = 2, torch\.float32; wanted"):
            other.load_state_dict(saved.state_dict())
        assert other.pull(torch.tensor([1, 2]))[2].tolist() == [False, True]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"keys": torch.tensor([2, 2])}, "key 2 is repeated"),
        ({"keys": torch.tensor([0, 4])}, r"keys are 0\.\.4; wanted 0\.\.3"),
        ({"written": torch.tensor([1])}, "2 keys, 2 rows and 1 steps; .* the file is damaged"),
        ({"rows": None}, r"saved state has \['keys', 'num_keys', 'ranges', 'slots', 'step', 'written'\]; wanted"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage: dict[str, Any], message: str) -> None:
    table = EmbeddingTable(4, 2)
    table.push(torch.tensor([1, 3]), torch.ones(2, 2), 5)
    state = table.get_extra_state() | {"step": 9} | damage
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        table.set_extra_state(state)
    assert table.step == 5 and table.is_known(torch.arange(4)).tolist() == [False, True, False, True]


def test_what_is_no_state_is_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"saved state has Tensor; wanted .* it is not of an EmbeddingTable"):
        EmbeddingTable(4, 2).load_state_dict({"_extra_state": torch.ones(3)})


def test_a_state_saved_before_there_were_ranges_is_loaded() -> None:
    state = {"num_keys": 4, "step": 7, "keys": torch.tensor([1, 3]), "rows": torch.ones(2, 2)}
    table = EmbeddingTable(4, 2)
    table.set_extra_state(state | {"written": torch.tensor([7, 2])})
    assert table.pull(torch.arange(4))[1].tolist() == [-1, 0, -1, 5]
