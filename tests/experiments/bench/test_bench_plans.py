"""The benchmarks of the executor and the simulator, on a program of milliseconds: figures that can be read."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from experiments.bench import allocator, executor, placement, simulator, unseen
from experiments.worlds.sequence import MODELS
from gst.machine.devices import usable_cores
from gst.machine.load import LoadGate
from gst.util.compiled import compiler

TINY = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"
IMPATIENT = partial(LoadGate, patience_s=0.0)  # other tests run beside these
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
needs_two_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="this machine has one core")


def test_the_ratio_of_rounds_that_slow_both_alike_has_a_narrow_interval() -> None:
    below = np.random.default_rng(0).lognormal(0, 1, 40)
    ratio, low, high = executor.ratio_interval(1.5 * below, below)
    assert ratio == pytest.approx(1.5) and low == pytest.approx(1.5) and high == pytest.approx(1.5)


@pytest.mark.e2e
def test_the_allocator_benchmark_times_a_step_both_ways() -> None:
    result = allocator.bench([TINY], repetitions=2)
    row = result["workloads"][TINY]
    assert row["kept_ms"][0] > 0 < row["given_back_ms"][0]
    assert result["ratio"] == pytest.approx(row["given_back_ms"][0] / row["kept_ms"][0])


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
def test_the_executor_benchmark_tells_of_each_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LoadGate", IMPATIENT)
    result = executor.bench([TINY], repetitions=3)
    row = result["workloads"][TINY]
    assert 0 < row["overhead_low"] <= row["overhead"] <= row["overhead_high"]
    assert all(row[key] > 0 for key in ("one_core_ms", "eager_ms", "all_cores_ms", "pytorch_ms"))
    assert 0 < result["hand_over"]["same_us"] < math.inf


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@needs_two_cores
def test_plans_of_each_program_are_predicted_by_models_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "LoadGate", IMPATIENT)
    names = [TINY, TINY.replace("steps=2", "steps=3")]
    found = unseen.bench(names, num_plans=8, repetitions=2)
    assert [(row["program"], row["model"]) for row in found["rows"]] == [
        *((name, "repeats") for name in names), *((name, model) for name in names for model in MODELS),
    ]  # fmt: skip
    for name, row in found["workloads"].items():
        told = next(each["error"] for each in found["rows"] if (each["program"], each["model"]) == (name, "simulator"))
        error = np.abs(np.array(row["simulated_ms"]) / row["measured_ms"] - 1).mean()
        assert told == pytest.approx(error, abs=0.05)  # they are rounded
        assert len(row["measured_ms"]) == 8 and min(row["measured_ms"]) > 0
    mean, low, high = found["compared"]["error of learned costs"]
    assert 0 < low <= mean <= high < math.inf


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@needs_two_cores
def test_the_simulator_benchmark_tells_of_each_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "LoadGate", IMPATIENT)
    row = simulator.bench([TINY], num_plans=6, repetitions=2)["workloads"][TINY]
    assert row["plans"] == len(row["measured_ms"]) == len(row["simulated_ms"]) == 6
    assert -1 <= row["spearman"] <= 1 and row["mape"] >= 0 and row["evaluations_per_second"] > 0
    assert 0 <= row["peak_error"] <= row["peak_error_worst"] < math.inf


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@needs_two_cores
def test_the_placement_benchmark_tells_of_each_program(tmp_path: Path) -> None:
    settings = {"budget": 4, "evaluations": 20, "seeds": 1, "repetitions": 2, "compiled": False, "patience_s": 0.0}
    result = placement.bench([TINY], tmp_path, **settings)
    row = result["workloads"][TINY]
    for name in ("one_device", "pytorch", "heft", "metis", "annealing", "go", "best", "moldable"):
        assert 0 < row[f"{name}_low_ms"] <= row[f"{name}_ms"] <= row[f"{name}_high_ms"]
    assert row["over_pytorch"] == pytest.approx(row["pytorch_ms"] / row["moldable_ms"])
    assert result["geomean"].keys() == {"over_one_device", "over_heft", "over_pytorch"}
    before = [path.read_bytes() for path in sorted(tmp_path.rglob("measurements.jsonl"))]
    placement.bench([TINY], tmp_path, **settings)  # searches go on from what is there
    assert before == [path.read_bytes() for path in sorted(tmp_path.rglob("measurements.jsonl"))] and len(before) == 2
