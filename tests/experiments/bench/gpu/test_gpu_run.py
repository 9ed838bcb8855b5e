"""The rows of `make gpu` on a machine with an accelerator, which is none: their order, their time, their file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.bench.__main__ import main
from experiments.bench.gpu import run as gpu
from experiments.bench.gpu.process import Ended
from gst.programs import WORKLOADS

ROOT = Path(__file__).parents[4]
WAYS = {"as written": {"median_ms": 1.0, "reason": ""}}
Row = Callable[..., dict[str, Any]]


@pytest.fixture
def with_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Row], None]:
    """Gives a machine an accelerator and a function that stands for processes of rows."""

    def set_rows(row: Row) -> None:
        monkeypatch.setattr(gpu, "accelerator_here", lambda: torch.device("xpu", 0))
        monkeypatch.setattr(gpu, "_row", row)
        monkeypatch.setattr(gpu, "machine_record", dict)
        monkeypatch.setattr(gpu, "accelerator_record", lambda device: {})

    return set_rows


def test_the_most_important_rows_come_first(
    with_rows: Callable[[Row], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is left is skipped by name, each row has a share of the time, and the late mode comes at the end."""
    asked: list[tuple[str, str, float, dict[str, Any]]] = []

    def row(module: str, arguments: list[str], limit_s: float, log: Path) -> dict[str, Any]:
        asked.append((module, arguments[0], limit_s, json.loads(arguments[-1])))
        monkeypatch.setattr(gpu.time, "monotonic", lambda: 1200.0 if len(asked) == 19 else 50.0 * len(asked))
        return {"failed": "no GPU"}

    monkeypatch.setattr(gpu.time, "monotonic", lambda: 0.0)
    with_rows(row)
    path = tmp_path / "gpu.json"
    assert main(["gpu", "--without-tests", "--json", str(path), "--total-limit", "1200", "--time-limit", "150"]) == 0
    names = [name for module, name, *_ in asked if module not in ("place", "capped")]
    assert names[:5] == ["rnnlm", "gpt", "moe", "inception", gpu.LARGE]
    assert names[5:9] == ["step", "table", "score", "recorded"]
    assert [module for module, *_ in asked[7:10]] == ["place", "gst_jobs", "capped"]
    assert asked[0][3] == {"seconds": 120.0, "plans": 200, "steps": 200, "folder": str(tmp_path)}
    assert asked[7][3]["seconds"] == 90  # of the 150 s of `place`
    assert asked[9][2] == pytest.approx(0.08 * 1200) and asked[5][2] == pytest.approx(0.12 * 1200)
    skipped = json.loads(path.read_text())["skipped"]
    assert len(asked) == 19 and len(skipped) == len(gpu.JOBS) - 2 - 19 + len(WORKLOADS)
    assert all(each.endswith("no time left of 1200 s") for each in skipped)
    assert "skipped: " in capsys.readouterr().out


def test_a_run_that_is_killed_leaves_its_rows_and_the_next_goes_on(
    with_rows: Callable[[Row], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, asked = tmp_path / "gpu.json", []

    def row(module: str, arguments: list[str], limit_s: float, log: Path) -> dict[str, Any]:
        asked.append(arguments[0])
        if len(asked) == 3:
            raise KeyboardInterrupt
        done = {"nodes": 1, "operations_ms": math.nan, "ways": WAYS, "wrong": ""}
        return done if arguments[0] == "gpt" else {"failed": "no GPU"}

    with_rows(row)
    monkeypatch.setattr(gpu, "JOBS", [job for job in gpu.JOBS if job.part != "kernels"])
    command = ["gpu", "--without-tests", "--programs", "gpt,rnnlm,moe", "--modes", "default", "--json", str(path)]
    with pytest.raises(KeyboardInterrupt):
        main(command)
    assert list(json.loads(path.read_text())["workloads"]) == ["gpt", "rnnlm"]
    assert main([*command, "--resume"]) == 0 and asked == ["gpt", "rnnlm", "moe", "rnnlm", "moe"]
    assert set(json.loads(path.read_text())["workloads"]) == {"gpt", "rnnlm", "moe"}
    assert main([*command, "--resume", "--plans", "3"]) == 2  # other settings
    assert main(["gpu", "--programs", "alexnet"]) == 2
    assert "no workload 'alexnet'; there are " in capsys.readouterr().err


def test_what_a_child_said_before_its_time_was_over_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = '{"nodes": 2}\n{"nodes": 3, "error": Infinity}\n{"nodes":'
    monkeypatch.setattr(gpu, "run_session", lambda command, limit_s: Ended(None, said, "words\n"))
    row = gpu._row("child", ["rnnlm"], 2.0, tmp_path / "logs" / "rnnlm.txt")
    assert row == {"nodes": 3, "error": None, "unfinished": "no end within 2 s"}
    assert (tmp_path / "logs" / "rnnlm.txt").read_text() == "words\n"
    monkeypatch.setattr(gpu, "run_session", lambda command, limit_s: Ended(1, "", "first\nValueError: last\n"))
    assert gpu._row("child", ["rnnlm"], 2.0) == {"failed": "ValueError: last"}
