"""The comparison of variants in equal processor time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from experiments.variants import compare, data


@pytest.mark.parametrize("variant", ["GST+EFD", "GST+E, composite", "whole graph"])
def test_a_training_ends_with_its_time_and_a_score(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "STORES", tmp_path)
    started = time.process_time()
    found = compare.train(data.TASKS["tile"], variant, seed=0, seconds=0.5)
    assert time.process_time() - started > 0.5
    assert found["steps"] > 2 and -1 <= found["score"] <= 1


def test_a_finished_training_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RUNS", tmp_path)
    (tmp_path / "tile GST 0 10.json").write_text(json.dumps({"score": 0.25}))
    assert compare.run("tile", "GST", 0, 10.0) == {"score": 0.25}


def test_differences_are_taken_seed_by_seed() -> None:
    runs = [{"score": score, "steps": 1, "step_ms": 1.0, "peak_mib": 1.0} for score in (0.5, 0.9)]
    baseline = [{"score": 0.25}, {"score": 1.0}]
    assert compare.row(runs, baseline)["over_baseline"] == pytest.approx([0.25, -0.1])
