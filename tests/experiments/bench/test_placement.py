"""Benchmarks of the executor, the simulator and of placement, on programs of milliseconds."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from experiments.bench import executor, simulator
from experiments.bench.__main__ import main
from experiments.reproductions.placement_tables import first_as_good
from experiments.worlds.sequence import MODELS
from gst.machine.devices import usable_cores
from gst.machine.load import LoadGate
from gst.util.compiled import compiler
from tests.experiments.bench.ran import ran

TINY = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
needs_two_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="this machine has one core")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run at the same time."""
    for module in (executor, simulator):
        monkeypatch.setattr(module, "LoadGate", partial(LoadGate, patience_s=0.0))


@pytest.mark.e2e
@needs_compiler
def test_executor(tmp_path: Path) -> None:
    result = ran(tmp_path, "executor", "--programs", TINY, "--repetitions", 3)
    row = result["workloads"][TINY]
    assert 0 < row["overhead_low"] <= row["overhead"] <= row["overhead_high"]
    assert all(row[key] > 0 for key in ("one_core_ms", "eager_ms", "all_cores_ms", "pytorch_ms"))
    assert 0 < result["hand_over"]["same_us"] < math.inf


@pytest.mark.e2e
@needs_compiler
@needs_two_cores
def test_simulator(tmp_path: Path) -> None:
    row = ran(tmp_path, "simulator", "--programs", TINY, "--plans", 6, "--repetitions", 2)["workloads"][TINY]
    assert row["plans"] == len(row["measured_ms"]) == len(row["simulated_ms"]) == 6
    assert -1 <= row["spearman"] <= 1 and row["mape"] >= 0 and row["evaluations_per_second"] > 0
    assert 0 <= row["peak_error"] <= row["peak_error_worst"] < math.inf


@pytest.mark.e2e
@needs_compiler
@needs_two_cores
def test_unseen(tmp_path: Path) -> None:
    names = [TINY, TINY.replace("steps=2", "steps=3")]
    result = ran(tmp_path, "unseen", "--programs", ",".join(names), "--plans", 8, "--repetitions", 2)
    assert [(row["program"], row["model"]) for row in result["rows"]] == [
        *((name, "repeats") for name in names), *((name, model) for name in names for model in MODELS),
    ]  # fmt: skip
    for name, row in result["workloads"].items():
        rows = result["rows"]
        stated = next(each["error"] for each in rows if (each["program"], each["model"]) == (name, "simulator"))
        error = np.abs(np.array(row["simulated_ms"]) / row["measured_ms"] - 1).mean()
        assert stated == pytest.approx(error, abs=0.05)  # they are rounded


@pytest.mark.e2e
@needs_compiler
@needs_two_cores
def test_placement(tmp_path: Path) -> None:
    arguments = [
        "placement", "--programs", TINY, "--out", tmp_path / "out", "--budget", 4, "--evaluations", 20, "--seeds", 1,
        "--repetitions", 2, "--without-compile", "--patience", 0,
    ]  # fmt: skip
    result = ran(tmp_path, *arguments)
    row = result["workloads"][TINY]
    for name in ("one_device", "pytorch", "heft", "metis", "annealing", "go", "best", "moldable"):
        assert 0 < row[f"{name}_low_ms"] <= row[f"{name}_ms"] <= row[f"{name}_high_ms"]
    assert row["over_pytorch"] == pytest.approx(row["pytorch_ms"] / row["moldable_ms"])
    assert result["geomean"].keys() == {"over_one_device", "over_heft", "over_pytorch"}
    before = [path.read_bytes() for path in sorted(tmp_path.rglob("measurements.jsonl"))]
    ran(tmp_path, *arguments)  # searches go on from what is there
    assert before == [path.read_bytes() for path in sorted(tmp_path.rglob("measurements.jsonl"))] and len(before) == 2


def test_placement_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["placement_simulated", "--programs", TINY, "--machines", "gpus:2", "--methods", "annealing",
                 "--seeds", "2", "--evaluations"]  # fmt: skip
    result = ran(tmp_path, *arguments, "20")
    row, summary = result["rows"][f"{TINY} on gpus:2"], result["summary"]["gpus:2"]
    assert len(row["methods_ms"]["annealing"]) == 2 and row["lower_bound_ms"] <= min(row["methods_ms"]["annealing"])
    best = min(row["portfolio_ms"].values())
    assert summary["portfolio_gap"] == pytest.approx(best / row["lower_bound_ms"] - 1)
    assert ran(tmp_path, *arguments, "20")["rows"] == result["rows"], "rows are taken over"
    assert main([*arguments, "30", "--json", str(tmp_path / "result.json")]) == 2
    assert "has other settings" in capsys.readouterr().err
    assert [first_as_good([(1, 3.0), (5, 2.0)], ms) for ms in (2.5, 1.0)] == [5, None]


@pytest.mark.e2e
def test_fuzz_programs(tmp_path: Path) -> None:
    result = ran(tmp_path, "fuzz_programs", "--programs", 2, "--operators", 1, "--runners", "plan")
    assert sum(result["outcomes"]["operators"].values()) == 1 and result["findings"] == []
    assert json.loads((tmp_path / "result.json").read_text())["seed"] == 0
