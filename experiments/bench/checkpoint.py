"""Time to write a checkpoint with a large table, compared with a plain copy of the file, and time that training waits.

A save leaves nothing in the system's memory, so that a restore reads the disk; a copy then reads from memory and ends
when the disk has everything. Everything runs in one folder, which has to lie on the disk that is meant.

    python -m experiments.bench checkpoint --size 1GiB --out /mnt/fast
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from embedding_cache import EmbeddingTable
from gst.machine.devices import machine_record, parse_bytes
from gst.util.progress import Progress, no_progress

CHANNELS, AT_ONCE = 128, 1 << 16


HELP = {"size": "of the table", "out": "folder on the disk to measure (default: the system's temporary one)"}


def run(
    size: str = "1GiB", repetitions: int = 7, out: Path | None = None, progress: Progress = no_progress
) -> dict[str, Any]:
    """Save and restore a table alternately with copies of the file. At most three times its size lies on the disk at
    once.

    Returns:
        `save_ratio`, `restore_ratio`: how many times as fast as a copy of the file; medians of turns. `pause_s`: how
        long the caller of save waits before it goes on, the median, and `pause_max_s`. `save_s`, `restore_s`, `copy_s`:
        medians, until the file is on the disk, and until the table can be used. `file_mib`: of the file.
    """
    from gst.training.checkpoints import BackgroundCheckpointIO  # it brings Lightning with it

    num_bytes = parse_bytes(size)
    table = _full(num_bytes // (4 * CHANNELS))
    seen: dict[str, list[float]] = {"copy": [], "pause": [], "save": [], "restore": []}
    with tempfile.TemporaryDirectory(dir=out) as directory:
        saved, copy, plain = Path(directory) / "a.ckpt", Path(directory) / "copy", BackgroundCheckpointIO()
        for turn in range(repetitions + 1):
            progress(f"turn {turn}", turn, repetitions + 1)
            began = time.perf_counter()
            plain.save_checkpoint({"state_dict": {"table._extra_state": table.get_extra_state()}}, saved)
            paused = time.perf_counter()
            plain.teardown()
            written = time.perf_counter()
            state = plain.load_checkpoint(saved, weights_only=True)
            restored = EmbeddingTable(1, CHANNELS)
            restored.set_extra_state(state["state_dict"]["table._extra_state"])
            usable = time.perf_counter()
            assert restored.rows_in_use == table.rows_in_use
            del state, restored
            copied = _copy(saved, copy)
            copy.unlink()
            if turn:  # the first one finds memory that was never used
                for name, value in zip(seen, (copied, paused - began, written - began, usable - written), strict=True):
                    seen[name].append(value)
        written_bytes = saved.stat().st_size
    progress("done", repetitions + 1, repetitions + 1)
    return {
        "save_ratio": statistics.median(c / s for c, s in zip(seen["copy"], seen["save"], strict=True)),
        "restore_ratio": statistics.median(c / s for c, s in zip(seen["copy"], seen["restore"], strict=True)),
        "pause_s": statistics.median(seen["pause"]),
        "pause_max_s": max(seen["pause"]),
        **{f"{name}_s": statistics.median(seen[name]) for name in ("save", "restore", "copy")},
        "file_mib": written_bytes / 2**20,
        "turns": seen,
        "setting": {"bytes": num_bytes, "channels": CHANNELS, "repetitions": repetitions},
        "machine": machine_record(),
    }


def _full(rows: int) -> EmbeddingTable:
    table = EmbeddingTable(rows, CHANNELS)
    generator = torch.Generator().manual_seed(0)
    for step, keys in enumerate(torch.randperm(rows, generator=generator).split(AT_ONCE)):
        table.push(keys, torch.randn(len(keys), CHANNELS, generator=generator), step)
    return table


def _copy(source: Path, target: Path) -> float:
    began = time.perf_counter()
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, 1 << 24)
        written.flush()
        os.fsync(written.fileno())
    return time.perf_counter() - began
