"""The comparison of methods on giant problems: what its rows hold, and the table of those on record."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from experiments.reproductions.public_problems.giant import equal_table, in_random_order, main, summary

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.e2e
def test_rows_note_machine_load_and_command(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    arguments = ["--ours", "0.1", "--json", str(path)]
    main(["--nodes", "300", "--seconds", "0.1", "--shapes", "layers", *arguments])
    main(["--equal", "300", "--shapes", "layers,chains", "--seeds", "1", *arguments])
    main(["--nodes", "300", "--shapes", "layers", "--again", *arguments])
    result = json.loads(path.read_text())
    row = result["rows"]["layers"]
    assert row["methods"].keys() == {"baselines", "annealing", "greedy", "untrained", "ours"}
    assert "--again" in row["methods"]["ours"]["command"] and "--again" not in row["command"]
    for equal in result["equal"]["300"].values():
        assert {method.get("place") for method in equal["methods"].values()} == {None, 0, 1, 2}
        assert "--shapes layers,chains --seeds 1" in equal["command"] and equal["load"] >= 0 and equal["machine"]
    assert "300 operations, equal time" in summary(result)


def note(calls: list[str], name: str) -> float:
    calls.append(name)
    return 1.0


def test_methods_run_in_an_order_that_the_seed_decides() -> None:
    orders = set()
    for seed in range(20):
        calls: list[str] = []
        methods = {name: partial(note, calls, name) for name in ("a", "b", "c")}
        runs = in_random_order(methods, seed)
        assert list(runs) == ["a", "b", "c"] and [runs[name]["place"] for name in calls] == [0, 1, 2]
        orders.add(tuple(calls))
    assert len(orders) == 6


def test_the_table_on_record_is_whole() -> None:
    result = json.loads((ROOT / "experiments/results/giant_problems.json").read_text())
    rows = [*result["rows"].values(), *(row for rows in result["equal"].values() for row in rows.values())]
    assert all({"machine", "load", "command"} <= row.keys() for row in rows)
    assert "| all 5 |" in equal_table(result["equal"]["10000"]) and "| layers | 1.006 (7 s)" in summary(result)
