"""Cost graphs with devices of their own: placed within their memories, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.reproductions.public_problems.__main__ import main
from gst.lowering.plan import Plan


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """A chain of six operators, thrice as fast on the one accelerator, whose memory holds four of them."""
    record = {
        "devices": [{"name": "cpu:0"}, {"name": "gpu:0", "memory_limit": 400}], "times_us": [[30] * 6, [10] * 6],
        "edges": [[n, n + 1] for n in range(5)], "output_bytes": [0] * 6, "resident_bytes": [100] * 6,
        "latency_us": 5, "bytes_per_us": 1000,
    }  # fmt: skip
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(record))
    return path


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    capsys.readouterr()
    assert main(["place", *arguments]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error: " in last and all(word in last for word in words), last


def test_a_cost_graph_is_placed_within_its_memory(graph_file: Path) -> None:
    arguments = ["place", str(graph_file), "--evaluations", "60", "--proof", "0", "--out", "out"]
    assert main([*arguments, "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    # Four on the accelerator at one end, one value on the way: 4 * 10 + 5 + 2 * 30 us.
    assert result["objective"] == pytest.approx(0.105) and result["lower_bound"] <= 0.105
    assert (Plan.load(Path("out/plan.json")).placement == 1).sum() == 4
    assert result["certificate"]["limit_bytes"] == {"cpu:0": None, "gpu:0": 400}


def test_damaged_cost_graphs_are_refused_in_one_line(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = json.loads(graph_file.read_text())
    for key, value, what in (
        ("edges", [[1, 0]], "greater numbers"), ("edges", [[0, 6]], "below 6"), ("edges", [[0, 1, 2]], "edges"),
        ("edges", [[-1, 2]], "edges"), ("times_us", [[1] * 6, [-1] * 6], "times_us"), ("output_bytes", [0], "output_"),
        ("times_us", [[1] * 6, [1] * 5], "times_us"), ("devices", [], "devices"), ("devices", [7, 8], "device is 7"),
        ("latency_us", None, "latency_us"), ("bytes_per_us", "x", "bytes_per_us"), ("colocation", ["a"] * 6, "coloc"),
        ("output_bytes", [1e99] * 6, "output_bytes"), ("devices", [{"name": "a"}] * 2, "devices"), ("devices", 7, "7"),
        ("bytes_per_us", 0, "bytes_per_us"), ("devices", [{"name": "a"}, {"name": "b", "memory_limit": "1"}], "bytes"),
    ):  # fmt: skip
        graph_file.write_text(json.dumps(good | {key: value}))
        refused(capsys, [str(graph_file)], str(graph_file), what)
    for key in ("devices", "times_us", "edges", "output_bytes", "latency_us", "bytes_per_us"):
        graph_file.write_text(json.dumps({name: value for name, value in good.items() if name != key}))
        refused(capsys, [str(graph_file)], f"'{key}' is missing")
    graph_file.write_text(json.dumps(good | {"times_us": [[None] * 6, [1] * 6]}))
    refused(capsys, [str(graph_file)], "fits")
