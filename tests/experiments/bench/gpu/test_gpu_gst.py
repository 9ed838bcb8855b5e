"""The jobs of GST itself in `make gpu`, done on the CPU."""

import json
from typing import Any

import pytest
import torch

from experiments.bench.gpu import gst_jobs, lines

CPU = torch.device("cpu")
STEP = {"sizes": [60, 90], "setting": {"batch_graphs": 2, "configs": 4, "channels": 8, "max_nodes": 30, "steps": 2}}
RECORDED = {"sizes": [1500, 2100], "configs": 3, "channels": 8, "published_configs": 4, "steps": 6}


def test_the_step_is_timed_in_each_variant_and_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(gst_jobs.step(STEP, CPU))
    row = rows[-1]
    assert len(rows) == 3 and row["wrong"] == "" and row["target"] == 20 and json.loads(json.dumps(row)) == row
    assert set(row["variants"]) == {"unshared fp32", "shared fp32", "shared bf16"}
    assert all(each["step_ms"] >= each["step_ms_min"] > 0 for each in row["variants"].values())
    fastest = min(each["step_ms"] for each in row["variants"].values())
    assert row["speedup"] == pytest.approx(row["variants"]["unshared fp32"]["step_ms"] / fastest)
    assert lines.line("step", row).split()[:2] == ["step", "passed;"]
    train = gst_jobs.Trainer.step

    def off(self: Any, model: Any) -> float:
        return train(self, model) * (1.1 if self.autocast().__class__.__name__ == "autocast" else 1.0)

    monkeypatch.setattr(gst_jobs.Trainer, "step", off)
    *_, row = gst_jobs.step(STEP, CPU)
    assert row["wrong"].startswith("losses of shared bf16 are 0.") and "fp32" not in row["wrong"]


def test_recorded_steps_are_compared_with_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    row = gst_jobs.recorded(RECORDED, CPU)
    assert row["wrong"] == "" and row["eager_ms"] > 0 < row["recorded_ms"] and "recorded on an accel" in row["reason"]
    monkeypatch.setattr(gst_jobs, "_difference", lambda got, want: 0.5)
    wrong = gst_jobs._recorded(RECORDED, CPU, gst_jobs._sage)["wrong"]
    assert wrong == "losses of replays (recorded) are 0.5 off; losses of replays (bf16) are 0.5 off"
