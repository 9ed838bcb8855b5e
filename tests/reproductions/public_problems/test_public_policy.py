"""The table of the constructive policy and its controls: its run, its settings and its results."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from experiments.reproductions.public_problems.policy import main, summary

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests/fixtures/public_graphs"


def test_open_problems_are_placed_by_every_method_for_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "placement.tar.xz", "w:xz") as archive:
        archive.add(FIXTURES / "pipedream.txt", "./pipedream/pipedream.txt")
        archive.add(FIXTURES / "doppler.txt", "./doppler/doppler.txt")
    row = {"best_baseline": "heft", "plans": {"heft": 2.0}, "lower_bound": 1.0}
    closed = row | {"lower_bound": 1.99}
    rows = {"pipedream/pipedream": row, "doppler/doppler": closed}
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    out = tmp_path / "result.json"
    arguments = ["--data", str(tmp_path), "--problems", str(tmp_path / "rows.json"), "--json", str(out)]
    arguments += ["--seconds", "0.05", "--seeds", "2"]
    main(arguments)
    result = json.loads(out.read_text())
    assert set(result["rows"]) == {"pipedream/pipedream"}, "a problem that its bound closes is left out"
    makespans = result["rows"]["pipedream/pipedream"]["makespans"]
    names = {f"{policy} {what}" for policy in ("trained", "untrained", "rule", "uniform")
             for what in ("greedy", "best", "annealed", "samples")}  # fmt: skip
    assert set(makespans) == names | {"annealing"} and all(len(values) == 2 for values in makespans.values())
    assert all(a <= b for a, b in zip(makespans["trained best"], makespans["trained greedy"], strict=True))
    with pytest.raises(SystemExit, match="has other settings"):
        main([*arguments, "--seeds", "3"])
    assert "| all | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["public_policy", "public_policy_giant"])
def test_no_recorded_makespan_is_below_its_bound(name: str) -> None:
    rows = json.loads((ROOT / f"experiments/results/{name}.json").read_text())["rows"]
    for key, row in rows.items():
        for method, values in row["makespans"].items():
            if not method.endswith("samples"):
                assert all(value is None or value >= row["lower_bound"] * (1 - 1e-6) for value in values), key
    assert "| all |" in summary(rows)
