"""Times of compiled groups on programs never seen: what is collected, and how predictions are scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.groups import collect as collecting
from experiments.reproductions.groups import compare as comparing
from experiments.reproductions.groups.compare import Rows, rows_of, scores
from gst.execution.measure import Log
from gst.machine.devices import discover, select
from gst.util.compiled import compiler
from tests.files import FIXTURES

SAMPLES = FIXTURES / "graphnet"


def made(programs: int = 4, groups: int = 6) -> Rows:
    count = programs * groups
    compiled = np.random.default_rng(0).permutation(count).astype(np.float64)
    program, zeros = np.repeat([f"p{number}" for number in range(programs)], groups), np.zeros(count)
    return Rows(program, np.arange(count), np.ones(count), compiled, zeros, zeros, np.zeros((count, 2)), [])


def test_a_right_order_has_a_tau_of_one_and_a_factor_is_an_error() -> None:
    rows = made()
    right = scores(rows, [rows.compiled + np.log(1.25)])
    assert right["tau"] == [1, 1, 1] and right["tau_together"] == 1 and right["error"] == 0.25
    assert scores(rows, [-rows.compiled])["tau"] == [-1, -1, -1]
    assert scores(rows, [rows.compiled, -rows.compiled])["tau_together"] == 0, "means over seeds"


@pytest.mark.e2e
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_groups_are_compiled_once_and_become_rows_and_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "COUNTS", (2,))
    monkeypatch.setattr(collecting, "EACH", 1)
    log, devices = Log(tmp_path / "groups.jsonl"), select(["cpu:0"], discover())
    collecting.collect(SAMPLES, [], devices, log)
    lines = log.read()
    collecting.collect(SAMPLES, [], devices, log)
    assert log.read() == lines, "a stopped run goes on"
    rows = rows_of(SAMPLES, lines)
    assert len(rows.compiled) == sum(not group["reason"] for line in lines for group in line["groups"]) > 0
    assert np.isfinite(rows.columns).all() and np.isfinite(rows.peak).all()
    for graph in rows.graphs:
        assert graph.num_configs == 2 and graph.node_features[:, -1].sum() == len(graph.config_nodes) > 1


def test_every_method_sees_the_other_programs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, seen = made(), []

    def spy(rest: Rows, asked: Rows, seed: int) -> np.ndarray:
        seen.append(set(rest.program) & set(asked.program))
        return asked.compiled

    monkeypatch.setattr(comparing, "METHODS", {"spy": spy})
    monkeypatch.setattr(comparing, "rows_of", lambda data, lines: rows)
    result = comparing.compare(Path(), [{"machine": {}}], seeds=2)
    assert result["methods"]["spy"]["tau"][0] == 1 and seen == [set()] * 8
    assert (result["programs"], result["rows"]) == (4, 24)
