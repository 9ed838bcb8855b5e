"""Rates of pushes and pulls of the embedding table, compared with a plain copy of as many bytes.

Keys are random, other ones in every repetition, in tables larger than the caches. Pulls and copies read from memory of
the same kind of pages and write to the same memory, used again, since memory fresh from the system costs either the
same and more than the copy itself. Both run on one thread; what a copy with all threads reaches is told besides. They
take turns, each after one of its own kind that is not counted: a copy leaves the end of what it wrote in the caches,
and whoever comes next waits until it has been written out.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from embedding_cache import EmbeddingTable
from embedding_cache.storage import ordinary
from gst.execution.measure import Measurement, measure
from gst.machine.devices import machine_record
from gst.util.progress import Progress, no_progress

TABLE_BYTES = 256 << 20
TIERS = ("device", "pinned", "disk")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1 << 16, 1 << 10), (1 << 14, 1 << 12), (9216, 1 << 10))  # rows pulled, bytes of a row; the first is reported
SMALL = 300  # repetitions of what takes microseconds
LARGE = 25  # and of what takes milliseconds


def run(progress: Progress = no_progress) -> dict[str, Any]:
    """Measure tables on the host.

    Returns:
        pull_ms_9216x1, push_ms_1024x128: medians, float32 rows in ordinary memory, 100,000 keys.
        pull_gb_s, copy_gb_s, pull_over_copy: of 65,536 rows of 1 KiB out of 256 MiB, and of a copy of as many
            bytes from one place, either on one thread; 10^9 bytes of rows a second, each read once and written once.
            Medians, in turns.
        pull_over_copy_fastest: the fastest pull and the fastest copy instead, which other load disturbs less.
        parallel_copy_gb_s, pull_over_parallel_copy: medians, the copy with all threads.
        copies: the same for each number of rows and bytes of a row.
        tiers: for each tier and dtype `pull_ms` and `push_ms` of 1,024 rows x 128 channels, `push_capacity_ms` into a
            table that is full and evicts.
        machine: see `gst.machine.devices.machine_record`.
    """
    results: dict[str, Any] = {"machine": machine_record(), "pull_ms_9216x1": _small_pull()}
    stages = len(SHAPES) + len(TIERS) * len(DTYPES)
    copies = {}
    for done, (rows, row_bytes) in enumerate(SHAPES):
        progress(f"{rows} rows of {row_bytes} bytes", done, stages)
        copies[f"{rows}x{row_bytes}"] = _pull_against_copy(rows, row_bytes)
    tiers: dict[str, dict[str, dict[str, float]]] = {tier: {} for tier in TIERS}
    with tempfile.TemporaryDirectory() as directory:
        for done, (tier, dtype) in enumerate(itertools.product(TIERS, DTYPES), start=len(SHAPES)):
            progress(f"{tier} {dtype}", done, stages)
            path = directory if tier == "disk" else None
            tiers[tier][str(dtype).removeprefix("torch.")] = _tier(tier, dtype, path)
    progress("done", stages, stages)
    results["push_ms_1024x128"] = tiers["device"]["float32"]["push_ms"]
    first = copies["{}x{}".format(*SHAPES[0])]
    return results | first | {"copies": copies, "tiers": tiers}


def _small_pull() -> float:
    table = _full(100_000, 1, torch.float32)
    batches = _batches(100_000, 9216)
    return _medians({"pull": lambda: table.pull(next(batches))}, SMALL)["pull"]


def _pull_against_copy(num_rows: int, row_bytes: int) -> dict[str, float]:
    num_keys, channels = TABLE_BYTES // row_bytes, row_bytes // 4
    table = _full(num_keys, channels, torch.float32)
    source = ordinary(torch.ones(1, channels), num_keys).fill_(1)
    out = torch.empty(num_rows, channels)
    batches = _batches(num_keys, num_rows)
    starts = itertools.cycle(torch.randint(num_keys - num_rows + 1, (97,)).tolist())

    def pull() -> object:
        return table.pull(next(batches), out=out)

    def copy() -> object:
        start = next(starts)
        return out.copy_(source[start : start + num_rows])

    turns: dict[str, Callable[[], object]] = {
        "pull": pull, "copy": partial(_on_one_thread, copy), "parallel copy": copy,
    }  # fmt: skip
    seen = _measured({when + label: turn for label, turn in turns.items() for when in ("before the ", "")}, LARGE)
    medians = {label: seen[label].median_ms for label in turns}
    fastest = {label: min(seen[label].samples_ms) for label in turns}
    gigabytes = num_rows * row_bytes / 1e9
    return {
        "pull_gb_s": gigabytes / medians["pull"] * 1e3,
        "copy_gb_s": gigabytes / medians["copy"] * 1e3,
        "pull_over_copy": medians["copy"] / medians["pull"],
        "pull_over_copy_fastest": fastest["copy"] / fastest["pull"],
        "parallel_copy_gb_s": gigabytes / medians["parallel copy"] * 1e3,
        "pull_over_parallel_copy": medians["parallel copy"] / medians["pull"],
    }


def _on_one_thread(function: Callable[[], object]) -> object:
    """As a pull runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function()
    finally:
        torch.set_num_threads(threads)


def _tier(tier: Any, dtype: torch.dtype, path: str | None) -> dict[str, float]:
    options = {"tier": tier, "path": path}
    num_keys, channels, num_rows = 100_000, 128, 1024
    plain = _full(num_keys, channels, dtype, **options)
    bounded = _full(num_keys, channels, dtype, capacity=num_keys // 2, **options)
    rows, step = torch.randn(num_rows, channels).to(dtype), itertools.count(1)

    def push(table: EmbeddingTable) -> float:
        batches = _batches(num_keys, num_rows)
        return _medians({"push": lambda: table.push(next(batches), rows, next(step))}, SMALL)["push"]

    batches = _batches(num_keys, num_rows)
    return {
        "pull_ms": _medians({"pull": lambda: plain.pull(next(batches))}, SMALL)["pull"],
        "push_ms": push(plain),
        "push_capacity_ms": push(bounded),
    }


def _full(num_keys: int, channels: int, dtype: torch.dtype, **options: Any) -> EmbeddingTable:
    """A table with a row for every key it can hold."""
    table = EmbeddingTable(num_keys, channels, dtype, **options)
    for keys in torch.arange(num_keys).split(1 << 14):
        table.push(keys, torch.ones(len(keys), channels), 0)
    return table


def _batches(num_keys: int, num_rows: int) -> Iterator[Tensor]:
    """Distinct random keys, over and over the same few batches."""
    generator = torch.Generator().manual_seed(0)
    return itertools.cycle([torch.randperm(num_keys, generator=generator)[:num_rows] for _ in range(64)])


def _medians(callables: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Milliseconds."""
    return {label: seen.median_ms for label, seen in _measured(callables, repetitions).items()}


def _measured(callables: dict[str, Callable[[], object]], repetitions: int) -> dict[str, Measurement]:
    measured = measure(callables, repetitions)
    failures = [seen.reason for seen in measured.values() if seen.outcome == "failed"]
    if failures:
        raise RuntimeError(f"a table failed while it was measured: {failures[0]}")
    return measured
