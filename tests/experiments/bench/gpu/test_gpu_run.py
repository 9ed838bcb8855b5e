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
