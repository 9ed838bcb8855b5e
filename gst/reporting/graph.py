"""The section that draws the program: coloured by segment, and by device in the best plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Int64

from gst import charts, drawing
from gst.reporting.page import empty, legend, rows, section, wide_figure
from gst.reporting.record import Record, device_names, graph_arrays

Edges = Int64[np.ndarray, "ends edges"]
PerNode = Int64[np.ndarray, " nodes"]

SEGMENT_COLOURS = (
    "Numbers name segments. Colours repeat after seven; segments that share an edge differ in colour where seven "
    "colours suffice."
)


def graph(record: Record) -> str:
    """Both drawings, each with a table beneath."""
    title = "The program as a graph"
    edges, segment, device, opcode = graph_arrays(record)
    if not segment.size:
        return section("graph", title, empty("The record holds no graph to draw."))
    names = device_names(record, device.tolist())
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
    moves = "Strong lines are values that travel between devices." if crossing else "No value changes device."
    if large:
        moves = "Each disc is divided by its nodes' devices."
    segments = _segment_table(segment, device, opcode, names)
    placed = _device_table(edges, device, opcode, names)
    one = wide_figure("By segment", by_segment, SEGMENT_COLOURS, segments, told=True)
    devices = _device_legend(device, names)
    other = wide_figure("By device, in the best plan", by_device, moves, placed, devices, told=True)
    return section("graph", title, told, one, other)


def _device_legend(device: PerNode, names: Mapping[int, str]) -> str:
    shapes = [f'<path class="mark" d="{charts.SHAPES[kind]}"/>' for kind in ("method", "baseline")]
    counts = zip(*(column.tolist() for column in np.unique(device, return_counts=True)), strict=True)
    return legend(
        (f"c{index % charts.NUM_COLOURS}", shapes[index % 2], f"{names[index]}: {count:,} nodes")
        for index, count in counts
    )


def _common(words: Iterable[str]) -> str:
    return ", ".join(f"{word[:40]} {count:,}" for word, count in Counter(words).most_common(3))


def _segment_table(segment: PerNode, device: PerNode, opcode: Sequence[str], names: Mapping[int, str]) -> str:
    lines = []
    for part in np.unique(segment).tolist()[: drawing.MAX_BLOBS]:
        inside = np.flatnonzero(segment == part).tolist()
        where = Counter(names[device[n]] for n in inside)
        lines.append((part, ", ".join(where), _common(opcode[n] for n in inside), f"{len(inside):,}"))
    return rows("Segments", ("segment", "devices", "most frequent operations", "nodes"), lines, words=3)


def _device_table(edges: Edges, device: PerNode, opcode: Sequence[str], names: Mapping[int, str]) -> str:
    lines = []
    for index in np.unique(device).tolist():
        inside = np.flatnonzero(device == index).tolist()
        sent, received = device[edges[0]] == index, device[edges[1]] == index
        counts = (len(inside), int((received & ~sent).sum()), int((sent & ~received).sum()))
        lines.append((names[index], _common(opcode[n] for n in inside), *(f"{count:,}" for count in counts)))
    return rows("Devices", ("device", "most frequent operations", "nodes", "edges in", "edges out"), lines, words=2)
