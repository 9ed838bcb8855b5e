"""Numbers and graphs as inline SVG: axes, marks, and a drawing of a computation graph. Text in, text out.

Colours are classes (`c0` ... `c6`, the Okabe-Ito palette, given in `report.css`), so that one
drawing serves a light page, a dark page and paper. Whatever comes from outside goes through `escape`.
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
    "policy": "M-4.6 0a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0-9.2 0z",
    "mutation": "M0-5.5L5.2 4h-10.4z",
    "random": "M0-5.8L5.8 0L0 5.8L-5.8 0z",
}
CROSS = "M-4-4L4 4M-4 4L4-4"
NUM_COLOURS = 7
DASH = "\u2013"

MAX_NODES, MAX_EDGES = 5_000, 12_000
"""Above either, segments are drawn instead of nodes (and the page stays below a megabyte)."""

MAX_LANES, MAX_BLOBS, MAX_NUMBERED = 44, 600, 80


def escape(value: Any, limit: int = 400) -> str:
    """Safe between tags and inside quotes, cut at `limit` characters."""
    text = str(value).encode("utf-8", "replace").decode().replace("\0", "")
    return html.escape(text if len(text) <= limit else text[: limit - 1] + "\u2026")


def number(value: Any) -> float:
    """The value as a finite float, else NaN (None, infinities, words)."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return result if math.isfinite(result) else math.nan


def brief(value: Any, missing: str = DASH) -> str:
    """About three digits: 0.0123, 4.56, 41.2, 1,234."""
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
    return f"{brief(low)}{DASH}{brief(high)}"


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers laid on a stretch of pixels (`start` may lie right of or below `end`)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def fit(cls, values: Iterable[float], start: float, end: float, *, zero: bool = False) -> Axis:
        """Room for all finite values; logarithmic (never with `zero`) if they span more than 20-fold."""
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
            marks = [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [mark for mark in marks if self.low <= mark <= self.high]


def drawing(label: str, body: str, width: float = WIDTH, height: float = HEIGHT, style: str = "") -> str:
    """A complete figure for eyes and screen readers alike."""
    name = escape(label)
    return (
        f'<svg class="chart" role="img" aria-label="{name}" viewBox="0 0 {width:g} {height:g}" '
        f'style="{style}"><title>{name}</title>{body}</svg>'
    )


def text(x: float, y: float, words: Any, anchor: str = "middle", css: str = "label", size: float = 13) -> str:
    where = f'x="{x:.5g}" y="{y:.5g}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text class="{css}" {where}>{escape(words)}</text>'


def mark(origin: str, x: float, y: float, title: str = "", failed: bool = False) -> str:
    """What an origin looks like: a colour and a shape, so that either is enough."""
    kind = origin if origin in SHAPES else "policy"
    kind, shape = ("failed", CROSS) if failed else (kind, SHAPES[kind])
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<path class="mark {kind}" transform="translate({x:g} {y:g})" d="{shape}">{inside}</path>'


def frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    """Grid lines, numbers on both axes, and what they count."""
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


def scatter(points: Sequence[tuple[float, float, str, str]], x_label: str, y_label: str, label: str) -> str:
    """Points (x, y, origin, title) on two equal axes with the diagonal where x = y."""
    both = [value for point in points for value in point[:2]]
    x, y = Axis.fit(both, 58, WIDTH - 14), Axis.fit(both, HEIGHT - 50, 12)
    diagonal = f'<path class="reference" d="M{x.start} {y.start}L{x.end} {y.end}"/>'
    dots = "".join(mark(origin, x(across), y(up), title) for across, up, origin, title in points)
    return drawing(label, frame(x, y, x_label, y_label) + diagonal + dots)


def search_curve(steps: Sequence[tuple[float, str, str]], reference: float, label: str) -> str:
    """Steps (milliseconds or NaN, origin, title) as measured, and the best so far as a staircase."""
    times = [time for time, _, _ in steps]
    y = Axis.fit([*times, reference], HEIGHT - 50, 24)
    x = Axis(0, max(len(steps) * 1.02, 2), 58, WIDTH - 14)
    dots, stairs, best = [], "", math.inf
    for count, (time, origin, title) in enumerate(steps, 1):
        failed = math.isnan(time)
        dots.append(mark(origin, x(count), y.end - 9 if failed else y(time), title, failed))
        if time < best:
            stairs += f"H{x(count)}V{y(time)}" if stairs else f"M{x(count)} {y(time)}"
            best = time
    if stairs:
        stairs = f'<path class="line c0" d="{stairs}H{x.end}"/>'
    base = ""
    if not math.isnan(reference):
        at = y(reference)
        base = f'<path class="reference" d="M{x.start} {at}H{x.end}"/>'
        below = at + 15 if at < y.end + 26 else at - 6
        base += text(x.end - 4, below, "plain PyTorch", "end", "note")
    marks = frame(x, y, "plans measured so far", "milliseconds of one step") + base + "".join(dots) + stairs
    return drawing(label, marks)


def intervals(rows: Sequence[tuple[str, float, float, float, str]], reference: float, label: str) -> str:
    """Rows (name, low, middle, high, kind of "best" or "pytorch" or ""), one below the other, on one axis."""
    bottom = 12 + 26 * len(rows)
    x = Axis.fit([*(value for row in rows for value in row[1:4]), reference], 138, WIDTH - 14)
    y = Axis(0, len(rows), 12, bottom)
    out = []
    for tick in x.ticks():
        out.append(f'<path class="grid" d="M{x(tick)} 8V{bottom}"/>')
        out.append(text(x(tick), bottom + 18, f"{tick:,.6g}", css="tick"))
    if not math.isnan(reference):
        out.append(f'<path class="reference" d="M{x(reference)} 8V{bottom}"/>')
    for row, (name, low, middle, high, kind) in enumerate(rows):
        at, words = y(row + 0.5), f"{name}: {brief(middle)} ms ({span(low, high)})"
        out.append(f'<g class="interval {kind}"><title>{escape(words)}</title>')
        out.append(text(130, at + 4, name if len(name) < 20 else name[:18] + "\u2026", "end"))
        if not (math.isnan(low) or math.isnan(high)):
            out.append(f'<path d="M{x(low)} {at - 5:g}v10M{x(low)} {at}H{x(high)}M{x(high)} {at - 5:g}v10"/>')
        out.append(f'<circle cx="{x(middle)}" cy="{at}" r="4.5"/></g>')
    out.append(f'<path class="axis" d="M{x.start} {bottom}H{x.end}"/>')
    out.append(text((x.start + x.end) / 2, bottom + 40, "milliseconds of one step"))
    return drawing(label, "".join(out), height=bottom + 48)


def lines(steps: Sequence[float], series: Sequence[tuple[str, Sequence[float]]], y_label: str, label: str) -> str:
    """One line for each (name, values) against training steps, broken where a value is missing."""
    known = [step for step in steps if math.isfinite(step)] or [0.0]
    x = Axis(min(known), max(*known, min(known) + 1), 58, WIDTH - 62)
    y = Axis.fit((value for _, values in series for value in values), HEIGHT - 50, 12, zero=True)
    out, taken = [frame(x, y, "training step", y_label)], -math.inf
    top_first = sorted(enumerate(series), key=lambda entry: -np.nanmax([*entry[1][1][-1:], -1e300]))
    for index, (name, values) in top_first:
        path, pen, last = "", "M", None
        for step, value in zip(steps, values, strict=True):
            if math.isnan(step) or math.isnan(value):
                pen = "M"
                continue
            last = (x(step), y(value))
            path += f"{pen}{last[0]} {last[1]}"
            pen = "L"
        if last:
            taken = max(last[1] + 4, taken + 15)
            out.append(f'<path class="line c{index}{" dashed" * (index % 2)}" d="{path}"/>')
            out.append(text(last[0] + 5, taken, name, "start", "note"))
    return drawing(label, "".join(out))


def depths(edges: Ints, num_nodes: int) -> Ints:
    """Layers by longest path, each node then moved right, next to its first reader; cycles come last."""
    source, target = edges
    order = np.argsort(source, kind="stable")
    readers, first = target[order], np.searchsorted(source[order], np.arange(num_nodes + 1))
    waiting = np.bincount(target, minlength=num_nodes)
    depth = np.full(num_nodes, -1, np.int64)
    frontier = np.flatnonzero(waiting == 0)
    levels: list[Ints] = []
    while frontier.size:
        depth[frontier] = len(levels)
        levels.append(frontier)
        degree = first[frontier + 1] - first[frontier]
        skip = np.repeat(first[frontier] - np.cumsum(degree) + degree, degree)
        reached = readers[skip + np.arange(degree.sum())]
        np.subtract.at(waiting, reached, 1)
        frontier = np.unique(reached[waiting[reached] == 0])
    depth[depth < 0] = len(levels)
    for nodes in levels[::-1]:
        for node in nodes[first[nodes + 1] > first[nodes]].tolist():
            depth[node] = depth[readers[first[node] : first[node + 1]]].min() - 1
    return depth


def settle(wanted: Floats, lanes: float) -> Floats:
    """Places at least one lane apart, close to those wanted (ascending), all within the lanes."""
    rank = np.arange(len(wanted))
    slack = wanted - rank
    slack = (np.maximum.accumulate(slack) + np.minimum.accumulate(slack[::-1])[::-1]) / 2
    return np.clip(slack, 0, max(lanes - len(wanted), 0)) + rank


def places(edges: Ints, num_nodes: int) -> tuple[Floats, Floats]:
    """Column and lane of each node. Neighbours attract each other; a crowded depth takes several columns."""
    depth = depths(edges, num_nodes)
    columns = [np.flatnonzero(depth == level) for level in np.unique(depth)]
    lanes = min(max(map(len, columns)), MAX_LANES)
    column, lane = np.zeros(num_nodes), np.full(num_nodes, (lanes - 1) / 2)
    around = []
    for near, far in (edges[::-1], edges):
        order = np.argsort(near, kind="stable")
        around.append((far[order], np.searchsorted(near[order], np.arange(num_nodes + 1))))
    for sweep in range(5):
        far, first = around[sweep % 2]
        position = 0
        for nodes in columns if sweep % 2 == 0 else columns[::-1]:
            friends = [far[first[n] : first[n + 1]] for n in nodes]
            own = lane[nodes]
            wanted = np.array([lane[f].mean() if f.size else o for f, o in zip(friends, own, strict=True)])
            nodes = nodes[np.argsort(wanted, kind="stable")]
            strips = -(-len(nodes) // lanes)
            for strip in range(strips):
                lane[nodes[strip::strips]] = settle(np.sort(wanted)[strip::strips], lanes)
                column[nodes[strip::strips]] = position
                position += 1
    return column, lane


def colours(edges: Ints, num_parts: int) -> Ints:
    """A colour for each part so that parts joined by an edge differ wherever the palette suffices."""
    joined: list[set[int]] = [set() for _ in range(num_parts)]
    for one, other in edges.T.tolist():
        joined[one].add(other)
        joined[other].add(one)
    chosen = np.full(num_parts, -1, np.int64)
    used = np.zeros(NUM_COLOURS)
    for part in sorted(range(num_parts), key=lambda part: (-len(joined[part]), part)):
        cost = used + 1e9 * np.isin(np.arange(NUM_COLOURS), chosen[list(joined[part])])
        chosen[part] = int(np.argmin(cost))
        used[chosen[part]] += 1
    return chosen


def quotient(edges: Ints, part: Ints) -> tuple[Ints, Ints]:
    """The edges between different parts, each once, and how many edges each stands for."""
    pairs = part[edges]
    pairs = pairs[:, pairs[0] != pairs[1]]
    unique, counts = np.unique(pairs, axis=1, return_counts=True)
    return unique, counts


def draw_nodes(
    edges: Ints, segment: Ints, device: Ints, titles: Sequence[str], labels: tuple[str, str]
) -> tuple[str, str]:
    """Every node as a dot: coloured by segment, then by device with the edges between devices in front."""
    column, lane = places(edges, len(segment))
    width = float(np.clip(4 * (column.max() + 1), 1080, 3000))
    across = (width - 24) / max(column.max(), 1)
    top = min(26 * lane.max(), 440 * min(width / 1080, 1.6))
    crowd = np.searchsorted(np.sort(lane), lane) / len(lane)  # crowded lanes get more of the height
    height = top + 24
    down = top / max(lane.max(), 1)
    x = np.round(12 + np.minimum(across, 40) * column, 1)
    x += (width - 12 - x.max()) / 2 - 6
    y = np.round(12 + top * (0.45 * lane / max(lane.max(), 1) + 0.55 * crowd / max(crowd.max(), 1e-9)), 1)
    radius = float(np.clip(min(0.75 * across, 0.42 * down), 1.8, 6))
    at = [f"{a:.5g} {b:.4g}" for a, b in zip(x, y, strict=True)]
    bend = len(edges.T) <= MAX_EDGES // 2

    def wires(chosen: Ints) -> str:
        if not bend:
            return "".join(f"M{at[u]}L{at[v]}" for u, v in chosen.T.tolist())
        return "".join(
            f"M{at[u]}C{(x[u] + x[v]) / 2:.5g} {y[u]:.4g} {(x[u] + x[v]) / 2:.5g} {y[v]:.4g} {at[v]}"
            for u, v in chosen.T.tolist()
        )

    colour = colours(quotient(edges, segment)[0], int(segment.max()) + 1)
    far = abs(x[edges[1]] - x[edges[0]]) > 0.12 * width
    spans = (("wires far", edges[:, far]), ("wires", edges[:, ~far]))
    wire = "".join(f'<path class="{css}" d="{wires(chosen)}"/>' for css, chosen in spans)
    wire = f'<g id="wires">{wire}</g>'
    dots = []
    for part in np.unique(segment):
        dots.append(f'<g class="dot c{colour[part]}">')
        for n in np.flatnonzero(segment == part).tolist():
            where = f'cx="{x[n]:.5g}" cy="{y[n]:.4g}" r="{radius:.3g}"'
            dots.append(f"<circle {where}><title>{escape(titles[n], 90)}</title></circle>")
        dots.append("</g>")
    size = round(13 * max(width / 1080, 1))
    parts, counts = np.unique(segment, return_counts=True)
    for part in parts[np.argsort(-counts)][:MAX_NUMBERED].tolist():
        inside = np.flatnonzero(segment == part)
        off = abs(x[inside] - np.median(x[inside])) + abs(y[inside] - np.median(y[inside]))
        home = inside[np.argmin(off)]
        dots.append(text(x[home], y[home] + size / 3, part, css="halo", size=size))
    crossing = edges[:, device[edges[0]] != device[edges[1]]]
    second = [f'<use href="#wires"/><path class="wires crossing" d="{wires(crossing)}"/>']
    for index in np.unique(device):
        dashes = "".join(f"M{at[n]}h.01" for n in np.flatnonzero(device == index))
        cap = ("round", "square")[index % 2]
        wide = 2 * radius * (1, 0.85)[index % 2]
        look = f'class="dots c{index % NUM_COLOURS}" stroke-linecap="{cap}" stroke-width="{wide:.3g}"'
        second.append(f'<path {look} d="{dashes}"/>')
    style = f"min-width:{0.62 * width:.0f}px"
    return (
        drawing(labels[0], wire + "".join(dots), width, height, style),
        drawing(labels[1], "".join(second), width, height, style),
    )


def draw_segments(edges: Ints, segment: Ints, device: Ints, labels: tuple[str, str]) -> tuple[str, str]:
    """Segments as discs (area: nodes) from left to right by mean depth; then the same as pies of devices."""
    depth = depths(edges, len(segment))
    sizes = np.bincount(segment)
    kept = np.argsort(-sizes, kind="stable")[: min(MAX_BLOBS, int((sizes > 0).sum()))]
    mean = np.bincount(segment, weights=depth) / np.maximum(sizes, 1)
    kept = kept[np.argsort(mean[kept], kind="stable")]
    pairs, counts = quotient(edges, segment)
    shown = np.isin(pairs, kept).all(axis=0)
    colour, width, height = colours(pairs, len(sizes)), 1080.0, 440.0
    radius = np.sqrt(sizes / sizes[kept].sum() * 0.2 * width * height / np.pi).clip(3, 60)
    even = np.argsort(np.argsort(mean)) / max(len(mean) - 1, 1)
    x = 70 + (width - 140) * (mean / max(mean.max(), 1) + even) / 2
    y, done = np.full(len(sizes), height / 2), np.zeros(0, np.int64)
    for part in kept:
        near = np.r_[pairs[0][pairs[1] == part], pairs[1][pairs[0] == part]]
        near = near[np.isin(near, done)]
        wanted = y[near].mean() if near.size else height / 2
        choices = np.arange(radius[part] + 6, height - radius[part] - 5, 4.0)
        gap = np.hypot(x[done, None] - x[part], y[done, None] - choices) - radius[done, None] - radius[part]
        overlap = np.maximum(6 - gap, 0).sum(axis=0)
        y[part] = choices[np.argmin(1000 * overlap + abs(choices - wanted))]
        done = np.append(done, part)
    thick = 0.6 + 5 * np.log1p(counts) / np.log1p(counts.max(initial=1))
    wire = "".join(
        f'<path class="wires" stroke-width="{w:.2g}" d="M{x[a]:.4g} {y[a]:.4g}'
        f'C{(x[a] + x[b]) / 2:.4g} {y[a]:.4g} {(x[a] + x[b]) / 2:.4g} {y[b]:.4g} {x[b]:.4g} {y[b]:.4g}"/>'
        for (a, b), w in zip(pairs[:, shown].T, thick[shown], strict=True)
    )
    first, second = [f'<g id="wires">{wire}</g>'], ['<use href="#wires"/>']
    for part in kept:
        where = f'cx="{x[part]:.4g}" cy="{y[part]:.4g}"'
        words = f"<title>segment {part}: {sizes[part]:,} nodes</title>"
        first.append(f'<circle class="blob c{colour[part]}" {where} r="{radius[part]:.3g}">{words}</circle>')
        start, r = 0.0, radius[part]
        share = 100 * np.bincount(device[segment == part]) / sizes[part]
        for index in np.flatnonzero(share):
            part_of = f'stroke-dasharray="{share[index]:.4g} 100" stroke-dashoffset="{-start:.4g}"'
            look = f'class="pie c{index % NUM_COLOURS}" stroke-width="{r:.3g}"'
            second.append(f'<circle {look} {where} r="{r / 2:.3g}" pathLength="100" {part_of}/>')
            start += share[index]
        if r >= 9:
            first.append(text(x[part], y[part] + 5, part, css="halo"))
    style = "min-width:670px"
    views = ("".join(first), "".join(second))
    one, other = (drawing(labels[i], views[i], width, height, style) for i in (0, 1))
    return one, other
