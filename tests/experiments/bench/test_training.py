"""Benchmarks of training and scoring: each runs in its smallest setting, and obeys the law of what it computes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.bench import against_full, checkpoint, distributed, score, step, step_calls, table
from experiments.bench.published import layout_program
from tests.experiments.bench.ran import ran

TINY = {"batch_graphs": 1, "configs": 4, "layers": 1, "channels": 8, "max_nodes": 200, "steps": 2}


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


def test_variants_of_a_step_learn_alike(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, draws and configurations: in fp32 the losses are equal, in bf16 their mean is near. Arithmetic
    is saved where states are shared."""
    monkeypatch.setattr(step, "_matmul_gflops", lambda dtype: 1.0)
    monkeypatch.setattr(step, "WARM_UP", 1)
    setting = {"data": str(data), **TINY, "steps": 4, "batch_graphs": 2, "configs": 12}
    plain, shared, short = (step.measure(variant, setting, variant == "shared bf16") for variant in step.VARIANTS)
    assert len(plain["losses"]) == 4 and plain["losses"] == pytest.approx(shared["losses"], abs=1e-5)
    assert np.mean(short["losses"]) == pytest.approx(np.mean(plain["losses"]), abs=0.05)
    assert shared["gflop"] < 0.9 * plain["gflop"] and short["gflop"] == pytest.approx(shared["gflop"])
    assert 0 <= short["tau_difference_bf16"] < 0.3 and 0 <= short["stall"] < 1


@pytest.mark.e2e
@pytest.mark.parametrize("slowdown", [0.5, 50.0])
def test_step(slowdown: float, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bf16 is slow that variant is left out, and the output says why."""
    monkeypatch.setattr(step, "bf16_slowdown", lambda: slowdown)
    options = [text for name, value in TINY.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    result = ran(tmp_path, "step", "--data", data, *options)
    names = list(step.VARIANTS)[: 3 if slowdown < 1 else 2]
    variants, last = result["variants"], result["variants"][names[-1]]
    assert list(variants) == names and all(len(each["losses"]) == 2 for each in variants.values())
    assert len(result["not_measured"]) == 3 - len(names)
    assert result["speedup"] == pytest.approx(variants["unshared fp32"]["step_ms"] / last["step_ms"])
    assert result["setting"] == {"data": str(data), **TINY} and 50 < result["peak_mib"] < 4000


@pytest.mark.parametrize("name", ["gst", "full"])
def test_a_short_training_has_a_curve_and_a_last_score(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tau after every seventh step until the score is reached, and after the last; times add up."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    result = against_full.train(name, 0, epochs=1, nodes=2000)
    steps = (against_full.CONFIGS - against_full.HELD_OUT) // against_full.CONFIGS_PER_STEP
    seconds, taus = zip(*result["curve"], strict=True)
    assert len(taus) == steps // 7 and list(seconds) == sorted(seconds) and all(-1 <= tau <= 1 for tau in taus)
    assert 0 < result["step_ms"] / 1e3 < seconds[-1] and result["peak_mib"] > 50


@pytest.mark.e2e
def test_step_against_full() -> None:
    result = against_full.run(nodes=1000, seeds=2, epochs=1)
    assert result["step_speedup"] == pytest.approx(result["full_ms"] / result["gst_ms"])
    for name in ("gst", "full"):
        curves, reached = result["curves"][name], result[f"{name}_reached"]
        assert len(curves) == 2 and result[f"{name}_tau"] == pytest.approx(sum(c[-1][1] for c in curves) / 2)
        assert math.isnan(result[f"{name}_seconds"]) == (reached == 0)


@pytest.mark.e2e
@pytest.mark.parametrize("slowdown", [0.5, 50.0])
def test_score(slowdown: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "bf16_slowdown", lambda: slowdown)
    result = ran(tmp_path, "score", "--nodes", 2400, "--configurable", 100, "--configs", 40)
    assert result["configs_per_second"] == pytest.approx(40 / result["seconds"]) and 50 < result["peak_mib"] < 4000
    if slowdown < 1:
        assert 0 < result["bf16_difference"] < 2e-3 and 0.8 < result["bf16_tau"] < 1
    else:
        assert list(result["variants"]) == ["fp32"] and len(result["not_measured"]) == 1


@pytest.mark.e2e
def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer repetitions of smaller pulls: every tier and dtype is measured."""
    monkeypatch.setattr(table, "SMALL", 3)
    monkeypatch.setattr(table, "LARGE", 2)
    monkeypatch.setattr(table, "TABLE_BYTES", 4 << 20)
    monkeypatch.setattr(table, "SHAPES", ((2048, 1 << 10), (100, 1 << 12)))
    result = ran(tmp_path, "table")
    assert result["pull_over_copy"] == pytest.approx(result["pull_gb_s"] / result["copy_gb_s"])
    assert set(result["tiers"]) == {"device", "pinned", "disk"} and result["pull_ms_9216x1"] > 0
    for by_dtype in result["tiers"].values():
        assert set(by_dtype) == {"float32", "bfloat16", "float16"}
        assert all(time > 0 for times in by_dtype.values() for time in times.values())


@pytest.mark.e2e
def test_distributed(tmp_path: Path) -> None:
    result = ran(tmp_path, "distributed", "--processes", 2, "--steps", 2, "--rounds", 1, "--nodes", 2500)
    rates = result["graphs_per_second"]
    assert result["speedup"] == pytest.approx(rates["2"] / rates["1"]) and result["efficiency"] == result["speedup"] / 2
    assert 0 < result["plan_ms"] < result["table_ms"] < result["step_ms"] and 0 < result["table_share"] < 1
    planning = list(result["planning_ms"].values())
    assert len(planning) == len(distributed.PLANNED_FOR) and min(planning) > 0
    row, segments = 4 * distributed.CHANNELS, 3  # of a graph of 2,500 nodes, at most 1,000 in a segment
    most = distributed.GRAPHS_PER_STEP * segments * distributed.CONFIGS_PER_STEP * (row + 8)
    assert 0 < result["pull_bytes"] <= most and 0 < result["push_bytes"] <= most


def test_checkpoint(tmp_path: Path) -> None:
    result = ran(tmp_path, "checkpoint", "--size", "4MiB", "--out", tmp_path, "--repetitions", 3)
    assert 4 < result["file_mib"] < 5 and result["setting"]["channels"] == checkpoint.CHANNELS
    assert 0 < result["pause_s"] <= result["save_s"] and result["restore_ratio"] > 0
    ratios = [copy / save for copy, save in zip(result["turns"]["copy"], result["turns"]["save"], strict=True)]
    assert len(ratios) == 3 and result["save_ratio"] == sorted(ratios)[1]
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.e2e
@pytest.mark.skipif(torch.cuda.is_available(), reason="calls of a described device are not counted beside a real one")
def test_a_padded_step_is_one_graph_two_copies_and_no_wait(tmp_path: Path) -> None:
    cases = ran(tmp_path, "step_calls")["cases"]
    assert set(cases) == set(step_calls.CASES)
    for name, case in cases.items():
        parts = [each for part, each in case.items() if part != "places_of_waits"]
        copies, waits, operators = (sum(each[key] for each in parts) for key in ("copies", "waits", "operators"))
        assert waits == name.endswith("on the device"), "for the number of rows"
        if name.endswith("padded"):
            assert case["recorded"]["copies"] == 0 and 300 < case["recorded"]["operators"] == operators < 600
            assert copies == 2, "one comes back"
        else:
            assert copies < 10 if name.endswith("on the device") else copies > 30
