"""The benchmark of a training step, alone and against whole graphs, in their smallest setting."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.bench import against_full, step
from experiments.bench.__main__ import main
from experiments.bench.published import layout_program

TINY = {"batch_graphs": 1, "configs": 4, "layers": 1, "channels": 8, "max_nodes": 200, "steps": 2}
VARIANT_KEYS = {"step_ms", "step_ms_min", "losses", "exact_eval_ms", "peak_mib", "gflop", "matmul_gflops"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two files in the format of TpuGraphs' layout collections."""
    (tmp_path / "data").mkdir()
    for seed in range(2):
        graph = layout_program(300 + 100 * seed, seed, num_configs=12)
        np.savez(
            tmp_path / "data" / f"{seed}.npz", node_feat=graph.node_features, node_opcode=graph.opcodes,
            edge_index=graph.edges[::-1].T, node_config_feat=graph.config_features, node_config_ids=graph.config_nodes,
            config_runtime=graph.targets.astype(np.int64),
        )  # fmt: skip
    return tmp_path / "data"


def test_the_variants_learn_alike(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, draws and configurations: in fp32 the losses are equal, in bf16 their mean is near. Arithmetic
    is saved where states are shared."""
    monkeypatch.setattr(step, "_matmul_gflops", lambda dtype: 1.0)
    monkeypatch.setattr(step, "WARM_UP", 1)
    setting = step.Setting(str(data), **TINY | {"steps": 4, "batch_graphs": 2, "configs": 12})
    results = {variant: step.measure(variant, setting, variant == "shared bf16") for variant in step.VARIANTS}
    plain, shared, short = results.values()
    assert len(plain["losses"]) == 4 and plain["losses"] == pytest.approx(shared["losses"], abs=1e-5)
    assert np.mean(short["losses"]) == pytest.approx(np.mean(plain["losses"]), abs=0.05)
    assert shared["gflop"] < 0.9 * plain["gflop"] and short["gflop"] == pytest.approx(shared["gflop"])
    assert all(set(result) >= VARIANT_KEYS for result in results.values())
    assert 0 <= short["tau_difference_bf16"] < 0.3 and 0 <= short["stall"] < 1


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("slowdown", [0.5, 50.0])
def test_bench_step_end_to_end(
    slowdown: float, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With bf16 all variants are measured; where it is slow that variant is left out, and the output says why."""
    monkeypatch.setattr(step, "bf16_slowdown", lambda: slowdown)
    names = list(step.VARIANTS)[: 3 if slowdown < 1 else 2]
    keys = ("step_ms", "exact_eval_ms", "peak_mib", "tau_difference_bf16", "table_step_over_gst_one", "stall")
    options = [text for name, value in TINY.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    file = tmp_path / "step.json"
    assert main(["step", "--data", str(data), *options, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    variants, ours = result["variants"], result["variants"][names[-1]]
    assert list(variants) == names and all(len(each["losses"]) == 2 for each in variants.values())
    words = "shared bf16 (products in bf16 take 50 times as long as in fp32 on this processor)"
    assert result["not_measured"] == ([] if slowdown < 1 else [words])
    assert (words in capsys.readouterr().out) == ("tau_difference_bf16" not in result) == (slowdown > 1)
    for key in keys if slowdown < 1 else [key for key in keys if key != "tau_difference_bf16"]:
        assert result[key] == ours[key] and math.isfinite(result[key])
    assert result["speedup"] == pytest.approx(variants["unshared fp32"]["step_ms"] / ours["step_ms"])
    assert result["eval_speedup"] == pytest.approx(variants["unshared fp32"]["exact_eval_ms"] / ours["exact_eval_ms"])
    assert result["share_of_peak"] == pytest.approx(1e3 * ours["gflop"] / ours["step_ms"] / ours["matmul_gflops"])
    assert 0 < result["share_of_peak"] < 1.5
    assert result["setting"] == {"data": str(data), **TINY}
    assert 50 < result["peak_mib"] < 4000


def test_more_configurations_than_a_graph_has_are_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "--data", str(data), "--configs", "1000000"]) == 2
    assert "--configs is 1000000, but a graph has only" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "segments"), [("gst", 20), ("full", 1)])
def test_a_short_training_has_a_curve_and_a_last_score(name: str, segments: int) -> None:
    """Tau after every third step until the score is reached, and after the last; times add up."""
    result = against_full.train(name, 0, epochs=1, nodes=2000)
    steps = (against_full.CONFIGS - against_full.HELD_OUT) // against_full.CONFIGS_PER_STEP
    assert len(result["curve"]) == steps / 3
    seconds, taus = zip(*result["curve"], strict=True)
    assert list(seconds) == sorted(seconds) and all(-1 <= tau <= 1 for tau in taus)
    assert 0 < result["step_ms"] / 1e3 < seconds[-1] and result["peak_mib"] > 50
    assert -(-2000 // against_full.variant(name, 2000)["max_nodes"]) == segments


def test_the_time_to_a_score_is_that_of_the_first_point_that_reaches_it() -> None:
    curve = [(1.0, 0.2), (2.0, 0.81), (3.0, 0.7), (4.0, 0.9)]
    assert [against_full._seconds_to(score, curve) for score in (0.1, 0.8, 0.9, 0.95)] == [1.0, 2.0, 4.0, None]


@pytest.mark.e2e
@pytest.mark.slow
def test_bench_against_full_end_to_end() -> None:
    seen: list[tuple[str, int, int]] = []
    result: dict[str, Any] = against_full.run(lambda *what: seen.append(what), nodes=1000, seeds=2, epochs=1)
    assert [done for _, done, _ in seen] == [0, 1, 2, 3, 4] and seen[1][0] == "full, seed 0"
    assert result["step_speedup"] == pytest.approx(result["full_ms"] / result["gst_ms"])
    assert result["setting"]["nodes"] == 1000 and result["setting"]["seeds"] == 2
    for name in ("gst", "full"):
        curves, reached = result["curves"][name], result[f"{name}_reached"]
        assert len(curves) == 2 and result[f"{name}_tau"] == pytest.approx(sum(c[-1][1] for c in curves) / 2)
        assert reached == sum(any(tau >= against_full.SCORE for _, tau in curve) for curve in curves)
        assert math.isnan(result[f"{name}_seconds"]) == (reached == 0)
        assert result[f"{name}_peak_mib"] > 50 and result[f"{name}_tau_deviation"] >= 0
    if result["gst_reached"] and result["full_reached"]:
        assert result["speedup"] == pytest.approx(result["full_seconds"] / result["gst_seconds"])
