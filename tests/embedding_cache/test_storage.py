"""Rows wherever they are kept: numbered, copied both ways, row 0 zero."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from embedding_cache import EmbeddingTable, storage
from embedding_cache.storage import HUGE_PAGE, AcceleratorRows, HostRows, MappedFile, finite_rows, ordinary
from tests.files import largest_file

HOST, DIRECTORY = torch.device("cpu"), Path(tempfile.gettempdir())
KINDS = ["accelerator", "ordinary", "mapped"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


def rows_of(kind: str, channels: int, dtype: torch.dtype) -> AcceleratorRows | HostRows:
    """The accelerator's, but for its streams, is plain torch: the host is one too."""
    if kind == "accelerator":
        return AcceleratorRows(channels, dtype, HOST)
    return HostRows(channels, dtype, HOST, ordinary if kind == "ordinary" else MappedFile(DIRECTORY))


def numbers(shape: tuple[int, int], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def laid(rows: Tensor, layout: str) -> Tensor:
    """The same numbers, lying otherwise in memory."""
    if layout == "transposed":
        return rows.T.contiguous().T
    if layout == "odd offset":
        return torch.cat([rows.new_zeros(1), rows.flatten()])[1:].view(rows.shape)
    if layout == "foreign, odd address":  # memory that torch did not take begins anywhere
        raw = rows.contiguous().view(torch.uint8).numpy()
        apart = np.zeros(raw.size + rows.element_size(), np.uint8)[rows.element_size() :]
        apart[:] = raw.ravel()
        return torch.from_numpy(apart).view(rows.dtype).view(rows.shape)
    return rows


LAYOUTS = st.sampled_from(["plain", "transposed", "odd offset", "foreign, odd address"])


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_what_is_scattered_is_gathered(kind: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES[: -1 if kind == "accelerator" else None]))  # torch cannot index float8
    channels, num_rows = data.draw(st.sampled_from([1, 2, 3, 5, 8, 16, 32, 64, 128])), data.draw(st.integers(1, 40))
    rows, twin = rows_of(kind, channels, dtype), torch.zeros(num_rows, channels, dtype=dtype)
    rows.grow(num_rows)
    with streaming_from(data.draw(st.sampled_from([0, storage.STREAMED_BYTES]))):
        for seed in range(3):
            slots = data.draw(st.lists(st.integers(1, num_rows - 1), unique=True) if num_rows > 1 else st.just([]))
            values = numbers((len(slots), channels), seed).to(dtype)
            rows.scatter(np.array(slots, np.int32), laid(values, data.draw(LAYOUTS)))
            for slot, value in zip(slots, values, strict=True):
                twin[slot] = value
            known = [0, *slots]
            asked = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=50))
            out = laid(torch.empty(len(asked), channels, dtype=dtype), data.draw(LAYOUTS))
            expected = torch.stack([twin[slot] for slot in asked])
            for got in (rows.gather(np.array(asked, np.int32)), rows.gather(np.array(asked, np.int32), out), out):
                assert got.dtype == dtype and torch.equal(got.double(), expected.double())


@contextmanager
def streaming_from(num_bytes: int) -> Iterator[None]:
    before, storage.STREAMED_BYTES = storage.STREAMED_BYTES, num_bytes
    try:
        yield
    finally:
        storage.STREAMED_BYTES = before


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_slots_as_they_grow(kind: str) -> None:
    rows, values = rows_of(kind, 64, torch.float32), numbers((5000, 64), 0)
    for grown, first in ((100, 1), (HUGE_PAGE // 256, 100), (5 * HUGE_PAGE // 256, 4000)):  # ends in huge pages
        rows.grow(grown)
        slots = np.arange(first, min(grown, first + 900), dtype=np.int32)
        rows.scatter(slots, values[slots])
    written = np.r_[1:100, 100:1000, 4000:4900].astype(np.int32)
    assert torch.equal(rows.gather(written), values[written]) and not rows.gather(np.zeros(1, np.int32)).any()
    assert len(rows.rows) == 5 * HUGE_PAGE // 256 and rows.rows.nbytes == 5 * HUGE_PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_inference_mode_are_written_and_used_outside_it(kind: str) -> None:
    with torch.inference_mode():
        made = rows_of(kind, 2, torch.float32)
    for rows in (made, rows_of(kind, 2, torch.float32)):
        with torch.inference_mode():
            rows.grow(4)
            rows.scatter(np.array([1], np.int32), torch.ones(1, 2))
        rows.scatter(np.array([2], np.int32), torch.full((1, 2), 3.0))
        rows.grow(8)
        weight = torch.ones(2, requires_grad=True)
        (rows.gather(np.array([1, 2], np.int32)) @ weight).sum().backward()
        assert weight.grad is not None and weight.grad.tolist() == [4, 4]


def test_streaming_writes_the_same_and_nothing_else() -> None:
    table, slots = numbers((50, 32), 0), np.random.default_rng(0).permutation(50)[:30].astype(np.int32)
    words, out, scattered = table.view(torch.int64).numpy(), torch.zeros(32, 32), torch.zeros(50, 32)
    storage.gather_streaming(words, slots, out.view(torch.int64).numpy()[:30])
    assert torch.equal(out[:30], table[slots]) and not out[30:].any()
    storage.scatter_streaming(scattered.view(torch.int64).numpy(), slots, out.view(torch.int64).numpy()[:30])
    untouched = np.setdiff1d(np.arange(50), slots)
    assert torch.equal(scattered[slots], table[slots]) and not scattered[untouched].any()


def test_a_file_takes_no_name_and_goes_with_its_table(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "inside"
    table = EmbeddingTable(100, 4096, tier="disk", path=path)
    table.push(torch.arange(100), torch.ones(100, 4096), 0)
    assert mapped_under(tmp_path) and not list(path.iterdir())
    del table
    assert not mapped_under(tmp_path)


def mapped_under(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]


def test_a_full_disk_is_told_at_once_and_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    table = EmbeddingTable(10_000, 256, tier="disk", path=tmp_path)
    table.push(torch.arange(10), torch.ones(10, 256), 3)
    with largest_file(100_000), pytest.raises(OSError, match=r"no room for 10001 rows \(10 MiB\) in .*; free some"):
        table.push(torch.arange(10_000), torch.zeros(10_000, 256), 4)
    assert table.step == 3 and table.statistics()["rows_in_use"] == 10
    assert torch.equal(table.pull(torch.arange(10))[0], torch.ones(10, 256))
    table.push(torch.arange(10_000), torch.zeros(10_000, 256), 4)
    assert table.is_known(torch.arange(10_000)).all()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError, match="taken"):
        EmbeddingTable(4, 2, tier="disk", path=tmp_path / "taken")


@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_rows_of_any_strides_are_pushed(dtype: torch.dtype) -> None:
    """An axis of length 0 or 1 has any stride."""
    table, rows = EmbeddingTable(3, 8, dtype), torch.ones(8, 1)
    table.push(torch.zeros(0, dtype=torch.int64), rows[:, :0].T.to(dtype), 1)
    table.push(torch.tensor([1]), rows.T.to(dtype), 2)
    assert (table.step, table.rows_in_use) == (2, 1) and (table.pull(torch.tensor([1]))[0].float() == 1).all()


def test_a_fork_neither_reads_nor_writes_the_rows_in_its_parents_file(tmp_path: Path) -> None:
    table, key = EmbeddingTable(3, 2, tier="disk", path=tmp_path), torch.tensor([1])
    table.push(key, torch.ones(1, 2), 1)
    if not (child := os.fork()):
        try:
            for use in (lambda: table.push(key, torch.zeros(1, 2), 2), lambda: table.pull(key), table.get_extra_state):
                with pytest.raises(ValueError, match="is its fork"):
                    use()
            table.clear()
            table.push(key, torch.zeros(1, 2), 2)
            os._exit(int(table.pull(key)[0].sum()))
        finally:
            os._exit(9)
    assert os.waitpid(child, 0)[1] == 0
    assert table.pull(key)[0].tolist() == [[1, 1]]


@given(st.sampled_from(DTYPES[:-1]), st.integers(0, 12), st.integers(1, 40), st.integers(0, 99), LAYOUTS)
def test_finite_rows_are_those_of_torch(dtype: torch.dtype, rows: int, channels: int, seed: int, layout: str) -> None:
    largest, generator = torch.finfo(dtype), torch.Generator().manual_seed(seed)
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, largest.max, largest.min, largest.tiny, 0], dtype=dtype)
    chosen = special[torch.randint(len(special), (rows, channels), generator=generator)]
    is_special = torch.rand(rows, channels, generator=generator) < 0.05
    values = laid(torch.where(is_special, chosen, numbers((rows, channels), seed).to(dtype)), layout)
    assert finite_rows(values).equal(values.isfinite().all(1))


NO_THREADS = """
import os, torch
from embedding_cache import EmbeddingTable
def threads(): return len(os.listdir("/proc/self/task"))
table, rows, keys = EmbeddingTable(2_000, 128), torch.empty(1_024, 128), torch.arange(1_024)
rows.numpy()[:] = 1
table.push(keys[:1], rows[:1], 0)  # loads compiled code
before = threads()
for step in range(3):
    table.push(keys, rows, step)
    assert table.pull(keys)[2].numpy().all()
assert threads() == before, (threads(), before)
torch.ones(1 << 20).add_(1)
assert threads() > before, "OpenMP starts its threads when it is asked"
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_small_pushes_and_pulls_need_no_second_thread() -> None:
    """Threads of OpenMP wait for each other: beside a busy process a push of 1 ms then takes 40."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", NO_THREADS], check=True, env=environment)
