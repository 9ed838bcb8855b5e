from __future__ import annotations

from typing import Any

import pytest
import torch
from slow_table import TIERS, SlowTable, assert_agree, table_in
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.storage import HostRows


@pytest.mark.parametrize("tier", TIERS[:3])
def test_memory_follows_the_keys_in_use(tier: str) -> None:
    table = table_in(tier, 1_000_000, 256)
    table.push(torch.tensor([999_999, 0, 5]), torch.ones(3, 256), step=1)
    assert table.statistics()["bytes"] < 4_000_000 + 10 * (256 * 4 + 8)


@pytest.mark.parametrize("options", [{"capacity": 3}, {"tier": "pinned"}])
def test_a_row_for_every_key_needs_the_device_and_no_capacity(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs the tier 'device' and no capacity"):
        EmbeddingTable(5, 1, **options).dense()


def test_a_table_that_finds_no_memory_for_all_rows_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    table = EmbeddingTable(9, 2)
    table.push(torch.tensor([3, 5]), torch.ones(2, 2), step=4)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    for name in ("grow", "scatter"):
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(HostRows, name, full)
            table.dense()
        assert table.pull(torch.tensor([3, 4]))[0].tolist() == [[1, 1], [0, 0]] and table.rows_in_use == 2
    table.dense()
    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(HostRows, "grow", full)
        table.resize(100)
    table.push(torch.tensor([8]), torch.ones(1, 2), step=5)
    assert table.num_keys == 9 and table.rows_in_use == 3
    table.resize(30)  # more than twice as many
    table.push(torch.tensor([29]), torch.ones(1, 2), step=6)
    assert table.is_known(torch.tensor([3, 28, 29])).tolist() == [True, False, True]


def test_memory_stops_at_the_capacity() -> None:
    table = EmbeddingTable(100_000, 256, capacity=100)
    for step in range(300):
        table.push(torch.arange(step * 7, step * 7 + 7), torch.ones(7, 256), step)
    assert table.statistics()["rows_in_use"] == 100
    assert table.statistics()["bytes"] == 400_000 + 101 * (256 * 4 + 8 + 12)


def test_rows_are_kept_without_their_gradient_and_copied_both_ways() -> None:
    table = EmbeddingTable(2, 2)
    pushed = torch.ones(1, 2, requires_grad=True)
    table.push(torch.tensor([0]), pushed * 2, step=0)
    pulled = table.pull(torch.tensor([0]))[0]
    assert not pulled.requires_grad
    pulled += 1
    assert table.pull(torch.tensor([0]))[0].tolist() == [[2, 2]]


@pytest.mark.parametrize("tier", TIERS)
def test_pushes_in_inference_mode_do_not_spoil_training(tier: str) -> None:
    table = table_in(tier, 10, 2)
    with torch.inference_mode():
        table.push(torch.arange(4), torch.ones(4, 2), step=0)
    table.push(torch.arange(4), torch.full((4, 2), 3.0), step=1)  # into storage that grew in inference mode
    weight = torch.ones(2, requires_grad=True)
    (table.pull(torch.arange(4))[0] @ weight).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [12, 12]


def test_moving_or_halving_the_model_leaves_the_table() -> None:
    model = nn.ModuleDict({"table": EmbeddingTable(2, 1)})
    model["table"].push(torch.tensor([0]), torch.tensor([[1 + 2**-20]]), step=0)
    model.half()
    assert model["table"].pull(torch.tensor([0]))[0].item() == 1 + 2**-20


KEY = torch.tensor([1])


@pytest.mark.parametrize("capacity", [None, 1])
@pytest.mark.parametrize(
    ("keys", "rows", "step", "message"),
    [
        (torch.tensor([1, 2, 1]), torch.ones(3, 2), 1, "key 1 is repeated"),
        (torch.tensor([3, 4]), torch.ones(2, 2), 1, r"keys are 3\.\.4; wanted 0\.\.3"),
        (torch.tensor([-1]), torch.ones(1, 2), 1, r"keys are -1\.\.-1"),
        (torch.tensor([1, 2]), torch.ones(1, 2), 1, r"shape \(1, 2\); wanted \(2, 2\)"),
        (torch.tensor([1, 2]), torch.ones(2, 1), 1, r"shape \(2, 1\); wanted \(2, 2\)"),
        (KEY, torch.ones(2), 1, r"shape \(2,\); wanted \(1, 2\)"),
        (KEY, torch.ones(1, 2, dtype=torch.int32), 1, r"rows are torch\.int32; wanted floating"),
        (KEY, torch.ones(1, 2), -1, "step is -1"),
        (KEY.int(), torch.ones(1, 2), 1, r"dtype torch\.int32; wanted one axis of int64"),
        (KEY[None], torch.ones(1, 2), 1, r"shape \(1, 1\) and .* wanted one axis"),
    ],
)
def test_push_refuses_and_changes_nothing(
    keys: Tensor, rows: Tensor, step: int, message: str, capacity: int | None, unchecked: None
) -> None:
    table, twin = EmbeddingTable(4, 2, capacity=capacity), SlowTable(4, 2, torch.float32, capacity)
    for target in (table, twin):
        target.push(KEY if target is table else [1], torch.full((1, 2), 4.0), 0)
    with pytest.raises(ValueError, match=message):
        table.push(keys, rows, step)
    assert_agree(table, twin)


def test_pull_and_resize_refuse(unchecked: None) -> None:
    table = EmbeddingTable(4, 2)
    table.push(KEY, torch.ones(1, 2), 5)
    pull = table.pull
    with pytest.raises(ValueError, match=r"num_keys is 3; wanted 4\.\."):
        table.resize(3)
    with pytest.raises(ValueError, match=r"keys are 0\.\.4; wanted 0\.\.3"):
        pull(torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"keys are -1\.\.0; wanted 0\.\.3"):
        pull(torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="step is 4; wanted at least 5"):
        pull(KEY, step=4)
    with pytest.raises(ValueError, match=r"dtype torch\.float32; wanted one axis of int64"):
        pull(KEY.float())
    for out in (torch.empty(2, 2), torch.empty(1, 2, dtype=torch.float64), torch.empty(1, 2, device="meta")):
        with pytest.raises(ValueError, match=r"out is .*; wanted \(1, 2\) of torch.float32 on cpu"):
            pull(KEY, out=out)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 2), {}, r"num_keys is 0; wanted 1\.\."),
        ((2**31, 2), {}, "split the keys"),
        ((4, 0), {}, "channels is 0; wanted at least 1"),
        ((4, 2, torch.int64), {}, r"dtype is torch\.int64; wanted a floating one"),
        ((4, 2), {"capacity": 0}, "capacity is 0; wanted at least 1"),
        ((4, 2), {"tier": "tape"}, "tier is 'tape'; wanted 'device', 'pinned' or 'disk'"),
        ((4, 2), {"tier": "disk"}, "tier is 'disk' and path is None; wanted path="),
        ((4, 2), {"path": "."}, r"tier is 'device' and path is '\.'; wanted path="),
    ],
)
def test_impossible_tables_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str, unchecked: None
) -> None:
    with pytest.raises(ValueError, match=message):
        EmbeddingTable(*arguments, **options)
