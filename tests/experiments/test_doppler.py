"""The recorded plans of DOPPLER's graphs: never below the bound, and what the table says of them."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.reproductions.doppler import summary

RECORD = Path(__file__).parents[2] / "experiments" / "results" / "doppler.json"


def test_recorded_plans_are_above_the_bound_and_never_behind_the_heuristic() -> None:
    record = json.loads(RECORD.read_text())
    assert len(record["rows"]) == 6 and record["command"].startswith("python -m experiments.reproductions.doppler")
    for row in record["rows"].values():
        assert len(row["ours"]) == record["settings"]["seeds"]
        assert row["lower_bound"] <= min(row["ours"]) * (1 + 1e-9)
        assert all(ours <= heuristic for ours, heuristic in zip(row["ours"], row["critical_path"], strict=True))


def test_the_table_compares_medians_and_says_how_far_ours_is_above_the_bound() -> None:
    row = {
        "machine": "gpus:2", "nodes": 9, "unit": "s", "one_device": 8.0, "critical_path": [6.0, 6.0, 9.0],
        "ours": [4.0, 3.0, 3.0], "lower_bound": 2.5,
    }  # fmt: skip
    lines = summary({"made": row}).splitlines()
    assert lines[2] == "| made | 9 | gpus:2 | 8 | 6 | 3 | 2.000 [1.500, 3.000] | 2.5 | 20.0% |"
    assert lines[-1].endswith("2.000")
