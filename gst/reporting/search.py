"""What was predicted and then measured, and the course of the search: both of measured runs alone."""

from __future__ import annotations

import math

from gst.reporting import charts
from gst.reporting.charts import DASH, brief, number, span
from gst.reporting.page import empty, figure, kind_legend, rows, section
from gst.reporting.record import Record, kind_of, mapping, mappings, pytorch_of, time_of


def predictions(record: Record) -> str:
    """Measured against predicted time of every plan that has both."""
    title = "Predicted before, measured after"
    points = []
    for entry in mappings(record.get("measurements")):
        said, found = number(entry.get("predicted_ms")), number(entry.get("median_ms"))
        if not (math.isnan(said) or math.isnan(found)) and entry.get("outcome", "ok") == "ok":
            points.append((said, found, str(entry.get("origin")), str(entry.get("label"))))
    if not points:
        words = "No plan was both predicted and measured, so there is nothing to compare."
        return section("predictions", title, empty(words))
    tau = number(mapping(record.get("cost_model")).get("tau"))
    agree = (
        "was not computed" if math.isnan(tau) else f"is <b>{tau:.2f}</b> (1: same order, 0: none, \u22121: reversed)"
    )
    shown = [
        (a, b, kind_of(origin), f"{label} ({origin}): predicted {brief(a)} ms, measured {brief(b)} ms")
        for a, b, origin, label in points
    ]
    svg = charts.scatter(
        shown, "predicted ms", "measured ms", f"Measured against predicted time of {len(points)} plans"
    )
    lines = [(label, origin, brief(said), brief(found)) for said, found, origin, label in points]
    table = rows("Predicted and measured", ("plan", "origin", "predicted ms", "measured ms"), lines, words=2)
    told = (
        f"<p>The simulator, corrected by what was measured until then, named a time for {len(points)} plans before "
        f"they ran. Kendall's tau between what it said and what was measured {agree}.</p>"
    )
    caption = "On the dashed diagonal a prediction is exact; above it the plan was slower than predicted."
    return section("predictions", title, told, figure(svg, caption, table, kind_legend({each[2] for each in shown})))


def search(record: Record) -> str:
    """Every measurement of the search in its order, and the best so far."""
    title, entries = "The search on real devices", mappings(record.get("measurements"))
    if not entries:
        return section("search", title, empty("The search measured no plan."))
    steps, lines, failures = [], [], 0
    for count, entry in enumerate(entries, 1):
        ok = entry.get("outcome", "ok") == "ok"
        time = number(entry.get("median_ms")) if ok else math.nan
        failures += math.isnan(time)
        found = f"{brief(time)} ms" if time == time else "failed"
        origin = str(entry.get("origin"))
        told = f"{count}. {entry.get('label')} ({origin}, round {entry.get('round')}): {found}"
        steps.append((time, kind_of(origin), told))
        interval = span(entry.get("low_ms"), entry.get("high_ms")) if ok else DASH
        lines.append((count, entry.get("label"), origin, entry.get("round"), brief(time, "failed"), interval))
    base = time_of(pytorch_of(record))
    svg = charts.search_curve(steps, base, f"Best time so far over {len(steps)} measured plans")
    best = min((time for time, _, _ in steps if time == time), default=math.nan)
    told = (
        f"<p>{len(steps)} plans ran for real, {failures} of them failed; the fastest single measurement was "
        f"{brief(best)} ms. Lucky measurements look fast, so section 1 measures the winners again.</p>"
    )
    caption = "Each mark is one plan, in the order measured; the line is the best so far."
    heads = ("#", "plan", "origin", "round", "median ms", "interval")
    table = rows("All measurements", heads, lines, words=3)
    return section(
        "search", title, told, figure(svg, caption, table, kind_legend({step[1] for step in steps}, failures > 0))
    )
