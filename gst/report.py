"""One page that shows what a search for a plan found: `render(record)` gives self-contained HTML.

The page needs no network, no fonts and no script (a few lines of script add zoom, and a tap that names a
node). Whatever is missing from the record becomes a sentence, not an empty chart; all text in it is escaped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from gst import charts, drawing
from gst.charts import DASH, brief, escape, number, span, whole

Record = Mapping[str, Any]

SCRIPT = """
document.querySelectorAll('figure.graph').forEach(function (figure) {
  var chart = figure.querySelector('svg.chart'), told = figure.querySelector('.told'), scale = 1, last = null;
  var bar = document.createElement('div');
  bar.className = 'zoom';
  var kinds = [['\\u2212', 'zoom out', 1 / 1.5], ['+', 'zoom in', 1.5], ['fit', 'fit to the page', 0]];
  kinds.forEach(function (kind) {
    var button = document.createElement('button');
    button.type = 'button'; button.textContent = kind[0]; button.title = kind[1];
    button.setAttribute('aria-label', kind[1]);
    button.onclick = function () {
      scale = kind[2] ? Math.min(8, Math.max(1, scale * kind[2])) : 1;
      chart.style.width = 100 * scale + '%';
    };
    bar.appendChild(button);
  });
  figure.insertBefore(bar, figure.firstChild);
  chart.addEventListener('click', function (event) {
    var title = event.target.tagName === 'circle' && event.target.querySelector('title');
    if (last) last.classList.remove('told-of');
    last = title ? event.target : null;
    if (last) last.classList.add('told-of');
    told.textContent = title ? title.textContent : '';
  });
});
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(record: Record) -> str:
    """The whole page. `record` is what `gst demo` saves as JSON; every part of it may be missing or empty."""
    title = headline(record)
    program = escape(record.get("program", "program"))
    size = f"{whole(record.get('num_nodes'))} nodes, {whole(record.get('num_edges'))} edges"
    css = resources.files("gst").joinpath("report.css").read_text(encoding="utf-8")
    middle = _pair(_predictions(record), _search(record))
    body = f"{_plans(record)}{middle}{_graph(record)}{_table(record)}{_setting(record)}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{program}: {escape(title)}</title><style>{css}</style></head>\n<body><header>"
        f'<p class="eyebrow">gst demo · <strong>{program}</strong> · one step, {size}</p>'
        f"<h1>{escape(title)}</h1>{_facts(record)}</header>\n<main>{body}</main>\n"
        f"<footer><p>Written by gst demo. "
        "This page is one file and loads nothing.</p></footer>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def headline(record: Record) -> str:
    """What was found, in words: both times and their ratio, whoever wins."""
    best, base = _best(record), _pytorch(record)
    found, plain = number(best.get("median_ms")), number(base.get("median_ms"))
    if math.isnan(found):
        return "No plan was measured to the end" + ("" if math.isnan(plain) else f"; plain PyTorch {brief(plain)} ms")
    used = len(set(_graph_arrays(record)[2].tolist()))
    where = f" on {used} device{'s' * (used != 1)}" if used else ""
    words = f"Best plan {brief(found)} ms{_bracket(best)}{where}"
    if record.get("best") == "pytorch":
        return f"No plan beat plain PyTorch: {brief(plain)} ms{_bracket(base)}"
    if math.isnan(plain):
        return f"{words}; plain PyTorch was not measured"
    words += f"; plain PyTorch {brief(plain)} ms{_bracket(base)}, so it is {plain / found:.2f}x as fast"
    lows, highs = zip(
        *((number(plan.get("low_ms")), number(plan.get("high_ms"))) for plan in (best, base)), strict=True
    )
    if max(lows) <= min(highs):
        return f"{words}, but the intervals overlap: not settled which is faster"
    return words if found <= plain else f"{words}: plain PyTorch is faster here"


def _bracket(plan: Record) -> str:
    low, high = number(plan.get("low_ms")), number(plan.get("high_ms"))
    return "" if math.isnan(low) or math.isnan(high) else f" ({span(low, high)})"


def _best(record: Record) -> Record:
    return (record.get("plans") or {}).get(record.get("best")) or {}


def _pytorch(record: Record) -> Record:
    return (record.get("plans") or {}).get("pytorch") or {"median_ms": record.get("pytorch_ms")}


def _ratio(record: Record, plan: Record) -> str:
    ratio = number(_pytorch(record).get("median_ms")) / (number(plan.get("median_ms")) or math.nan)
    return DASH if math.isnan(ratio) else f"{ratio:.2f}x"


def _facts(record: Record) -> str:
    model = record.get("cost_model") or {}
    best, base = _best(record), _pytorch(record)
    ratio = number(base.get("median_ms")) / (number(best.get("median_ms")) or math.nan)
    tone = "" if math.isnan(ratio) else "good" if ratio > 1 else "bad"
    facts = [
        (f"{brief(best.get('median_ms'))} ms", f"best plan ({record.get('best', 'none')})", ""),
        (f"{brief(base.get('median_ms'))} ms", "plain PyTorch, all threads", ""),
        (_ratio(record, best), "plain PyTorch / best plan", tone),
        (whole(model.get("num_measured", len(record.get("measurements") or []))), "plans measured", ""),
        (whole(model.get("num_screened")), "plans screened by the cost model", ""),
    ]
    cells = (
        f'<li><b class="{tone}">{escape(value)}</b><span>{escape(what)}</span></li>' for value, what, tone in facts
    )
    return f'<ul class="facts">{"".join(cells)}</ul>'


def _section(name: str, title: str, *parts: str) -> str:
    head = f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
    return f"{head}{''.join(parts)}</section>\n"


def _pair(*parts: str) -> str:
    return f'<div class="pair">{"".join(parts)}</div>'


def _empty(sentence: str) -> str:
    return f'<p class="empty">{sentence}</p>'


def _rows(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], best: int | None = None, words: int = 1
) -> str:
    """A table whose first `words` columns are words and whose others are numbers, in a box that scrolls."""
    kind = ["" if column < words else ' class="num"' for column in range(len(heads))]
    head = "".join(f'<th scope="col"{css}>{escape(cell)}</th>' for css, cell in zip(kind, heads, strict=True))
    body = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td{css}>{escape(cell)}</td>" for css, cell in zip(kind[1:], row[1:], strict=True))
        body.append(f'<tr{" class=best" * (index == best)}><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _figure(svg: str, caption: str, table: str = "", legend: str = "") -> str:
    details = f"<details><summary>The same in numbers</summary>{table}</details>" if table else ""
    return f'<figure><div class="plot">{svg}</div>{legend}<figcaption>{caption}</figcaption>{details}</figure>'


def _plans(record: Record) -> str:
    plans = record.get("plans") or {}
    if not plans:
        return _section("plans", "1 Plans, measured again at the end", _empty("No plan was measured again at the end."))
    time = {name: number(plan.get("median_ms")) for name, plan in plans.items()}
    names = sorted(plans, key=lambda name: (math.isnan(time[name]), time[name] if time[name] == time[name] else 0.0))
    said = {"pytorch": "pytorch (plain, all threads)"}
    rows = [
        (
            said.get(name, name),
            brief(time[name], "failed"),
            span(plan.get("low_ms"), plan.get("high_ms")),
            _ratio(record, plan),
            whole(plan.get("measurements")),
        )
        for name, plan in ((name, plans[name]) for name in names)
    ]
    heads = ("plan", "median ms", "95 % interval", "PyTorch / plan", "runs")
    table = _rows("All plans", heads, rows, names.index(record["best"]) if record.get("best") in names else None)
    bars = [
        (
            name,
            number(plans[name].get("low_ms")),
            time[name],
            number(plans[name].get("high_ms")),
            "best" if name == record.get("best") else "pytorch" if name == "pytorch" else "",
        )
        for name in names
        if not math.isnan(time[name])
    ]
    told = (
        "<p>Runs of all plans took turns, so that a busy moment of the machine hits them alike. Intervals "
        "are 95 % bootstrap intervals of the median. The ratio is plain PyTorch's time over the plan's: "
        "above 1 the plan is faster, below 1 it is slower. Plans that lose are listed too.</p>"
    )
    if not bars:
        return _section("plans", "1 Plans, measured again at the end", told, table)
    svg = charts.intervals(
        bars, number(_pytorch(record).get("median_ms")), f"Median time and interval of {len(bars)} plans"
    )
    chart = _figure(svg, "Median and 95 % interval; dashed: plain PyTorch. The axis need not start at zero.")
    return _section("plans", "1 Plans, measured again at the end", told, _pair(f"<div>{table}</div>", chart))


def _swatch(shape: str) -> str:
    return f'<svg viewBox="-8 -8 16 16" aria-hidden="true">{shape}</svg>'


def _origin_legend(origins: set[str], failed: bool = False) -> str:
    kinds = [(origin, False) for origin in charts.SHAPES if origin in origins] + [("failed", True)] * failed
    items = (f"<li>{_swatch(charts.mark(origin, 0, 0, '', cross))}{origin}</li>" for origin, cross in kinds)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _predictions(record: Record) -> str:
    title = "2 Predicted before, measured after"
    points = []
    for entry in record.get("measurements") or []:
        said, found = number(entry.get("predicted_ms")), number(entry.get("median_ms"))
        if not (math.isnan(said) or math.isnan(found)) and entry.get("outcome", "ok") == "ok":
            points.append((said, found, str(entry.get("origin")), str(entry.get("label"))))
    if not points:
        return _section(
            "predictions",
            title,
            _empty("No plan was both predicted and measured, so there is nothing to compare."),
        )
    tau = number((record.get("cost_model") or {}).get("tau"))
    agree = (
        "was not computed" if math.isnan(tau) else f"is <b>{tau:.2f}</b> (1: same order, 0: none, \u22121: reversed)"
    )
    shown = [(a, b, o, f"{label}: predicted {brief(a)} ms, measured {brief(b)} ms") for a, b, o, label in points]
    svg = charts.scatter(
        shown, "predicted ms", "measured ms", f"Measured against predicted time of {len(points)} plans"
    )
    rows = [(label, origin, brief(said), brief(found)) for said, found, origin, label in points]
    table = _rows("Predicted and measured", ("plan", "origin", "predicted ms", "measured ms"), rows, words=2)
    told = (
        f"<p>The cost model named a time for {len(points)} plans before they ran. Kendall's tau between what "
        f"it said and what was measured {agree}.</p>"
    )
    caption = "On the dashed diagonal a prediction is exact; above it the plan was slower than predicted."
    return _section(
        "predictions",
        title,
        told,
        _figure(svg, caption, table, _origin_legend({point[2] for point in points})),
    )


def _search(record: Record) -> str:
    title, entries = "3 The search", record.get("measurements") or []
    if not entries:
        return _section("search", title, _empty("The search measured no plan."))
    steps, rows, failures = [], [], 0
    for count, entry in enumerate(entries, 1):
        ok = entry.get("outcome", "ok") == "ok"
        time = number(entry.get("median_ms")) if ok else math.nan
        failures += math.isnan(time)
        found = f"{brief(time)} ms" if time == time else "failed"
        origin = str(entry.get("origin"))
        steps.append((time, origin, f"{count}. {entry.get('label')} ({origin}, round {entry.get('round')}): {found}"))
        interval = span(entry.get("low_ms"), entry.get("high_ms")) if ok else DASH
        rows.append((count, entry.get("label"), origin, entry.get("round"), brief(time, "failed"), interval))
    base = number(_pytorch(record).get("median_ms"))
    svg = charts.search_curve(steps, base, f"Best time so far over {len(steps)} measured plans")
    heads = ("#", "plan", "origin", "round", "median ms", "interval")
    best = min((time for time, _, _ in steps if time == time), default=math.nan)
    told = (
        f"<p>{len(steps)} plans ran for real, {failures} of them failed; the fastest single measurement was "
        f"{brief(best)} ms. Lucky measurements look fast, so section 1 measures the winners again.</p>"
    )
    legend = _origin_legend({step[1] for step in steps}, failures > 0)
    caption = "Each mark is one plan, in the order measured; the line is the best so far."
    return _section(
        "search", title, told, _figure(svg, caption, _rows("All measurements", heads, rows, words=3), legend)
    )


def _graph_arrays(record: Record) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Edges (2, edges) that name nodes that exist, then segment, device and opcode of each node."""
    graph = record.get("graph") or {}
    lists = [list(graph.get(key) or []) for key in ("segment", "device", "opcode")]
    nodes = max(map(len, lists))
    segment, device = (np.array([*lists[i], *[0] * (nodes - len(lists[i]))], np.int64).clip(0) for i in (0, 1))
    if segment.size:
        segment = segment if segment.max() < 4 * nodes else np.unique(segment, return_inverse=True)[1]
    pairs = graph.get("edges") or [[], []]
    edges = np.array([list(pairs[0]), list(pairs[1])], np.int64).reshape(2, -1)
    edges = edges[:, ((edges >= 0) & (edges < nodes)).all(axis=0) & (edges[0] != edges[1])]
    return edges, segment, device, [str(word) for word in lists[2]] + ["?"] * (nodes - len(lists[2]))


def _graph(record: Record) -> str:
    title = "4 The program as a graph"
    edges, segment, device, opcode = _graph_arrays(record)
    if not segment.size:
        return _section("graph", title, _empty("The record holds no graph to draw."))
    names = [str(entry.get("name", index)) for index, entry in enumerate(record.get("devices") or [])]
    names += [f"device {index}" for index in range(len(names), int(device.max()) + 1)]
    num_segments, used = len(np.unique(segment)), np.unique(device).tolist()
    crossing = int((device[edges[0]] != device[edges[1]]).sum())
    cut = int((segment[edges[0]] != segment[edges[1]]).sum())
    labels = (
        f"The graph, coloured by its {num_segments} segments",
        f"The graph, coloured by device: {', '.join(names[index] for index in used)}",
    )
    large = len(segment) > drawing.MAX_NODES or edges.shape[1] > drawing.MAX_EDGES
    if large:
        by_segment, by_device = drawing.draw_segments(edges, segment, device, labels)
        drawn = "too many to draw: each disc is one segment, its area the number of its nodes"
        if num_segments > drawing.MAX_BLOBS:
            drawn += f" (the {drawing.MAX_BLOBS} largest of {num_segments:,})"
    else:
        titles = [f"{n} {opcode[n]}, segment {segment[n]}, {names[device[n]]}" for n in range(len(segment))]
        by_segment, by_device = drawing.draw_nodes(edges, segment, device, titles, labels)
        drawn = "each dot is one operation; hover or tap to read it"
    told = (
        f"<p>{len(segment):,} nodes and {edges.shape[1]:,} edges ({drawn}). Data flows from left to right. "
        f"{cut:,} edges join different segments, {crossing:,} join different devices.</p>"
    )
    seven = (
        "Numbers name segments. Colours repeat after seven; segments that share an edge differ in colour "
        "where seven colours suffice."
    )
    moves = "Strong lines are values that travel between devices." if crossing else "No value changes device."
    if large:
        moves = "Each disc is divided by its nodes' devices."
    segments, placed = (
        _segment_table(segment, device, opcode, names),
        _device_table(edges, device, opcode, names),
    )
    one = _graph_figure("By segment", by_segment, seven, segments)
    other = _graph_figure("By device, in the best plan", by_device, moves, placed, _device_legend(device, names))
    return _section("graph", title, told, one, other)


def _graph_figure(name: str, svg: str, caption: str, table: str, legend: str = "") -> str:
    return (
        f'<h3>{name}</h3><figure class="graph">{legend}'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{svg}</div>'
        f'<p class="told" aria-live="polite"></p><figcaption>{caption}</figcaption>'
        f"<details><summary>The same in numbers</summary>{table}</details></figure>"
    )


def _device_legend(device: np.ndarray, names: Sequence[str]) -> str:
    shapes = [f'<path class="mark" d="{charts.SHAPES[origin]}"/>' for origin in ("policy", "baseline")]
    items = (
        f'<li class="c{index % charts.NUM_COLOURS}">{_swatch(shapes[index % 2])}{escape(names[index])}: '
        f"{count:,} nodes</li>"
        for index, count in zip(*(column.tolist() for column in np.unique(device, return_counts=True)), strict=True)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _common(words: Iterable[str]) -> str:
    return ", ".join(f"{word[:40]} {count:,}" for word, count in Counter(words).most_common(3))


def _segment_table(segment: np.ndarray, device: np.ndarray, opcode: Sequence[str], names: Sequence[str]) -> str:
    rows = []
    for part in np.unique(segment).tolist()[: drawing.MAX_BLOBS]:
        inside = np.flatnonzero(segment == part).tolist()
        where = Counter(names[device[n]] for n in inside)
        rows.append((part, ", ".join(where), _common(opcode[n] for n in inside), f"{len(inside):,}"))
    return _rows("Segments", ("segment", "devices", "most frequent operations", "nodes"), rows, words=3)


def _device_table(edges: np.ndarray, device: np.ndarray, opcode: Sequence[str], names: Sequence[str]) -> str:
    rows = []
    for index in np.unique(device).tolist():
        inside = np.flatnonzero(device == index).tolist()
        sent, received = device[edges[0]] == index, device[edges[1]] == index
        counts = (len(inside), int((received & ~sent).sum()), int((sent & ~received).sum()))
        rows.append((names[index], _common(opcode[n] for n in inside), *(f"{count:,}" for count in counts)))
    return _rows("Devices", ("device", "most frequent operations", "nodes", "edges in", "edges out"), rows, words=2)


def _table(record: Record) -> str:
    title, entries = "5 How old the remembered embeddings were", record.get("table") or []
    keys = ("step", "age_mean", "age_max", "share_unknown")
    step, mean, oldest, unknown = ([number(entry.get(key)) for entry in entries] for key in keys)
    if not any(a == a and b == b for a, b in zip(step, mean, strict=True)):
        return _section(
            "table",
            title,
            _empty("The cost model was trained without an embedding table, or it kept no account."),
        )
    told = (
        "<p>While the cost model trained, only some segments of a graph were encoded afresh; the others came "
        "from a table. Age counts steps since a row was written; unknown rows were never written.</p>"
    )
    ages = charts.lines(step, (("mean", mean), ("oldest", oldest)), "age in steps", "Age of the rows over training")
    share = charts.lines(step, (("unknown", unknown),), "share of rows", "Share of rows never written, over training")
    old = _rows("Age of rows", ("step", "mean age", "oldest"), zip(*map(_told, (step, mean, oldest)), strict=True))
    new = _rows("Unknown rows", ("step", "share unknown"), zip(*map(_told, (step, unknown)), strict=True))
    figures = (
        _figure(ages, "Solid: mean age; dashed: the oldest row.", old),
        _figure(share, "1: no row was written yet; 0: every row was.", new),
    )
    return _section("table", title, told, _pair(*figures))


def _told(values: Iterable[float]) -> list[str]:
    return [brief(value) for value in values]


def _setting(record: Record) -> str:
    machine = {**(record.get("machine") or {}), "seconds in all": brief(record.get("seconds"))}
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in machine.items())
    devices = [(entry.get("name"), entry.get("description")) for entry in record.get("devices") or []]
    used = _rows("Devices", ("device", "what it is"), devices, words=2)
    method = (
        "<p>Every time is wall-clock time of one step, run for real on these devices. A prediction was "
        "written down before its plan ran. After the search the plans of section 1 and plain PyTorch ran "
        "again in turns (plain PyTorch in a process of its own, all threads, nothing changed); the headline "
        "uses those runs alone: their median and its 95 % bootstrap interval. "
        "The numbers hold for this program on this machine; another machine needs its own run.</p>"
    )
    return _section(
        "setting",
        "6 Machine, devices, command",
        _pair(
            f"<div><h3>Machine</h3><dl>{facts}</dl></div>",
            f"<div><h3>Devices</h3>{used if devices else _empty('No devices were recorded.')}</div>",
        ),
        f"<h3>Command</h3><pre><code>{escape(record.get('command', 'not recorded'), 4000)}</code></pre>",
        f"<h3>How it was measured</h3>{method}",
    )
