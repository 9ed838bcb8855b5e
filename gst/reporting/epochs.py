"""Numbers that develop from epoch to epoch, as a chart and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gst.reporting.charts import HEIGHT, SHAPES, WIDTH, Axis, brief, drawing, escape, frame, number, text
from gst.reporting.record import Record, mappings
from gst.reporting.staircases import apart

MOST_MARKED = 40  # epochs; lines of more have no marks
COLOURS = ("c0", "c5", "c2", "c3")

Course = tuple[str, Sequence[tuple[float, float]]]
"""What it is, and its (epochs finished, value) in order."""


def course(record: Record, key: str, name: str) -> list[Course]:
    """How `key` developed over the epochs of a training; nothing if no epoch knows it."""
    points = [(number(entry.get("epoch")) + 1, number(entry.get(key))) for entry in mappings(record.get("epochs"))]
    known = [point for point in points if not any(map(math.isnan, point))]
    return [(name, sorted(known))] if known else []


def over_epochs(courses: Sequence[Course], y_label: str, label: str, zero: bool = False) -> str:
    """A line for each, told apart by colour, dashes and marks, and named at its end where there are several."""
    right = WIDTH - (14 if len(courses) == 1 else 92)
    x = Axis(0, max(5.0, *(points[-1][0] for _, points in courses)), 62, right)
    y = Axis.fit([value for _, points in courses for _, value in points], HEIGHT - 50, 14, zero=zero)
    out, ends = [frame(x, y, "epochs", y_label)], [y(points[-1][1]) for _, points in courses]
    order = sorted(range(len(courses)), key=lambda index: ends[index])
    names = dict(zip(order, apart([ends[index] for index in order], 15, y.end + 4, y.start - 2), strict=True))
    for index, (name, points) in enumerate(courses):
        colour, shape = COLOURS[index % len(COLOURS)], list(SHAPES.values())[(index + 1) % len(SHAPES)]
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
            out.append(text(places[-1][0] + 9, names[index] + 4, name[:14], "start", "note"))
    return drawing(label, "".join(out), description=". ".join(_seen(name, points) for name, points in courses))


def _seen(name: str, points: Sequence[tuple[float, float]]) -> str:
    least, most = min(points, key=lambda each: each[1]), max(points, key=lambda each: each[1])
    return (
        f"{name}: {brief(points[0][1])} after epoch {points[0][0]:g}, {brief(points[-1][1])} after epoch "
        f"{points[-1][0]:g}; least {brief(least[1])} after {least[0]:g}, most {brief(most[1])} after {most[0]:g}"
    )
