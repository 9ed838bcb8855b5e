"""Charts as inline SVG: axes, marks, lines.

Colours are classes (`c0` ... `c6`, the Okabe-Ito palette of `report.css`), so that one drawing serves light pages, dark
pages and paper. Text from outside goes through `escape`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WIDTH, HEIGHT = 440, 320
"""Small enough that 13-pixel text is still readable when a phone shrinks the drawing to 330 pixels."""

SHAPES = {
    "baseline": "M-4-4h8v8h-8z",
    "method": "M-4.6 0a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0-9.2 0z",
    "mutation": "M0-5.5L5.2 4h-10.4z",
}
NUM_COLOURS = 7
DASH = "\u2013"

MOST_MARKED = 40  # epochs; lines of more have no marks
EPOCH_COLOURS = ("c0", "c5", "c2", "c3")

Course = tuple[str, Sequence[tuple[float, float]]]
"""Name of a line, and its points (epochs finished, value) in order."""


def escape(value: Any, limit: int = 400) -> str:
    """Return text that is safe between tags and inside quotes, cut at `limit` characters."""
    text = str(value).encode("utf-8", "replace").decode().replace("\0", "")
    return html.escape(text if len(text) <= limit else text[: limit - 1] + "\u2026")


def number(value: Any) -> float:
    """Return the value as a finite float, else NaN (None, infinities, words)."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return result if math.isfinite(result) else math.nan


def brief(value: Any, missing: str = DASH) -> str:
    """Return about three digits of a value: 0.0123, 4.56, 41.2, 1,234."""
    value = number(value)
    if math.isnan(value):
        return missing
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def whole(value: Any) -> str:
    value = number(value)
    return DASH if math.isnan(value) else f"{value:,.0f}"


def span(low: Any, high: Any) -> str:
    """Return an interval; a dash alone if either end is unknown."""
    ends = number(low), number(high)
    return DASH if any(map(math.isnan, ends)) else f"{brief(low)}{DASH}{brief(high)}"


@dataclass(frozen=True)
class Axis:
    """Map from an interval of numbers to an interval of pixels (`start` may lie right of or below `end`).

    An axis of a count has ticks at whole numbers only.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    is_count: bool = False

    @classmethod
    def fit(cls, values: Iterable[float], start: float, end: float, *, zero: bool = False) -> Axis:
        """Return an axis with space for all finite values; logarithmic, unless `zero`, if they span over 20-fold."""
        finite = [value for value in values if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        if zero:
            return cls(min(low, 0.0), high * 1.06 if high > 0 else 1.0, start, end)
        if low > 0 and high / low > 20:
            return cls(low / 1.15, high * 1.15, start, end, log=True)
        pad = 0.07 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(max(0.0, low - pad) if low >= 0 else low - pad, high + pad, start, end)

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if self.high < 300 * self.low else (1,)
            marks = [step * 10.0**decade for decade in decades for step in steps]
        else:
            rough = (self.high - self.low) / 5
            power = 10.0 ** math.floor(math.log10(rough))
            step = power * next(nice for nice in (1, 2, 5, 10) if nice * power >= rough * 0.999)
            step = max(step, 1.0) if self.is_count else step
            marks = [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [mark for mark in marks if self.low <= mark <= self.high]


def drawing(
    label: str, body: str, width: float = WIDTH, height: float = HEIGHT, style: str = "", description: str = ""
) -> str:
    """Return a complete figure with a name and a description."""
    name = escape(label)
    return (
        f'<svg class="chart" role="img" aria-label="{name}" viewBox="0 0 {width:g} {height:g}" '
        f'style="{style}"><title>{name}</title><desc>{escape(description or label, 1000)}</desc>{body}</svg>'
    )


def text(x: float, y: float, words: Any, anchor: str = "middle", css: str = "label", size: float = 13) -> str:
    where = f'x="{x:.5g}" y="{y:.5g}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text class="{css}" {where}>{escape(words)}</text>'


def mark(kind: str, x: float, y: float, title: str = "") -> str:
    """Return the mark of a kind of plan, a key of `SHAPES`: a colour and a shape, so that either is enough."""
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<path class="mark {kind}" transform="translate({x:g} {y:g})" d="{SHAPES[kind]}">{inside}</path>'


def frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    """Return grid lines, numbers on both axes, and their labels."""
    out = []
    for tick in x.ticks():
        at = x(tick)
        out.append(f'<path class="grid" d="M{at} {y.start}V{y.end}"/>')
        out.append(text(at, y.start + 18, f"{tick:,.6g}", css="tick"))
    for tick in y.ticks():
        at = y(tick)
        out.append(f'<path class="grid" d="M{x.start} {at}H{x.end}"/>')
        out.append(text(x.start - 7, at + 4, f"{tick:,.6g}", "end", "tick"))
    middle = (y.start + y.end) / 2
    out.append(f'<path class="axis" d="M{x.start} {y.end}V{y.start}H{x.end}"/>')
    out.append(text((x.start + x.end) / 2, y.start + 40, x_label))
    out.append(f'<g transform="translate(13 {middle:g}) rotate(-90)">{text(0, 0, y_label)}</g>')
    return "".join(out)


def compared(
    predicted: Floats, measured: Floats, x_label: str, y_label: str, label: str, marks: Sequence[tuple[str, str]] = ()
) -> str:
    """Draw points on two equal axes with the diagonal where x = y: thousands, or few with `marks` (kind, title)."""
    values = [*predicted.tolist(), *measured.tolist()]
    x, y = Axis.fit(values, 62, WIDTH - 14), Axis.fit(values, HEIGHT - 50, 12)
    places = [(x(a), y(b)) for a, b in zip(predicted.tolist(), measured.tolist(), strict=True)]
    path = "".join(f"M{across} {up}h.01" for across, up in places)
    cloud = f'<path class="cloud c0{" many" * (len(places) > 300)}" d="{path}"/>'
    dots = "".join(mark(kind, *place, title) for place, (kind, title) in zip(places, marks, strict=False)) or cloud
    diagonal = f'<path class="reference" d="M{x.start} {y.start}L{x.end} {y.end}"/>'
    seen = (
        f"Half of the {len(places):,} points are within {brief(np.median(abs(predicted - measured)))} of the diagonal."
    )
    return drawing(label, frame(x, y, x_label, y_label) + dots + diagonal, description=seen)


def intervals(
    rows: Sequence[tuple[str, float, float, float, str]], reference: float, label: str, unit: str = "ms of one step"
) -> str:
    """Draw rows (name, low, middle, high, kind of "best" or "pytorch" or ""), one below the other, on one axis."""
    bottom = 12 + 26 * len(rows)
    x = Axis.fit([*(value for row in rows for value in row[1:4]), reference], 152, WIDTH - 14)
    y = Axis(0, len(rows), 12, bottom)
    out = []
    for tick in x.ticks():
        out.append(f'<path class="grid" d="M{x(tick)} 8V{bottom}"/>')
        out.append(text(x(tick), bottom + 18, f"{tick:,.6g}", css="tick"))
    if not math.isnan(reference):
        out.append(f'<path class="reference" d="M{x(reference)} 8V{bottom}"/>')
    for row, (name, low, middle, high, kind) in enumerate(rows):
        at, words = y(row + 0.5), f"{name}: {brief(middle)} {unit}"
        words += f" ({span(low, high)})" if low < middle < high else ""
        out.append(f'<g class="interval {kind}"><title>{escape(words)}</title>')
        out.append(text(144, at + 4, name if len(name) < 20 else name[:18] + "\u2026", "end"))
        if not (math.isnan(low) or math.isnan(high)):
            out.append(f'<path d="M{x(low)} {at - 5:g}v10M{x(low)} {at}H{x(high)}M{x(high)} {at - 5:g}v10"/>')
        out.append(f'<circle cx="{x(middle)}" cy="{at}" r="4.5"/></g>')
    out.append(f'<path class="axis" d="M{x.start} {bottom}H{x.end}"/>')
    out.append(text((x.start + x.end) / 2, bottom + 40, unit))
    (first, _, least, *_), (last, _, most, *_) = rows[0], rows[-1]
    seen = f"From {first}, {brief(least)} {unit}, at the top to {last}, {brief(most)} {unit}, at the bottom."
    return drawing(label, "".join(out), height=bottom + 48, description=seen)


def over_epochs(courses: Sequence[Course], y_label: str, label: str, zero: bool = False) -> str:
    """Draw a line for each course, with its own colour, dashes and marks, and the names of several."""
    first, last = min(points[0][0] for _, points in courses), max(points[-1][0] for _, points in courses)
    x = Axis(first - (first == last), last, 62, WIDTH - 14, is_count=True)  # a single epoch is at the right end
    y = Axis.fit([value for _, points in courses for _, value in points], HEIGHT - 50, 14, zero=zero)
    out = [frame(x, y, "epochs", y_label)]
    for index, (name, points) in enumerate(courses):
        colour, shape = EPOCH_COLOURS[index % len(EPOCH_COLOURS)], list(SHAPES.values())[(index + 1) % len(SHAPES)]
        places = [(x(epoch), y(value)) for epoch, value in points]
        line = "L".join(f"{across} {up}" for across, up in places)
        out.append(f'<path class="line {colour} d{index % 4}" d="M{line}"/>')
        if len(points) <= MOST_MARKED:
            for (across, up), (epoch, value) in zip(places, points, strict=True):
                told = f"<title>{escape(name)}, epoch {epoch:g}: {brief(value)}</title>"
                out.append(
                    f'<path class="mark {colour}" transform="translate({across} {up})" d="{shape}">{told}</path>'
                )
        if len(courses) > 1:
            out.append(text(places[-1][0] - 4, places[-1][1] - 9, name, "end", "note"))
    return drawing(label, "".join(out), description=". ".join(_seen(name, points) for name, points in courses))


def _seen(name: str, points: Sequence[tuple[float, float]]) -> str:
    least, most = min(points, key=lambda each: each[1]), max(points, key=lambda each: each[1])
    return (
        f"{name}: {brief(points[0][1])} after epoch {points[0][0]:g}, {brief(points[-1][1])} after epoch "
        f"{points[-1][0]:g}; least {brief(least[1])} after {least[0]:g}, most {brief(most[1])} after {most[0]:g}"
    )
