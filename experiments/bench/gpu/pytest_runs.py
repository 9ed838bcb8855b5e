"""Tests marked gpu, most important files first: in the time that they may take, the outcome of each test that began.

This module is also the plugin of pytest that writes each outcome to a file at once, so that all is kept if pytest is
killed:

    python -m pytest -p experiments.bench.gpu.pytest_runs --outcomes FILE --leave-out FILE TEST_FILES...

In: a JSON list of tests that are left out. Out: a line of JSON when a test begins, and one with its outcome.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from experiments.bench.gpu.process import run_session

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
FIRST = (
    "kernels_on_gpu", "recording", "event_times", "lanes", "lane_graphs", "host_waits", "recorded_step", "table_laws",
)  # fmt: skip
"""Files on which all else rests."""
PROCESSES = 8  # of tests, which share the accelerator
LAST = ("graph_executor",)
"""A file whose tests compile."""
BEGUN = "begun"

Outcome = dict[str, Any]


def files_of_tests(folder: Path = ROOT / "tests") -> tuple[list[Path], list[Path]]:
    """Return files with tests marked gpu: those of `FIRST`, and all others, both in the order in which they run."""
    files = {path.stem.removeprefix("test_"): path for path in sorted(folder.rglob("test_*.py"))
             if "mark.gpu" in path.read_text()}  # fmt: skip
    first = [files[name] for name in FIRST if name in files]
    rest = [path for name, path in files.items() if name not in (*FIRST, *LAST)]
    return first, [*rest, *(files[name] for name in LAST if name in files)]


def gpu_tests(
    files: Sequence[Path], limit_s: float, left_out: Iterable[str] = (), log: Path | None = None
) -> dict[str, Any]:
    """Run the tests marked gpu of some files. A file that needs a missing package fails by name, and the others go on.

    Args:
        files: in the order in which they run.
        limit_s: seconds, after which they are ended.
        left_out: ids of tests.
        log: where to write the output of pytest, with the tracebacks of what failed.

    Returns:
        status: exit status of pytest, None if the time was over; last_line, that pytest wrote; outcomes: for each test
        that began, by its id, its `outcome` (passed, failed, skipped, unfinished), with `seconds` and the `reason`.
    """
    with tempfile.TemporaryDirectory() as folder:
        outcomes, out = Path(folder) / "outcomes.jsonl", Path(folder) / "left_out.json"
        out.write_text(json.dumps(list(left_out)))
        ended = run_session(
            [
                sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rfE",
                "--continue-on-collection-errors", "-p", "experiments.bench.gpu.pytest_runs",
                "--outcomes", str(outcomes), "--leave-out", str(out), *_in_parallel(), *map(str, files),
            ],
            limit_s, ROOT,
        )  # fmt: skip
        lines = outcomes.read_text().splitlines() if outcomes.exists() else []
    words = (ended.stdout.strip() or ended.stderr.strip() or "no words").splitlines()
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(ended.stdout + ended.stderr)
    last_line = words[-1] if ended.status is not None else f"no end within {limit_s:g} s"
    return {"status": ended.status, "last_line": last_line, "outcomes": parsed(lines)}


def _in_parallel() -> list[str]:
    """Return options of pytest-xdist where it and an accelerator are here: no test of correctness needs quiet."""
    if find_spec("xdist") is None or not torch.accelerator.is_available():
        return []
    return ["-n", str(min(PROCESSES, max((os.cpu_count() or 1) // 2, 1))), "--dist", "worksteal"]


def parsed(lines: Iterable[str]) -> dict[str, Outcome]:
    """Return the last that is known of each test.

    Examples:
        >>> parsed(['{"test": "a", "outcome": "begun"}', '{"test": "a", "outcome": "passed", "seconds": 1.0}'])
        {'a': {'outcome': 'passed', 'seconds': 1.0}}
        >>> parsed(['{"test": "a", "outcome": "begun"}', '{"test": "a", "outco'])
        {'a': {'outcome': 'unfinished'}}
    """
    outcomes: dict[str, Outcome] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # it was ended while it wrote
            continue
        name = record.pop("test")
        outcomes[name] = {"outcome": "unfinished"} if record["outcome"] == BEGUN else record
    return outcomes


def line(name: str, outcomes: Mapping[str, Outcome], last_line: str) -> str:
    """Return the printed summary of tests: the number that passed, and the names of the others.

    Examples:
        >>> line("tests", {"a": {"outcome": "passed"}, "b": {"outcome": "failed"}}, "1 failed, 1 passed in 2 s")
        'tests            1 failed, 1 passed in 2 s; 1 failed, 1 passed; failed: b'
    """
    counts = Counter(each["outcome"] for each in outcomes.values())
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "none ran"
    for outcome in ("failed", "unfinished"):
        if names := [test for test, each in outcomes.items() if each["outcome"] == outcome]:
            summary += f"; {outcome}: {', '.join(names)}"
    return f"{name:<16} {last_line}; {summary}"


# The plugin ----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, required=True, help="file to which lines of JSON are added")
    parser.addoption("--leave-out", type=Path, help="JSON list of tests, by their ids")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(config.option.outcomes))


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
    """Return why a test failed or was skipped, in a line; empty if it passed."""
    why: Any = report.longrepr
    if isinstance(why, tuple):  # file, line and words of a skip
        why = why[2]
    words = str(getattr(getattr(why, "reprcrash", None), "message", "") or why or "").strip().splitlines()
    return next((each for each in reversed(words) if "Error" in each), words[0])[:300] if words else ""
