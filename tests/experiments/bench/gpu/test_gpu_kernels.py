"""The row of kernels on streams, on the CPU: the ways train alike, and what it writes can be read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.bench.gpu import lines
from experiments.bench.gpu.kernels import reports
from tests.programs.small import SMALL

NAME = "rnnlm:" + ",".join(f"{key}={value}" for key, value in SMALL["rnnlm"].items())


@pytest.mark.e2e
def test_ways_train_alike_and_kernels_and_plans_are_written(tmp_path: Path) -> None:
    settings = {"seconds": 120, "plans": 12, "steps": 10, "folder": str(tmp_path)}
    *_, row = reports(NAME, settings, torch.device("cpu"))
    assert {"kernels on streams", "compiled, default"} <= row["ways"].keys()
    assert row["reasons"]["compiled, one graph"].startswith("ValueError: graphs are recorded on an accelerator")
    assert max(row["losses_differ"].values()) < 1e-4 and row["plans"] == 12
    assert 0 < row["critical_path_us"] <= row["sum_us"]
    (kernels,) = (tmp_path / "kernels").iterdir()
    record = json.loads(kernels.read_text())
    assert len(record["kernels"]) == row["kernels"] and all(each["us"] > 0 for each in record["kernels"])
    (plans,) = (tmp_path / "plans").iterdir()
    measured = json.loads(plans.read_text())["plans"]
    assert len(measured) == 12 and all(len(each["placement"]) == row["kernels"] for each in measured)
    assert "kernels" in lines.line(NAME, row)
