"""The section that draws the program: its segments first, with the devices of the best plan, then one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

from gst.reporting import charts, drawing
from gst.reporting.inside import inside
from gst.reporting.page import empty, legend, rows, section, wide_figure
from gst.reporting.record import Record, device_names, graph_arrays

Edges = Int64[np.ndarray, "ends edges"]
PerNode = Int64[np.ndarray, " nodes"]


def graph(record: Record) -> str:
    """The segments as a drawing with tables beneath, and what a script needs to draw the inside of one."""
    title = "The program as a graph"
    edges, segment, device, opcode = graph_arrays(record)
    if not segment.size:
        return section("graph", title, empty("The record holds no graph to draw."))
    segment = drawing.in_flow_order(edges, segment)
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
    svg = drawing.draw_segments(edges, segment, device, names, f"The {num_segments:,} segments of the graph", sizes)
    tables = _segment_table(segment, device, opcode, names) + _device_table(edges, device, opcode, names)
    shown = wide_figure("Segments", svg, _caption(num_segments, crossing), tables, _device_legend(device, names))
    return section("graph", title, told, shown, inside(edges, segment, device, opcode, names))


def _caption(num_segments: int, crossing: int) -> str:
    words = "Numbers name segments. "
    words += "Strong lines hold at least one value that changes device." if crossing else "No value changes device."
    if num_segments > drawing.MAX_DISCS:
        words += f" The {drawing.MAX_DISCS} largest of {num_segments:,} segments are drawn."
    return words


def _device_legend(device: PerNode, names: Sequence[str]) -> str:
    counts = np.bincount(device).tolist()
    return legend(
        (
            f"c{index % charts.NUM_COLOURS}",
            f'<path class="mark" style="fill:url(#device-{index})" transform="scale(1.5)" '
            f'd="{drawing.shape_of(index)}"/>',
            f"{name}: {count:,} nodes",
        )
        for index, (name, count) in enumerate(zip(names, counts, strict=True))
    )


def _common(words: Iterable[str]) -> str:
    return ", ".join(f"{word[:40]} {count:,}" for word, count in Counter(words).most_common(3))


def _segment_table(segment: PerNode, device: PerNode, opcode: Sequence[str], names: Sequence[str]) -> str:
    lines = []
    order = np.argsort(segment, kind="stable")
    for part, nodes in enumerate(np.split(order, np.cumsum(np.bincount(segment))[:-1])[: drawing.MAX_DISCS]):
        where = Counter(names[index] for index in device[nodes].tolist())
        lines.append((part, ", ".join(where), _common(opcode[n] for n in nodes.tolist()), f"{len(nodes):,}"))
    heads = ("segment", "devices", "most frequent operations", "nodes")
    return rows("Segments", heads, lines, words=3, anchor="segment-")


def _device_table(edges: Edges, device: PerNode, opcode: Sequence[str], names: Sequence[str]) -> str:
    lines = []
    for index, name in enumerate(names):
        nodes = np.flatnonzero(device == index).tolist()
        sent, received = device[edges[0]] == index, device[edges[1]] == index
        counts = (len(nodes), int((received & ~sent).sum()), int((sent & ~received).sum()))
        lines.append((name, _common(opcode[n] for n in nodes), *(f"{count:,}" for count in counts)))
    return rows("Devices", ("device", "most frequent operations", "nodes", "edges in", "edges out"), lines, words=2)
