"""Commands of `make gpu` that are ended leave nothing at work, and tests say what they know at any moment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.bench.gpu import pytest_runs
from experiments.bench.gpu.process import Ended, run_session
from tests.processes import is_running

TESTS = """
import os, signal, pytest

@pytest.mark.gpu
def test_sums():
    assert 1 + 1 == 2

@pytest.mark.gpu
def test_products():
    assert 2 * 2 == 5

@pytest.mark.gpu
@pytest.mark.skip(reason="there is no GPU")
def test_differences(): pass

@pytest.mark.gpu
def test_quotients():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.gpu
def test_roots(): pass

def test_without_a_gpu(): pass
"""


def said_in_time(command: str) -> Ended:
    """What a command says that does not end; a busy machine has more time."""
    for limit_s in (0.5, 2.0, 8.0, 32.0):
        ended = run_session(["sh", "-c", command], limit_s)
        if ended.stdout:
            break
    return ended


@pytest.mark.parametrize("prefix", ["", "setsid "])
def test_nothing_goes_on_working_after_a_timeout(prefix: str) -> None:
    ended = said_in_time(f"{prefix}sleep 600 & echo $!; wait")
    assert ended.status is None and not is_running(int(ended.stdout))


def test_nothing_goes_on_working_after_its_parent() -> None:
    ended = run_session(["sh", "-c", "sleep 600 > /dev/null & echo $!; echo words >&2; exit 3"], 60.0)
    assert ended.status == 3 and ended.stderr == "words\n" and not is_running(int(ended.stdout))


def test_tests_that_are_ended_say_what_they_know(tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(TESTS)
    row = pytest_runs.gpu_tests([path], 60.0, log=tmp_path / "log.txt")
    outcomes = {name.rpartition("::")[2]: each for name, each in row["outcomes"].items()}
    assert {name: each["outcome"] for name, each in outcomes.items()} == {
        "test_sums": "passed", "test_products": "failed", "test_differences": "skipped", "test_quotients": "unfinished",
    }  # fmt: skip
    assert row["status"] == -9 and outcomes["test_products"]["reason"].startswith("assert (2 * 2) == 5")
    assert outcomes["test_differences"]["reason"] == "Skipped: there is no GPU"
    said = pytest_runs.line("tests", row["outcomes"], row["last_line"])
    assert re.search(
        r"1 failed, 1 passed, 1 skipped, 1 unfinished; failed: \S*products; unfinished: \S*quotients$", said
    )
    again = pytest_runs.gpu_tests([path], 60.0, row["outcomes"], tmp_path / "log.txt")
    assert again["status"] == 0 and [name.rpartition("::")[2] for name in again["outcomes"]] == ["test_roots"]
    assert "1 passed" in (tmp_path / "log.txt").read_text()
