"""The benchmarks of several processes and of checkpoints, small: what they report fits together."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from experiments.bench import checkpoint, distributed
from experiments.bench.__main__ import main


@pytest.mark.e2e
@pytest.mark.slow
def test_two_processes_beside_one() -> None:
    result = distributed.run(processes=2, steps=2, rounds=1, nodes=2_500)
    rates = result["graphs_per_second"]
    assert result["speedup"] == pytest.approx(rates["2"] / rates["1"]) and result["efficiency"] == result["speedup"] / 2
    assert 0 < result["plan_ms"] < result["table_ms"] < result["step_ms"]
    assert 0 < result["table_share"] < 1
    planning = list(result["planning_ms"].values())
    assert len(planning) == len(distributed.PLANNED_FOR) and min(planning) > 0
    assert 0 < result["apart"] < math.inf
    row, segments = 4 * distributed.CHANNELS, 3  # of a graph of 2,500 nodes, at most 1,000 in a segment
    most = distributed.GRAPHS_PER_STEP * segments * distributed.CONFIGS_PER_STEP * (row + 8)
    assert 0 < result["pull_bytes"] <= most and 0 < result["push_bytes"] <= most


def test_a_checkpoint_beside_a_copy(tmp_path: Path) -> None:
    assert main(["checkpoint", "--size", "4MiB", "--out", str(tmp_path), "--json", str(tmp_path / "a.json")]) == 0
    result = json.loads((tmp_path / "a.json").read_text())
    assert 4 < result["file_mib"] < 5 and result["setting"]["channels"] == checkpoint.CHANNELS
    assert 0 < result["pause_s"] <= result["save_s"] and result["restore_ratio"] > 0
    ratios = [copy / save for copy, save in zip(result["turns"]["copy"], result["turns"]["save"], strict=True)]
    assert len(ratios) == 7 and result["save_ratio"] == sorted(ratios)[3]
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
