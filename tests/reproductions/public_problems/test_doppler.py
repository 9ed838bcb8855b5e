"""The recorded plans of DOPPLER's graphs: never below the bound, and what the table says of them."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.reproductions.public_problems.doppler import STAGES, best_of, policy_summary, summary

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
RECORD = RESULTS / "doppler.json"


def test_recorded_plans_are_above_the_bound_and_never_behind_the_heuristic() -> None:
    record = json.loads(RECORD.read_text())
    assert len(record["rows"]) == 6 and "doppler --seconds 2 --seeds 5" in record["command"]
    for row in record["rows"].values():
        assert len(row["ours"]) == record["settings"]["seeds"]
        assert row["lower_bound"] <= min(row["ours"]) * (1 + 1e-9)
        assert all(ours <= heuristic for ours, heuristic in zip(row["ours"], row["critical_path"], strict=True))


def test_the_table_compares_medians_and_says_how_far_ours_is_above_the_bound() -> None:
    row = {
        "machine": "gpus:2", "nodes": 9, "unit": "s", "one_device": 8.0, "critical_path": [6.0, 6.0, 9.0],
        "ours": [4.0, 3.0, 3.0], "lower_bound": 2.5,
    }  # fmt: skip
    stage = {"episodes": 20, "cpu_s": 7.4, "best": 5.0, "greedy": 4.5}
    trained = {"made": {"imitation": stage, "simulation": {**stage, "episodes": 10, "best": 3.75}}}
    lines = summary({"made": row, "other": row}, trained).splitlines()
    assert lines[2] == "| made | 9 | gpus:2 | 8 | 6 | 3.75 | 3 | 2.000 [1.500, 3.000] | 2.5 | 20.0% |"
    assert lines[3] == "| other | 9 | gpus:2 | 8 | 6 | | 3 | 2.000 [1.500, 3.000] | 2.5 | 20.0% |"
    assert lines[-1].endswith("2.000")
    last = policy_summary({"made": row}, trained).splitlines()[-1]
    assert last == "| made | 20 + 10 | 15 | 4.5 | 5 | 4.5 | 3.75 | 3 | 1.250 |"


def test_the_trained_policy_is_above_the_bound_and_its_training_was_shorter_than_the_authors() -> None:
    """Its greedy plan of a stage may be shorter than all that the stage saw; no plan is shorter than the bound."""
    ours, record = json.loads(RECORD.read_text()), json.loads((RESULTS / "doppler_policy.json").read_text())
    assert record["rows"] and record["unit"] == "units of 1e10"
    for name, stages in record["rows"].items():
        row = ours["rows"][name]
        assert row["unit"] == record["unit"] and row["lower_bound"] * (1 - 1e-6) <= best_of(stages) < row["one_device"]
        for stage in STAGES:
            assert 0 < stages[stage]["episodes"] < stages[stage]["episodes_of_the_authors"]
            episodes, _, shortest, seconds = zip(*stages[stage]["curve"], strict=True)
            assert episodes[-1] == stages[stage]["episodes"] and shortest[-1] == stages[stage]["best"]
            assert list(shortest) == sorted(shortest, reverse=True) and seconds[-1] == stages[stage]["cpu_s"]
