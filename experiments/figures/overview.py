"""Picture of the whole project for README.md: graph, segments, table, prediction, placement loop, devices.

The picture brings its own background and two palettes, so that it is legible in light and dark at 800 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from experiments.figures.documents import ROOT

PICTURE = ROOT / "docs" / "overview.svg"
WIDTH, HEIGHT = 800, 408
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")  # Okabe and Ito, one for each segment
LINKS = ((0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5))  # edges of one segment
CROSSING = ((0, 5, 1, 2), (0, 4, 2, 0), (1, 4, 3, 0), (2, 5, 3, 2))  # segment, node, segment, node
LANES = (("cpu:0", (34, 52, 30)), ("cpu:1", (58, 26, 40)), ("cuda:0", (22, 70, 36)))

HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title">
<title id="title">A graph is cut into segments. Fresh segments are encoded with gradients, the others come from a table.
Both give a prediction, which ranks plans in the placement loop; the best plans are measured on the devices.</title>
<style>
text {{ font: 14px sans-serif; text-anchor: middle; fill: #1a1a1a }}
.head {{ font-weight: bold; font-size: 15px; text-anchor: start }} .note {{ font-size: 12.5px; fill: #4a4a4a }}
.ground {{ fill: #ffffff; stroke: #d0d0d0 }} .box {{ fill: #eef4fa; stroke: #5b7fa3 }}
.edge {{ stroke: #8a8a8a; fill: none }} .arrow {{ stroke: #444444; stroke-width: 1.6; fill: none }}
.tip {{ fill: #444444 }} .rule {{ stroke: #d0d0d0 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #f0f0f0 }} .note {{ fill: #c4c4c4 }} .ground {{ fill: #161b22; stroke: #444c56 }}
.box {{ fill: #22303f; stroke: #7fa6cc }} .edge {{ stroke: #8f98a3 }} .arrow {{ stroke: #d0d0d0 }}
.tip {{ fill: #d0d0d0 }} .rule {{ stroke: #444c56 }}
}}
</style>
<marker id="tip" viewBox="0 0 6 6" refX="5.5" refY="3" markerWidth="6" markerHeight="6" orient="auto">
<path class="tip" d="M0 0L6 3L0 6z"/></marker>
<rect class="ground" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>
"""


def picture() -> str:
    """Return the picture as SVG text, the same for every call."""
    return HEAD + "\n".join([*_training(), *_placement(), "</svg>\n"])


def _training() -> list[str]:
    """Draw the upper half: from the graph to the prediction."""
    return [
        _text(20, 28, "Train on segments", "head"),
        *_nodes(centre=(90, 108), apart=27),
        _text(90, 188, "graph"),
        _arrow(158, 108, 206, 108),
        _text(182, 98, "METIS", "note"),
        *_nodes(centre=(280, 108), apart=40),
        _text(280, 188, "segments"),
        _arrow(350, 84, 408, 72),
        _text(376, 62, "a few", "note"),
        _arrow(350, 132, 408, 146),
        _text(374, 162, "the rest", "note"),
        *_box(410, 44, 166, ("fresh segments:", "encoder, with gradients")),
        *_box(410, 122, 166, ("table: embeddings", "of earlier steps")),
        _arrow(576, 72, 624, 96),
        _arrow(576, 146, 624, 122),
        *_box(626, 81, 154, ("prediction,", "such as the runtime")),
    ]


def _placement() -> list[str]:
    """Draw the lower half: the loop and the devices."""
    return [
        f'<path class="rule" d="M20 206H{WIDTH - 20}"/>',
        _text(20, 234, "Place and measure", "head"),
        *_devices(left=20, top=254),
        _text(150, 384, "devices of this machine"),
        _arrow(703, 137, 703, 244),
        _text(750, 190, "cost model", "note"),
        *_box(410, 246, 166, ("propose plans: base-", "lines, search, policies")),
        _arrow(576, 274, 624, 274),
        *_box(626, 246, 154, ("rank plans: simu-", "lator or cost model")),
        _arrow(703, 302, 703, 356, 580, 356),
        *_box(410, 328, 166, ("measure the best,", "and plain PyTorch")),
        _arrow(493, 328, 493, 304),
        _text(568, 319, "corrects costs", "note"),
        _arrow(408, 340, 298, 340),
        _text(353, 332, "real runs", "note"),
    ]


def _nodes(centre: tuple[float, float], apart: float) -> list[str]:
    """Draw four segments of six nodes; edges between segments only where these touch."""
    corners = [(centre[0] + x * apart, centre[1] + y * apart) for y in (-1, 1) for x in (-1, 1)]
    places = [
        [(x + 17 * math.cos(turn * math.pi / 3 + 0.3), y + 17 * math.sin(turn * math.pi / 3 + 0.3))
         for turn in (3, 4, 2, 5, 1, 0)] for x, y in corners
    ]  # fmt: skip
    pairs = [(places[each][start], places[each][end]) for each in range(4) for start, end in LINKS]
    if apart < 30:
        pairs += [(places[one][start], places[other][end]) for one, start, other, end in CROSSING]
    edges = [f'<path class="edge" d="M{x:.0f} {y:.0f}L{a:.0f} {b:.0f}"/>' for (x, y), (a, b) in pairs]
    return edges + [
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="5" fill="{colour}"/>'
        for part, colour in zip(places, COLOURS, strict=True) for x, y in part
    ]  # fmt: skip


def _devices(left: float, top: float) -> list[str]:
    """Draw a timeline for each device."""
    lines = []
    for row, (name, widths) in enumerate(LANES):
        x, y = left + 62 + 14 * row, top + 36 * row
        lines += [_text(left + 24, y + 18, name), f'<path class="edge" d="M{left + 56} {y + 26}H{left + 270}"/>']
        for place, width in enumerate(widths):
            colour = COLOURS[(place + row) % len(COLOURS)]
            lines.append(f'<rect x="{x:.0f}" y="{y}" width="{width}" height="24" rx="3" fill="{colour}"/>')
            x += width + 8
    return lines


def _box(x: float, y: float, width: float, lines: Sequence[str]) -> list[str]:
    middle = x + width / 2
    words = [_text(middle, y + 24 + 19 * number, line) for number, line in enumerate(lines)]
    return [f'<rect class="box" x="{x}" y="{y}" width="{width}" height="56" rx="6"/>', *words]


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{escape(words)}</text>'


def _arrow(*points: float) -> str:
    pairs = "L".join(f"{x:g} {y:g}" for x, y in zip(points[::2], points[1::2], strict=True))
    return f'<path class="arrow" d="M{pairs}" marker-end="url(#tip)"/>'
