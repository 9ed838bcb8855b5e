"""The table of all published problems: what it takes from the archive, and what its results hold."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from experiments.reproductions.public_problems.all_problems import machine_of, main, summary
from experiments.reproductions.public_problems.proofs import SOLVERS

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests/fixtures/public_graphs"


def test_problems_of_an_archive_are_placed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "placement/latency_layer_graphs").mkdir(parents=True)
    (tmp_path / "placement/latency_layer_graphs/msr.json").write_bytes((FIXTURES / "msr.json").read_bytes())
    with tarfile.open(tmp_path / "placement.tar.xz", "w:xz") as archive:
        archive.add(FIXTURES / "doppler.txt", "./doppler/doppler.txt")
        archive.add(FIXTURES / "pipedream.txt", "../../outside.txt")
        archive.add(FIXTURES / "workflow.json", "./wfinstances/pegasus/made/workflow.json")
        archive.add(FIXTURES / "README.md", "./README.md")
    out = tmp_path / "result.json"
    arguments = ["--data", str(tmp_path), "--seconds", "0.05", "--proof", "0", "--json", str(out)]
    main(arguments)
    result = json.loads(out.read_text())
    machines = {key: row["machine"] for key, row in result["rows"].items()}
    assert {key.split("/")[-1]: machine for key, machine in machines.items()} == {
        "msr": "gpus:4", "doppler": "gpus:4", "outside": "gpus:4", "workflow": "cores:4"
    }  # fmt: skip
    assert "pegasus made/workflow" in machines and not list(tmp_path.parent.parent.glob("outside*"))
    before = out.read_bytes()
    main(arguments)
    assert out.read_bytes() == before, "what is there is not worked out again"
    with pytest.raises(SystemExit, match="has other settings"):
        main([*arguments, "--seconds", "0.07"])
    assert "| all | 4 |" in capsys.readouterr().out


def test_machines_follow_from_the_problem() -> None:
    assert machine_of("doppler", "8gpu_full_transformer") == "gpus:8"
    assert machine_of("moirai", "example-1") == "gpus:3" and machine_of("nextflow", "mag") == "cores:4"


def test_no_recorded_plan_is_below_its_bound_or_behind_its_baselines() -> None:
    result = json.loads((ROOT / "experiments/results/public_graphs_all.json").read_text())
    rows = result["rows"]
    assert len(rows) == 169 and len(summary(rows).splitlines()) == 2 + 16 + 1
    for key, row in rows.items():
        assert row["ours"] >= row["lower_bound"] * (1 - 1e-9), key
        assert all(
            time is None or time >= row["ours"] for name, time in row["plans"].items() if name not in SOLVERS.values()
        ), key
