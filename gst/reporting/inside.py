"""What `report.js` needs to draw the operations within one segment, and the empty place it draws them in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from gst.reporting import charts, drawing

Edges = Int64[np.ndarray, "ends edges"]
PerNode = Int64[np.ndarray, " nodes"]

MAX_NODES, MAX_EDGES = 60_000, 150_000
"""Above either the page would be too large: it then shows segments alone."""


def inside(edges: Edges, segment: PerNode, device: PerNode, opcode: Sequence[str], names: Sequence[str]) -> str:
    """The place, hidden until the script has filled it, and the operations of all segments as JSON."""
    if len(segment) > MAX_NODES or edges.shape[1] > MAX_EDGES:
        most = f"{MAX_NODES:,} nodes or {MAX_EDGES:,} edges"
        return f'<p class="note-line">Of graphs beyond {most} no single operations are shown.</p>'
    known = json.dumps(_operations(edges, segment, device, opcode, names), separators=(",", ":"))
    known = known.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'{PLACE}<script type="application/json" id="operations">{known}</script>'


PLACE = (
    '<div id="inside" hidden><h3>Inside one segment</h3><p class="choose"><label>Segment '
    '<select></select></label> <span class="note-line">or choose a disc</span></p>'
    '<figure class="graph"><div class="scroll" tabindex="0" role="region" aria-label="Inside one segment"></div>'
    '<p class="told" aria-live="polite"></p><p class="joined"></p><figcaption>Each mark is one operation, its colour '
    "and shape tell its device as above; hover or tap one. Strong lines change device. In the drawing above the lines "
    "of this segment are red.</figcaption>"
    '<details><summary>The same in words</summary><div class="scroll" tabindex="0" role="region" '
    'aria-label="Operations of the segment"><table><thead><tr><th scope="col">node</th><th scope="col">operation</th>'
    '<th scope="col">device</th><th scope="col">reads</th></tr></thead><tbody></tbody></table></div></details>'
    "</figure></div>"
)


def _operations(
    edges: Edges, segment: PerNode, device: PerNode, opcode: Sequence[str], names: Sequence[str]
) -> dict[str, Any]:
    """Of each segment: node, opcode, device, column and lane (tenths) of its operations, and edges between them, as
    pairs of places in these lists. `between` holds triples: a segment, one that reads from it, how many edges."""
    words, code = np.unique(np.array([word[:60] for word in opcode]), return_inverse=True)
    inner = edges[:, segment[edges[0]] == segment[edges[1]]]
    column, lane = drawing.places(inner, segment)
    nodes = np.argsort(segment, kind="stable")
    first = np.cumsum(np.bincount(segment)) - np.bincount(segment)
    local = np.empty(len(segment), np.int64)
    local[nodes] = np.arange(len(segment)) - first[segment[nodes]]
    wires = inner[:, np.argsort(segment[inner[0]], kind="stable")]
    per_node = {"node": nodes, "opcode": code[nodes], "device": device[nodes], "column": column[nodes]}
    per_node["lane"] = np.rint(10 * lane[nodes]).astype(np.int64)
    pieces = {name: np.split(values, first[1:]) for name, values in per_node.items()}
    ends = np.searchsorted(segment[wires[0]], np.arange(1, len(first)))
    pieces["edges"] = [piece.T.reshape(-1) for piece in np.split(local[wires], ends, axis=1)]
    pairs, counts, _ = drawing.quotient(edges, segment, np.zeros(edges.shape[1], np.bool_))
    return {
        "opcodes": words.tolist(), "devices": list(names),
        "shapes": [drawing.shape_of(index) for index in range(len(names))], "colours": charts.NUM_COLOURS,
        "segments": [
            {name: piece[part].tolist() for name, piece in pieces.items()} for part in range(len(first))
        ],
        "between": np.concatenate([pairs, counts[None]]).T.reshape(-1).tolist(),
    }  # fmt: skip
