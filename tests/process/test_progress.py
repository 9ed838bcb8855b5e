"""Progress bars of a terminal, lines of a log."""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import pytest

from gst.process import progress
from gst.process.progress import Bars, bar


def test_one_bar_counts_through_changing_descriptions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bars() as bars:
        bars.show("first", 0, 3)
        bar = bars._bar
        bars.show("second", 2, 3)
        assert bars._bar is bar and bar.n == 2 and bar.desc == "second: "
        bars.show("another job", 0, 5)
        assert bars._bar is not bar and bars._bar.total == 5
    assert "second" in capsys.readouterr().err


def test_a_log_gets_a_line_at_the_start_at_quarters_and_every_half_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 items in 500 s: the clock of the bar and of the lines are one that the test moves."""
    now = [time.time()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Bars() as bars:
        for done in range(1001):
            bars.show("work", done, 1000)
            now[0] += 0.5
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("work:   0% (0 of 1000, ") and all(" left)" in line for line in lines)
    done = [int(line.split("(")[1].split()[0]) for line in lines]
    assert {0, 250, 500, 750, 1000} <= set(done) and len(done) <= 1 + 500 / 30 + 4
    assert max(after - before for before, after in pairwise(done)) <= 60


def test_a_log_of_quick_work_gets_a_line_for_each_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(bar(range(50), desc="quick")) == list(range(50))
    with bar(desc="uncounted", unit=" graphs") as uncounted:
        uncounted.update()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("quick:   0%") and lines[1].startswith("uncounted: 0 graphs")
    assert progress.LINE_S > 1
