"""Memory of another process, and the benchmark of memory in its smallest setting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.bench.memory import watch
from tests.experiments.bench.ran import ran


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_the_peak_is_what_was_held_between_the_two_answers(tmp_path: Path) -> None:
    """Pages of files and memory of processes are counted separately."""
    (tmp_path / "file").write_bytes(bytes(32 << 20))
    watched, memory = watch(
        python(
            "import mmap, subprocess, sys, time; early = bytearray(200 << 20); del early; print('{}', flush=True)\n"
            f"file = open({str(tmp_path / 'file')!r}, 'rb')\n"
            "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
            "sum(mapped[::4096]); held = bytearray(64 << 20); time.sleep(0.5); del held\n"
            "hold = 'import time; held = bytearray(48 << 20); time.sleep(0.5)'\n"
            "subprocess.run([sys.executable, '-c', hold], check=True); print('{\"a\": 1}', flush=True)"
        )
    )
    assert watched == {"a": 1} and memory.start < 30
    assert 64 <= memory.anonymous < 100 and memory.mapped >= 32 and 48 <= memory.workers < 80


@pytest.mark.e2e
def test_memory(tmp_path: Path) -> None:
    result = ran(tmp_path, "memory", "--nodes", "3000,30000", "--out", tmp_path / "runs", "--evaluated", 40)
    assert result["nodes"] == [3000, 30_000] and result["segments"] == [4, 33]
    assert not list((tmp_path / "runs").iterdir())
    for key in ("prepare_peak_mib", "train_peak_mib", "eval_peak_mib", "prepare_seconds", "step_ms", "eval_seconds"):
        assert len(result[key]) == 2 and min(result[key]) > 0
    for task in ("train", "eval"):
        peaks = result[f"{task}_peak_mib"]
        assert min(result[f"{task}_above_start_mib"]) > 1 and result[f"{task}_ratio"] == max(peaks) / min(peaks) < 1.3


@pytest.mark.e2e
def test_many_graphs(tmp_path: Path) -> None:
    rows = ran(tmp_path, "many_graphs", "--graphs", "3,6", "--nodes", 60, "--indexed", 50, "--out", tmp_path)["rows"]
    assert [row["graphs"] for row in rows] == [3, 6, 50] and rows[0]["files"] == rows[1]["files"]
    assert all(row["open_cpu_s"] > 0 and row["use_cpu_s"] > 0 for row in rows)
    assert rows[0]["index_mib"] < rows[1]["index_mib"] < rows[2]["index_mib"] and not list(tmp_path.glob("many-*"))
