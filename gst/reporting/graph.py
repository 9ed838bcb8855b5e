"""Drawing of the program: segments as discs, with the devices of the best plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gst.reporting.charts import NUM_COLOURS, Floats, Ints, drawing, escape, shape_of, text
from gst.reporting.headline import device_names, graph_arrays
from gst.reporting.page import Record, legend, rows, section, wide_figure

MAX_DISCS, MAX_WIRES = 400, 2_000  # the largest segments and the strongest bundles of edges are drawn
WIDTH, HEIGHT = 1080.0, 440.0
TEXTURES = ("", "M-2 2L2-2M0 8L8 0M6 10L10 6", "M2 2h.01M6 6h.01", "M0 4H8")
"""Patterns that cover the areas of devices, so that devices differ by more than colour."""


def graph(record: Record) -> str:
    """Return the segments as a drawing with tables."""
    title = "The program as a graph"
    edges, segment, device, opcode = graph_arrays(record)
    if not segment.size:
        return ""
    segment = in_flow_order(edges, segment)
    used, device = np.unique(device, return_inverse=True)
    every = device_names(record, used.tolist())
    names = [every[index] for index in used.tolist()]
    num_segments = int(segment.max()) + 1
    crossing = int((device[edges[0]] != device[edges[1]]).sum())
    cut = int((segment[edges[0]] != segment[edges[1]]).sum())
    told = (
        f"<p>{len(segment):,} nodes and {edges.shape[1]:,} edges, cut into {num_segments:,} segments. Each disc is a "
        f"segment, its area the number of its nodes, its wedges their devices in the best plan; data flows from left to"
        f" right. Lines bundle the {cut:,} edges between segments; {crossing:,} edges join two devices.</p>"
    )
    sizes = ", ".join(f"{count:,} nodes on {name}" for name, count in zip(names, np.bincount(device), strict=True))
    svg = draw_segments(edges, segment, device, names, f"The {num_segments:,} segments of the graph", sizes)
    tables = _segment_table(segment, device, opcode, names) + _device_table(edges, device, opcode, names)
    shown = wide_figure("Segments", svg, _caption(num_segments, crossing), tables, _device_legend(device, names))
    return section("graph", title, told, shown)


def _caption(num_segments: int, crossing: int) -> str:
    words = "Numbers name segments. "
    words += "Strong lines hold at least one value that changes device." if crossing else "No value changes device."
    if num_segments > MAX_DISCS:
        words += f" The {MAX_DISCS} largest of {num_segments:,} segments are drawn."
    return words


def _device_legend(device: Ints, names: Sequence[str]) -> str:
    counts = np.bincount(device).tolist()
    return legend(
        (
            f"c{index % NUM_COLOURS}",
            f'<path class="mark" style="fill:url(#device-{index})" transform="scale(1.5)" d="{shape_of(index)}"/>',
            f"{name}: {count:,} nodes",
        )
        for index, (name, count) in enumerate(zip(names, counts, strict=True))
    )


def _common(words: Iterable[str]) -> str:
    return ", ".join(f"{word[:40]} {count:,}" for word, count in Counter(words).most_common(3))


def _segment_table(segment: Ints, device: Ints, opcode: Sequence[str], names: Sequence[str]) -> str:
    lines = []
    sizes, order = np.bincount(segment), np.argsort(segment, kind="stable")
    parts = np.split(order, np.cumsum(sizes)[:-1])
    for part in _largest(sizes).tolist():
        nodes = parts[part]
        where = Counter(names[index] for index in device[nodes].tolist())
        lines.append((part, ", ".join(where), _common(opcode[n] for n in nodes.tolist()), f"{len(nodes):,}"))
    heads = ("segment", "devices", "most frequent operations", "nodes")
    return rows("Segments", heads, lines, words=3, anchor="segment-")


def _largest(sizes: Ints) -> Ints:
    """Return the numbers of the segments that are drawn, ascending."""
    return np.sort(np.argsort(-sizes, kind="stable")[:MAX_DISCS])


def _device_table(edges: Ints, device: Ints, opcode: Sequence[str], names: Sequence[str]) -> str:
    lines = []
    for index, name in enumerate(names):
        nodes = np.flatnonzero(device == index).tolist()
        sent, received = device[edges[0]] == index, device[edges[1]] == index
        counts = (len(nodes), int((received & ~sent).sum()), int((sent & ~received).sum()))
        lines.append((name, _common(opcode[n] for n in nodes), *(f"{count:,}" for count in counts)))
    return rows("Devices", ("device", "most frequent operations", "nodes", "edges in", "edges out"), lines, words=2)


def depths(edges: Ints, num_nodes: int) -> Ints:
    """Return layers by longest path, each node then moved right, next to its first reader; cycles come last."""
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


def in_flow_order(edges: Ints, segment: Ints) -> Ints:
    """Return the segment of each node, renumbered from 0 in the order of the data flow (by mean depth)."""
    _, segment = np.unique(segment, return_inverse=True)
    mean = np.bincount(segment, depths(edges, len(segment))) / np.bincount(segment)
    rank = np.empty(len(mean), np.int64)
    rank[np.argsort(mean, kind="stable")] = np.arange(len(mean))
    return rank[segment]


def quotient(edges: Ints, part: Ints, marked: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Return the pairs of different parts that edges join, their numbers of edges, and of `marked` edges."""
    pairs = part[edges]
    different = pairs[0] != pairs[1]
    unique, index = np.unique(pairs[:, different], axis=1, return_inverse=True)
    index = index.reshape(-1)
    counts = np.bincount(index, minlength=unique.shape[1])
    return unique, counts, np.bincount(index[marked[different]], minlength=unique.shape[1])


def draw_segments(edges: Ints, segment: Ints, device: Ints, names: Sequence[str], label: str, description: str) -> str:
    """Draw segments as discs (area: nodes; wedges: devices) from left to right, and bundles of edges between them.

    Each disc is a link to `#segment-N`. `segment` is numbered by `in_flow_order`, `device` an index of `names`.
    """
    sizes = np.bincount(segment)
    kept = _largest(sizes)
    pairs, counts, crossing = quotient(edges, segment, device[edges[0]] != device[edges[1]])
    shown = np.flatnonzero(np.isin(pairs, kept).all(axis=0))
    shown = shown[np.argsort(-counts[shown], kind="stable")[:MAX_WIRES]]
    x, y, radius = _discs(sizes, kept, pairs)
    y -= (y - radius)[kept].min() - 6
    height = (y + radius)[kept].max() + 6
    thick = 0.8 + 5 * np.log1p(counts) / np.log1p(counts.max(initial=1))
    out = [_patterns(len(names))]
    for at in shown.tolist():
        (a, b), middle = pairs[:, at].tolist(), x[pairs[:, at]].mean()
        words = f"segment {a} to {b}: {counts[at]:,} edges, {crossing[at]:,} of them between devices"
        path = f"M{x[a]:.4g} {y[a]:.4g}C{middle:.4g} {y[a]:.4g} {middle:.4g} {y[b]:.4g} {x[b]:.4g} {y[b]:.4g}"
        css = "wires crossing" if crossing[at] else "wires"
        out.append(f'<path class="{css}" stroke-width="{thick[at]:.2g}" d="{path}"><title>{words}</title></path>')
    share = np.zeros((len(sizes), len(names)))
    np.add.at(share, (segment, device), 1)
    for part in kept.tolist():
        out.append(_disc(part, x[part], y[part], radius[part], share[part], names))
    return drawing(label, "".join(out), WIDTH, height, "min-width:640px", description, role="group")


def _disc(part: int, x: float, y: float, radius: float, share: Floats, names: Sequence[str]) -> str:
    total, start, wedges, where = share.sum(), 0.0, [], f'cx="{x:.4g}" cy="{y:.4g}"'
    for index in np.flatnonzero(share).tolist():
        length = 100 * share[index] / total
        dashes = f'stroke-dasharray="{length:.4g} 100" stroke-dashoffset="{-start:.4g}"'
        look = f'stroke="url(#device-{index})" stroke-width="{radius:.3g}"'
        wedges.append(f'<circle class="pie" {look} {where} r="{radius / 2:.3g}" pathLength="100" {dashes}/>')
        start += length
    counts = ", ".join(f"{share[index]:,.0f} on {names[index]}" for index in np.flatnonzero(share).tolist())
    words = escape(f"segment {part}: {total:,.0f} nodes, {counts}")
    number = text(x, y + 5, part, css="halo") if radius >= 9 else ""
    return (
        f'<a href="#segment-{part}" data-segment="{part}" aria-label="{words}"><title>{words}</title>{"".join(wedges)}'
        f'<circle class="rim" {where} r="{radius:.3g}"/>{number}</a>'
    )


def _discs(sizes: Ints, kept: Ints, pairs: Ints) -> tuple[Floats, Floats, Floats]:
    """Return x, y and radius of the discs, placed one after the other near their neighbours without overlap."""
    radius = np.sqrt(sizes / sizes[kept].sum() * 0.12 * WIDTH * HEIGHT / np.pi).clip(4, 60)
    x = np.linspace(64, WIDTH - 64, len(sizes)) if len(sizes) > 1 else np.full(1, WIDTH / 2)
    y, done = np.full(len(sizes), HEIGHT / 2), np.zeros(0, np.int64)
    closer = np.clip(60 / len(kept), 1, 3)  # few discs stand in several rows, so that lines pass between them
    for part in kept.tolist():
        near = np.r_[pairs[0][pairs[1] == part], pairs[1][pairs[0] == part]]
        near = near[np.isin(near, done)]
        wanted = y[near].mean() if near.size else HEIGHT / 2
        choices = np.arange(radius[part] + 4, HEIGHT - radius[part] - 3, 4.0)
        gap = np.hypot((x[done, None] - x[part]) / closer, y[done, None] - choices) - radius[done, None] - radius[part]
        overlap = np.maximum(8 + radius[part] / 2 - gap, 0).sum(axis=0)
        y[part] = choices[np.argmin(1000 * overlap + abs(choices - wanted))]
        done = np.append(done, part)
    return x, y, radius


def _patterns(num_devices: int) -> str:
    """Return the patterns that fill the areas of each device."""
    return (
        "<defs>"
        + "".join(
            f'<pattern id="device-{index}" class="c{index % NUM_COLOURS}" width="8" height="8" '
            f'patternUnits="userSpaceOnUse"><path class="ground" d="M0 0h8v8H0z"/>'
            f'<path class="texture" d="{TEXTURES[index % len(TEXTURES)]}"/></pattern>'
            for index in range(num_devices)
        )
        + "</defs>"
    )
