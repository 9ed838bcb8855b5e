from __future__ import annotations

import copy
import io
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from embedding_cache import EmbeddingTable


@dataclass
class SlowTable:
    """The slow twin: a dictionary from key to its row and the step it was written at."""

    num_keys: int
    channels: int
    dtype: torch.dtype
    step: int = 0
    written: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    def push(self, keys: list[int], rows: Tensor, step: int) -> None:
        for key, row in zip(keys, rows, strict=True):
            self.written[key] = (row.to(self.dtype).clone(), step)
        self.step = max(self.step, step)

    def pull(self, keys: list[int], step: int) -> tuple[list[Tensor], list[int], list[bool]]:
        zero = torch.zeros(self.channels, dtype=self.dtype)
        rows = [self.written[key][0] if key in self.written else zero for key in keys]
        ages = [step - self.written[key][1] if key in self.written else -1 for key in keys]
        return rows, ages, [key in self.written for key in keys]


def assert_agree(table: EmbeddingTable, twin: SlowTable) -> None:
    assert table.step == twin.step and table.num_keys == twin.num_keys
    keys = [*range(twin.num_keys), 0, twin.num_keys - 1]
    for step in (None, twin.step + 3):
        rows, ages, known = table.pull(torch.tensor(keys), step)
        slow_rows, slow_ages, slow_known = twin.pull(keys, twin.step if step is None else step)
        assert rows.dtype == twin.dtype and torch.equal(rows, torch.stack(slow_rows))
        assert ages.tolist() == slow_ages and known.tolist() == slow_known
    ages_in_use = [twin.step - step for _, step in twin.written.values()]
    measured = table.statistics()
    assert measured["rows_in_use"] == len(twin.written)
    assert measured["share_unknown"] == pytest.approx(1 - len(twin.written) / twin.num_keys)
    assert measured["age_max"] == max(ages_in_use, default=-1)
    mean = sum(ages_in_use) / len(ages_in_use) if ages_in_use else -1
    assert measured["age_mean"] == pytest.approx(mean)


def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@settings(deadline=None)
@given(st.data(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_any_sequence_of_acts_equals_the_slow_twin(data: st.DataObject, dtype: torch.dtype) -> None:
    num_keys, channels = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    table, twin = EmbeddingTable(num_keys, channels, dtype), SlowTable(num_keys, channels, dtype)
    generator = torch.Generator().manual_seed(0)
    for act in data.draw(st.lists(st.sampled_from(["push", "push", "push", "clear", "reload", "resize"]))):
        if act == "push":
            key = st.integers(0, twin.num_keys - 1)
            keys = data.draw(st.lists(key, unique=True, max_size=twin.num_keys))
            rows, step = torch.randn(len(keys), channels, generator=generator), data.draw(st.integers(0, 50))
            table.push(torch.tensor(keys, dtype=torch.int64), rows, step)
            twin.push(keys, rows, step)
        elif act == "clear":
            table.clear()
            twin.step, twin.written = 0, {}
        elif act == "reload":
            state = through_a_file(table.state_dict())
            table = EmbeddingTable(twin.num_keys, channels, dtype)
            table.load_state_dict(state)
        else:
            twin.num_keys += data.draw(st.integers(0, 3))
            table.resize(twin.num_keys)
        assert_agree(table, twin)


def test_ages_by_hand() -> None:
    table = EmbeddingTable(4, 1)
    table.push(torch.tensor([2]), torch.tensor([[5.0]]), step=3)
    table.push(torch.tensor([0]), torch.tensor([[7.0]]), step=10)
    rows, ages, known = table.pull(torch.tensor([0, 1, 2, 2]))
    assert rows.squeeze(1).tolist() == [7, 0, 5, 5]
    assert ages.tolist() == [0, -1, 7, 7] and known.tolist() == [True, False, True, True]
    assert table.pull(torch.tensor([1, 2]), step=12)[1].tolist() == [-1, 9]


def test_a_row_of_zeros_is_known() -> None:
    table = EmbeddingTable(2, 3)
    table.push(torch.tensor([1]), torch.zeros(1, 3), step=0)
    assert table.pull(torch.tensor([0, 1]))[2].tolist() == [False, True]


def test_memory_follows_the_keys_in_use() -> None:
    table = EmbeddingTable(1_000_000, 256)
    table.push(torch.tensor([999_999, 0, 5]), torch.ones(3, 256), step=1)
    assert table.statistics()["bytes"] < 4_000_000 + 10 * (256 * 4 + 8)


def test_a_checkpoint_holds_the_rows_in_use_alone() -> None:
    table = EmbeddingTable(100_000, 64)
    for step in range(40):   # several doublings, so that there is spare capacity
        table.push(torch.arange(step * 13, step * 13 + 13), torch.ones(13, 64), step)
    file = io.BytesIO()
    torch.save(table.state_dict(), file)
    assert 520 * 64 * 4 < len(file.getvalue()) < 520 * (64 * 4 + 16) + 8_000


def test_rides_in_the_checkpoint_of_a_module() -> None:
    def model() -> nn.Module:
        return nn.ModuleDict({"head": nn.Linear(4, 1), "table": EmbeddingTable(10, 4, torch.bfloat16)})

    trained, resumed = model(), model()
    trained["table"].push(torch.tensor([7, 3]), torch.randn(2, 4), step=9)
    resumed["table"].push(torch.tensor([1]), torch.randn(1, 4), step=20)   # to be forgotten
    resumed.load_state_dict(through_a_file(trained.state_dict()))
    keys = torch.arange(10)
    for expected, got in zip(trained["table"].pull(keys), resumed["table"].pull(keys), strict=True):
        assert torch.equal(got, expected)
    assert resumed["table"].step == 9


def test_a_saved_state_does_not_follow_the_table() -> None:
    table = EmbeddingTable(3, 1)
    table.push(torch.tensor([0]), torch.tensor([[1.0]]), step=0)
    state, copied = table.state_dict(), copy.deepcopy(table)
    table.push(torch.tensor([0]), torch.tensor([[2.0]]), step=1)
    assert copied.pull(torch.tensor([0]))[0].item() == 1
    table.load_state_dict(state)
    assert table.pull(torch.tensor([0]))[0].item() == 1


def test_rows_are_kept_without_their_gradient_and_copied_both_ways() -> None:
    table = EmbeddingTable(2, 2)
    pushed = torch.ones(1, 2, requires_grad=True)
    table.push(torch.tensor([0]), pushed * 2, step=0)
    pulled = table.pull(torch.tensor([0]))[0]
    assert not pulled.requires_grad
    pulled += 1
    assert table.pull(torch.tensor([0]))[0].tolist() == [[2, 2]]


def test_pushes_in_inference_mode_do_not_spoil_training() -> None:
    table = EmbeddingTable(10, 2)
    with torch.inference_mode():
        table.push(torch.arange(4), torch.ones(4, 2), step=0)
    table.push(torch.arange(4), torch.full((4, 2), 3.0), step=1)   # into storage that grew in inference mode
    weight = torch.ones(2, requires_grad=True)
    (table.pull(torch.arange(4))[0] @ weight).sum().backward()
    assert weight.grad.tolist() == [12, 12]


def test_moving_or_halving_the_model_leaves_the_table() -> None:
    model = nn.ModuleDict({"table": EmbeddingTable(2, 1)})
    model["table"].push(torch.tensor([0]), torch.tensor([[1 + 2**-20]]), step=0)
    model.half()
    assert model["table"].pull(torch.tensor([0]))[0].item() == 1 + 2**-20


@pytest.mark.parametrize(
    ("keys", "rows", "step", "message"),
    [
        (torch.tensor([1, 2, 1]), torch.ones(3, 2), 1, "key 1 is repeated"),
        (torch.tensor([3, 4]), torch.ones(2, 2), 1, r"keys are 3\.\.4; wanted 0\.\.3"),
        (torch.tensor([-1]), torch.ones(1, 2), 1, r"keys are -1\.\.-1"),
        (torch.tensor([1, 2]), torch.ones(1, 2), 1, r"shape \(1, 2\); wanted \(2, 2\)"),
        (torch.tensor([1, 2]), torch.ones(2, 1), 1, r"shape \(2, 1\); wanted \(2, 2\)"),
        (torch.tensor([1]), torch.ones(1, 2), -1, "step is -1"),
    ],
)
def test_push_refuses_and_changes_nothing(keys: Tensor, rows: Tensor, step: int, message: str) -> None:
    table, twin = EmbeddingTable(4, 2), SlowTable(4, 2, torch.float32)
    for target in (table, twin):
        target.push(torch.tensor([1]) if target is table else [1], torch.full((1, 2), 4.0), 0)
    with pytest.raises(ValueError, match=message):
        table.push(keys, rows, step)
    assert_agree(table, twin)


def test_pull_refuses() -> None:
    table = EmbeddingTable(4, 2)
    table.push(torch.tensor([1]), torch.ones(1, 2), 5)
    with pytest.raises(ValueError, match=r"keys are 0\.\.4; wanted 0\.\.3"):
        table.pull(torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="step is 4; wanted at least 5"):
        table.pull(torch.tensor([0]), step=4)


@pytest.mark.parametrize("num_keys", [1, 4, 9])
def test_a_smaller_table_grows_to_the_saved_keys_and_a_larger_one_stays(num_keys: int) -> None:
    saved, other = EmbeddingTable(4, 2), EmbeddingTable(num_keys, 2)
    saved.push(torch.tensor([3]), torch.ones(1, 2), 5)
    other.load_state_dict(saved.state_dict())
    assert other.num_keys == max(num_keys, 4)
    assert other.known(torch.arange(4)).tolist() == [False, False, False, True]


def test_a_state_of_another_shape_is_refused() -> None:
    saved = EmbeddingTable(4, 2)
    saved.push(torch.tensor([1]), torch.ones(1, 2), 5)
    for other in (EmbeddingTable(4, 3), EmbeddingTable(4, 2, torch.bfloat16)):
        other.push(torch.tensor([2]), torch.ones(1, other.channels), 1)
        with pytest.raises(ValueError, match=r"channels, dtype = 2, torch\.float32; wanted"):
            other.load_state_dict(saved.state_dict())
        assert other.pull(torch.tensor([1, 2]))[2].tolist() == [False, True]


def test_impossible_tables_are_refused() -> None:
    for arguments in ((0, 2), (2**31, 2), (4, 0), (4, 2, torch.int64)):
        with pytest.raises(ValueError, match="wanted"):
            EmbeddingTable(*arguments)
    with pytest.raises(ValueError, match=r"num_keys is 3; wanted 4\.\."):
        EmbeddingTable(4, 2).resize(3)
