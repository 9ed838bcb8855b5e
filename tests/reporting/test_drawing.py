"""Ticks of the charts of the report."""

from __future__ import annotations

from gst.reporting import charts


def test_ticks_are_round_and_inside() -> None:
    assert charts.Axis(0.0, 10.0, 0, 100).ticks() == [0, 2, 4, 6, 8, 10]
    log = charts.Axis.fit([1.0, 90.0], 0, 100)
    assert log.log and log.ticks() == [1, 2, 5, 10, 20, 50, 100]
