from __future__ import annotations

import sys

import pytest

from gst.util import progress
from gst.util.progress import Bars, LogLines


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr(LogLines, "_printed", now)
    for epoch in range(27):
        with Bars() as bars:
            now += 1.0
            for step in range(1, 11):
                now += 0.2
                bars.show(f"epoch {epoch}", step, 10)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and not any("| 0/10" in line for line in lines)


def test_work_of_one_item_is_named_in_a_log_when_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        for what in ("compiling, which takes minutes", "compiling, which takes minutes", "measuring"):
            bars.show(what, 0, 1)
            first = bars._bar
        assert capsys.readouterr().err.splitlines() == ["gst: compiling, which takes minutes", "gst: measuring"]
        bars.show("measuring plans", 8, 40)
        assert bars._bar is not first and bars._bar.initial == 8 and "it/s" not in str(bars._bar)


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
