"""What a training predicted of what it was not shown, against what was measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float64

from gst.reporting.charts import DASH, HEIGHT, WIDTH, Axis, brief, drawing, escape, frame, number, whole
from gst.reporting.page import empty, figure, pair, rows, section
from gst.reporting.record import Record, mapping, mappings

MAX_POINTS, MAX_GRAPHS, MAX_CLASSES = 2_000, 200, 30

PerConfig = Float64[np.ndarray, " configs"]

TOLD = {
    "runtime": "The model names a runtime. On the dashed diagonal it is exact; above it the program was slower.",
    "value": "On the dashed diagonal a prediction is exact.",
    "order": "The model orders configurations and names no time, so both axes are places among the configurations of "
    "the same graph: 0 % is the fastest, 100 % the slowest. Points on the dashed diagonal are in their place.",
}
AXES = {
    "runtime": ("predicted runtime", "measured runtime"),
    "value": ("predicted", "measured"),
    "order": ("predicted place, %", "measured place, %"),
}


def scores(record: Record) -> str:
    """A point for each configuration that was held out, or a table of classes; and a line for each graph."""
    title, held = "Predicted against measured, held out", mapping(record.get("held_out"))
    graphs = _graphs(held)
    if not graphs:
        return section("scores", title, empty("No prediction of anything held out was kept."))
    kind = str(held.get("kind"))
    count = sum(len(measured) for _, _, measured, _ in graphs)
    when = f"<p>The {count:,} targets of the validation part, after epoch {whole(number(held.get('epoch')) + 1)}.</p>"
    if kind == "class":
        told = "<p>A row for each true class, a column for each predicted one; right are those on the diagonal.</p>"
        return section("scores", title, when + told, _classes(graphs))
    kind = kind if kind in AXES else "order"
    predicted, measured = _points(graphs, kind)
    shown = np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(np.int64))
    shown = np.argsort(measured, kind="stable")[shown]
    x_label, y_label = AXES[kind]
    label = f"{y_label[0].upper()}{y_label[1:]} against {x_label} of {count:,} held-out configurations"
    svg = _cloud(predicted[shown], measured[shown], x_label, y_label, label)
    fewer = f" {len(shown):,} of {count:,} points are drawn." if len(shown) < count else ""
    chart = figure(svg, TOLD[kind] + fewer, _tenths(predicted, measured, x_label, y_label), heading="All of them")
    return section("scores", title, when, pair(chart, _by_graph(graphs)))


def _graphs(held: Record) -> list[tuple[str, PerConfig, PerConfig, float]]:
    """Name, predicted, measured and tau of each graph; pairs with a number that is none are left out."""
    found = []
    for entry in mappings(held.get("graphs")):
        both = [_numbers(entry.get(key)) for key in ("predicted", "measured")]
        length = min(map(len, both))
        predicted, measured = (values[:length] for values in both)
        known = np.isfinite(predicted) & np.isfinite(measured)
        if known.any():
            found.append((str(entry.get("graph")), predicted[known], measured[known], number(entry.get("tau"))))
    return found


def _numbers(value: Any) -> PerConfig:
    listed = value if isinstance(value, list | tuple) else []
    return np.array([number(each) for each in listed], np.float64)


def _points(graphs: list[tuple[str, PerConfig, PerConfig, float]], kind: str) -> tuple[PerConfig, PerConfig]:
    """All pairs; as places (0..100) within their graph for 'order', or among all graphs if each has a single one."""
    pairs = [(predicted, measured) for _, predicted, measured, _ in graphs]
    if all(len(measured) == 1 for _, measured in pairs):
        pairs = [(np.concatenate([each[0] for each in pairs]), np.concatenate([each[1] for each in pairs]))]
    if kind == "order":
        pairs = [(_places(predicted), _places(measured)) for predicted, measured in pairs]
    return np.concatenate([each[0] for each in pairs]), np.concatenate([each[1] for each in pairs])


def _places(values: PerConfig) -> PerConfig:
    """The place of each among all, 0..100; equal values share the middle of theirs."""
    ordered = np.sort(values)
    middle = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") - 1) / 2
    return 100 * middle / max(len(values) - 1, 1)


def _cloud(predicted: PerConfig, measured: PerConfig, x_label: str, y_label: str, label: str) -> str:
    both = [*predicted.tolist(), *measured.tolist()]
    x, y = Axis.fit(both, 62, WIDTH - 14), Axis.fit(both, HEIGHT - 50, 12)
    dots = "".join(f"M{x(a)} {y(b)}h.01" for a, b in zip(predicted.tolist(), measured.tolist(), strict=True))
    diagonal = f'<path class="reference" d="M{x.start} {y.start}L{x.end} {y.end}"/>'
    cloud = f'<path class="cloud c0{" many" * (len(predicted) > 300)}" d="{dots}"/>'
    off = float(np.median(abs(predicted - measured)))
    seen = f"Half of the {len(predicted):,} points are within {brief(off)} of the diagonal."
    return drawing(label, frame(x, y, x_label, y_label) + cloud + diagonal, description=seen)


def _tenths(predicted: PerConfig, measured: PerConfig, x_label: str, y_label: str) -> str:
    """What was measured of each tenth of the predictions."""
    lines = []
    for number_of, inside in enumerate(
        np.array_split(np.argsort(predicted, kind="stable"), min(10, len(predicted))), 1
    ):
        low, middle, high = np.quantile(measured[inside], [0.25, 0.5, 0.75])
        said = f"{brief(predicted[inside].min())} to {brief(predicted[inside].max())}"
        lines.append((number_of, said, brief(low), brief(middle), brief(high)))
    heads = ("group", x_label, f"{y_label}: a quarter below", "median", "a quarter above")
    return rows("Groups of equal size by prediction", heads, lines)


def _by_graph(graphs: list[tuple[str, PerConfig, PerConfig, float]]) -> str:
    """What the configuration that was predicted first turned out to be."""
    lines = []
    for name, predicted, measured, tau in graphs[:MAX_GRAPHS]:
        first, best = float(measured[predicted.argmin()]), float(measured.min())
        slower = f"{100 * (first / best - 1):.1f} %" if best > 0 else DASH
        told = DASH if math.isnan(tau) else f"{tau:.3f}"
        lines.append((name, f"{len(measured):,}", told, brief(best), brief(first), slower))
    heads = ("graph", "held out", "tau", "least", "first", "slower")
    more = f" The first {MAX_GRAPHS} of {len(graphs):,}." if len(graphs) > MAX_GRAPHS else ""
    return (
        f'<div><h3>Graph by graph</h3>{rows("Graphs", heads, lines)}<p class="note-line">Least is the least'
        " that was measured, first what was measured of the configuration with the lowest score, in the units of the "
        f"targets.{more}</p></div>"
    )


def _classes(graphs: list[tuple[str, PerConfig, PerConfig, float]]) -> str:
    predicted, measured = (np.concatenate([each[side] for each in graphs]).astype(np.int64) for side in (1, 2))
    classes = np.unique(np.concatenate([predicted, measured])).tolist()[:MAX_CLASSES]
    lines = []
    for true in classes:
        counts = [int(((measured == true) & (predicted == said)).sum()) for said in classes]
        right = counts[classes.index(true)] / max(int((measured == true).sum()), 1)
        lines.append((f"true {true}", *counts, f"{100 * right:.1f} %"))
    return rows("Classes", ["", *(f"as {escape(said)}" for said in classes), "right"], lines)
