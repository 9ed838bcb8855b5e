"""Commands killed at random moments resume and end as if nothing had happened: the short form of `make chaos`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench.chaos_commands import lost, rows
from gst.execution.measure import Log

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes, each of which loads torch
def test_a_kill_of_each_command_loses_nothing(tmp_path: Path) -> None:
    result = tmp_path / "chaos.json"
    program = [sys.executable, "-m", "experiments.bench", "chaos", "--small", "--kills", "1"]
    done = subprocess.run(
        [*program, "--work", str(tmp_path / "work"), "--json", str(result)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    assert found["commands"].keys() == {"prepare", "fit", "measure", "place"}
    assert all(each["kills"] == 1 for each in found["commands"].values())
    wrong = ("failed_resumes", "lost_rows", "unreadable", "differing", "orphans")
    assert [found[key] for key in wrong] == [0] * len(wrong)


def test_rows_that_are_gone_or_changed_are_counted(tmp_path: Path) -> None:
    log = Log(tmp_path / "out" / "measurements.jsonl")
    for row in range(3):
        log.append({"row": row})
    before = rows(tmp_path)
    log.append({"row": 3})
    assert lost(before, rows(tmp_path)) == 0, "more rows are no loss"
    lines = log.path.read_text().splitlines(keepends=True)
    log.path.write_text("".join(lines[:2]) + lines[3])
    assert lost(before, rows(tmp_path)) == 1
    log.path.unlink()
    assert lost(before, rows(tmp_path)) == 3
