"""The best so far of several methods on one chart: a staircase each, named at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gst.reporting.charts import WIDTH, Axis, brief, drawing, escape, frame, text

HEIGHT = 372
RIGHT = WIDTH - 102  # where curves end and their names begin
TOP = 1.6  # times the least time; what is above is drawn at the upper edge, so that the ends can be told apart
COLOURS = ("c0", "c1", "c2", "c3", "c5", "ink", "c4")
GAP = 15  # between two names, in pixels


@dataclass(frozen=True)
class Curve:
    """What a method found, and when.

    Args:
        name: of the method.
        points: (plans asked, best ms so far), in order; at least one.
        asked: plans asked in all, as far as the staircase goes on.
    """

    name: str
    points: Sequence[tuple[float, float]]
    asked: float


def staircases(curves: Sequence[Curve], reference: float, reference_name: str, label: str) -> str:
    """The chart; the axis of plans asked is logarithmic, and `reference` a dashed line, if it is a number."""
    most = max(curve.asked for curve in curves)
    x = Axis(1.0, max(most, 10.0), 58, RIGHT, log=True)
    y = _heights([best for curve in curves for _, best in curve.points], reference)
    out = [frame(x, y, "plans asked", "best so far, ms")]
    if not math.isnan(reference):
        at = _at(y, reference)
        out.append(f'<path class="reference" d="M{x.start} {at}H{x.end}"/>')
        below = at + 15 if at < y.end + 26 else at - 6
        out.append(text(x.start + 6, below, f"best baseline, {reference_name}"[:40], "start", "note"))
    last = [_at(y, curve.points[-1][1]) for curve in curves]
    order = sorted(range(len(curves)), key=lambda index: last[index])
    names = apart([last[index] for index in order], GAP, y.end + 4, y.start - 2)
    for index, at in zip(order, names, strict=True):
        curve, end = curves[index], last[index]
        colour = COLOURS[index % len(COLOURS)]
        words = f"{curve.name}: {brief(curve.points[-1][1])} ms after {curve.asked:,.0f} plans"
        stairs = _stairs(curve, x, y)
        out.append(f'<path class="line {colour} d{index % 4}" d="{stairs}"><title>{escape(words)}</title></path>')
        lead = f"M{x(curve.asked)} {end}H{RIGHT + 2}L{RIGHT + 12} {at:g}"
        out.append(f'<path class="leader {colour}" d="{lead}"/>')
        out.append(text(RIGHT + 15, at + 4, curve.name[:14], "start", "note"))
    ends = "; ".join(f"{curve.name} ends at {brief(curve.points[-1][1])} ms" for curve in curves)
    return drawing(label, "".join(out), height=HEIGHT, description=ends)


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places from `low` to `high`, near those wanted (ascending), `gap` apart or as far as there is room."""
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    places: list[float] = []
    for value in wanted:
        places.append(max(value, places[-1] + gap if places else low))
    for index in reversed(range(len(places))):
        places[index] = min(places[index], places[index + 1] - gap if index + 1 < len(places) else high)
    return places


def _stairs(curve: Curve, x: Axis, y: Axis) -> str:
    (first, best), *rest = curve.points
    steps = "".join(f"H{x(asked)}V{_at(y, best)}" for asked, best in rest)
    return f"M{x(first)} {_at(y, best)}{steps}H{x(curve.asked)}"


def _heights(times: Sequence[float], reference: float) -> Axis:
    known = [time for time in (*times, reference) if not math.isnan(time)]
    return Axis.fit([min(time, TOP * min(known)) for time in known], HEIGHT - 50, 24)


def _at(y: Axis, time: float) -> float:
    return y(min(time, y.high))
