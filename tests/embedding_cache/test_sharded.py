"""A table over several processes is that of one: rows, ages, checkpoints. Real processes, real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import in_processes

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from tests.choices import with_rest

NUM_KEYS, CHANNELS, STEPS = 41, 6, 7
Asked = tuple[np.ndarray, np.ndarray, np.ndarray]


def drawn(step: int, world_size: int) -> tuple[Asked, np.ndarray, np.ndarray, torch.Tensor]:
    """Keys, who asks and of which a row is wanted; keys pushed, by whom, and all their rows. Keys repeat."""
    rng = np.random.default_rng(step)
    asked = rng.integers(NUM_KEYS, size=23)
    asker, wanted = rng.integers(world_size, size=23), rng.random(23) < 0.6
    pushed = rng.integers(NUM_KEYS, size=11)
    rows = torch.from_numpy(rng.normal(size=(11, CHANNELS)))
    return (asked, asker, wanted), pushed, rng.integers(world_size, size=11), rows


def first_of_each(keys: np.ndarray) -> np.ndarray:
    return np.sort(np.unique(keys, return_index=True)[1])


def sharded(
    rank: int, world_size: int, dtype: torch.dtype, first: int, saved: dict[str, Any] | None, capacity: int | None
) -> dict[str, Any]:
    """What one process sees in some steps, and what it would save after them."""
    table = ShardedTable(EmbeddingTable(1, CHANNELS, dtype, capacity=capacity))
    if saved is not None:
        table.load_state_dict({"_extra_state": saved})
    table.resize(NUM_KEYS)
    seen = []
    for step in range(first, first + STEPS):
        (keys, asker, wanted), pushed, sender, rows = drawn(step, world_size)
        pulled = table.request(keys, asker, wanted)
        seen.append((*pulled.wait(), pulled.unknown))
        table.submit(pushed, sender, rows[torch.from_numpy(sender == rank)], step)
    return {"seen": seen, "state": table.get_extra_state(), "statistics": table.statistics(), "step": table.step}


def assert_is_the_single_table(answers: list[dict[str, Any]], table: EmbeddingTable, first: int) -> None:
    world_size = len(answers)
    for step in range(first, first + STEPS):
        (keys, asker, wanted), pushed, _, rows = drawn(step, world_size)
        for rank, answer in enumerate(answers):
            own_rows, own_written, unknown = answer["seen"][step - first]
            mine = asker == rank
            assert torch.equal(own_rows, table.pull(torch.from_numpy(keys[mine & wanted]))[0])
            assert torch.equal(own_written, table.written(torch.from_numpy(keys[mine])))
            concerned = mine | (keys % world_size == rank)
            assert np.array_equal(unknown[concerned], ~table.is_known(torch.from_numpy(keys[concerned])).numpy())
        kept = first_of_each(pushed)
        table.push(torch.from_numpy(pushed[kept]), rows[torch.from_numpy(kept)], step)
    state = table.get_extra_state()
    for rank, answer in enumerate(answers):
        saved = answer["state"]
        assert (saved["num_keys"], saved["step"]) == (NUM_KEYS, first + STEPS - 1)
        for name in ("keys", "rows", "written"):
            assert torch.equal(saved[name], state[name] if rank == 0 else state[name][:0])
        statistics = table.statistics() | {"bytes": answer["statistics"]["bytes"]}
        assert answer["statistics"] == pytest.approx(statistics)


@pytest.mark.parametrize("dtype", with_rest([torch.float32, torch.bfloat16], [torch.bfloat16]))
def test_any_number_of_processes_is_one_table_and_goes_on_as_any_other_number(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    table = EmbeddingTable(NUM_KEYS, CHANNELS, dtype)
    saved = None
    for turn, world_size in enumerate((3, 2)):
        answers = in_processes(world_size, sharded, tmp_path, dtype, turn * STEPS, saved, None)
        assert_is_the_single_table(answers, table, turn * STEPS)
        saved = answers[0]["state"]


def test_a_capacity_bounds_the_rows_of_each_process(tmp_path: Path) -> None:
    answers = in_processes(2, sharded, tmp_path, torch.float32, 0, None, 5)
    keys, written = answers[0]["state"]["keys"], answers[0]["state"]["written"]
    assert np.bincount(keys % 2).tolist() == [5, 5] and answers[0]["statistics"]["rows_in_use"] == 10
    newest: dict[int, int] = {}
    for step in range(STEPS):
        newest |= {int(key): step for key in drawn(step, 2)[1]}
    assert written.tolist() == [newest[int(key)] for key in keys]


def test_it_refuses_what_a_single_table_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("get_rank", 0), ("get_world_size", 2), ("get_backend", "gloo")):
        monkeypatch.setattr(torch.distributed, name, lambda group, value=value: value)
    saved = EmbeddingTable(NUM_KEYS, CHANNELS).get_extra_state()
    for channels, state, word in (
        (CHANNELS + 1, saved, "channels"), (CHANNELS, {"keys": torch.zeros(1)}, "state"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=word):
            ShardedTable(EmbeddingTable(1, channels)).set_extra_state(state)
