"""Plugin of pytest that writes what becomes of each test to a file at once, so that all is kept if pytest is killed.

    python -m pytest -p experiments.bench.gpu.outcomes --outcomes FILE --leave-out FILE TEST_FILES...

In: a JSON list of tests that are left out. Out: a line of JSON when a test begins, and one with its outcome.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BEGUN = "begun"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, required=True, help="file to which lines of JSON are added")
    parser.addoption("--leave-out", type=Path, help="JSON list of tests, by their ids")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(config.option.outcomes))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.leave_out is not None:
        out = set(json.loads(config.option.leave_out.read_text()))
        items[:] = [item for item in items if item.nodeid not in out]


class Outcomes:
    """Writes a line for each event.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, BEGUN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, report.outcome, seconds=round(report.duration, 3), reason=_reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, report.outcome, reason=_reason(report))

    def _write(self, test: str, outcome: str, **more: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, **more}) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test failed or was skipped, in a line; empty if it passed."""
    why: Any = report.longrepr
    if isinstance(why, tuple):  # file, line and words of a skip
        why = why[2]
    words = str(getattr(getattr(why, "reprcrash", None), "message", "") or why or "").strip().splitlines()
    return next((each for each in reversed(words) if "Error" in each), words[0])[:300] if words else ""
