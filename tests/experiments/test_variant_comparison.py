"""The comparison of variants at convergence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tqdm import tqdm

from experiments.variants import compare, data, estimates
from gst.data.synthetic import SyntheticPrograms

SMALL = data.Task(
    "synthetic", "runtime", 100, "mean", {"channels": 8, "num_layers": 1, "num_opcodes": 8, "config_symbols": 7}, 1, 1,
    8, 1e-2, steps=24, held_out=10,
)  # fmt: skip


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "STORES", tmp_path)
    monkeypatch.setattr(data.Task, "source", lambda self: SyntheticPrograms(num_nodes=400, num_configs=40))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)


@pytest.mark.parametrize("variant", ["whole graph", "GST+EFD", "GST+E, composite", "without messages"])
def test_a_training_takes_its_steps_and_is_scored_as_it_goes(variant: str) -> None:
    found = compare.train(SMALL, variant, seed=0, rate=1.0)
    steps, seconds, scores = np.array(found["curve"]).T
    assert steps.tolist() == list(range(2, 25, 2)) and (np.diff(seconds) > 0).all() and (abs(scores) <= 1).all()
    assert -1 <= found["score"] <= 1 and found["encoded"] == (0 if variant == "whole graph" else 24)


def test_parts_are_disjoint_and_controls_are_scored_on_the_test_part() -> None:
    loader, validation, test = SMALL.loaders(False, seed=3)
    parts = [set(part[0][1].tolist()) for part in (loader.selections, validation, test)]
    assert [len(part) for part in parts] == [20, 10, 10] and len(set.union(*parts)) == 40
    assert {len(each["scores"]) for each in compare.controls(SMALL, 2).values()} == {2}


def made(variant: str, seed: int, rate: float, values: list[float], score: float) -> dict[str, Any]:
    curve = [[number, 10.0 * number, value] for number, value in enumerate(values, 1)]
    return {
        "variant": variant, "seed": seed, "rate": rate, "curve": curve, "score": score, "seconds": 30.0,
        "step_ms": 1.0, "peak_mib": 500.0, "encoded": 7,
    }  # fmt: skip


def test_a_rate_is_chosen_by_validation_and_times_are_until_whole_graphs_score() -> None:
    runs = {
        "a": made("whole graph", 0, 1.0, [0.5, 0.8, 0.9], 0.7),
        "b": made("whole graph", 0, 3.0, [0.9, 0.8, 0.8], 0.99),
        "c": made("GST", 0, 1.0, [0.2, 0.3, 0.4], 0.4),
        "d": {"variant": "GST-One", "seed": 0, "rate": 1.0, "curve": [], "score": None, "peak_mib": 3000.0},
    }
    found = compare.summary(SMALL, runs)
    rows = found["variants"]
    assert rows["whole graph"]["rate"] == 1.0 and rows["whole graph"]["scores"] == [0.7]
    assert found["goal"] == pytest.approx(0.99 * 0.9) and rows["whole graph"]["seconds_to_goal"] == 30.0
    assert rows["GST"]["seconds_to_goal"] is None and rows["GST-One"]["score_mean"] is None
    assert rows["GST"]["ahead_mean"] == pytest.approx(0.4 - 0.7)


def test_a_comparison_does_not_go_on_with_other_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RESULTS", tmp_path)
    monkeypatch.setattr(compare, "TASKS", {"small": SMALL})
    monkeypatch.setattr(sys, "argv", ["compare", "--tasks", "small", "--variants", ""])
    (tmp_path / "convergence_small.json").write_text('{"runs": {}, "graphs": "0123"}')
    with pytest.raises(SystemExit, match="other graphs"):
        compare.main()


def test_estimates_are_compared_with_the_exact_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "TRAINED", 40)
    monkeypatch.setattr(estimates, "STEPS", 10)
    ways = {"all fresh": {"num_fresh": 99}, "difference": {}, "p = 0": {"keep_probability": 0.0}}
    errors = estimates.errors(SMALL, 0, ways, tqdm(disable=True))
    assert errors["all fresh"] < 1e-6 < errors["difference"] < errors["p = 0"] < 2
