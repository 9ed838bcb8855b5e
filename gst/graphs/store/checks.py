"""Whether the arrays of a stored graph fit together: what its readers rely on, and may not find in a damaged store."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gst.graphs.segments import SegmentedGraph

DTYPES = {
    "owned_counts": np.int64, "row_ptr": np.int64, "edge_ptr": np.int64, "config_ptr": np.int64, "node_ids": np.int64,
    "node_features": np.float32, "opcodes": np.int32, "edges": np.int32, "config_rows": np.int32,
    "config_columns": np.int32, "targets": np.float64, "counts": np.int64, "spreads": np.float64,
}  # fmt: skip
"""Of each array of a `SegmentedGraph`, but for `config_features`, which are of int8 or float32."""


def check_layout(graph: SegmentedGraph) -> None:
    """Compare types and lengths, and the starts of segments, without reading what is as long as the graph.

    Raises:
        ValueError: an array is not as the others ask; the message names it.
    """
    for name, dtype in DTYPES.items():
        _require(getattr(graph, name).dtype == dtype, f"{name} is {getattr(graph, name).dtype}, want {dtype.__name__}")
    features = graph.config_features
    _require(features.dtype in (np.int8, np.float32), f"config_features is {features.dtype}, want int8 or float32")
    _require(isinstance(graph.name, str) and type(graph.num_nodes) is int, "its name or its number of nodes is none")
    _require(isinstance(graph.edge_cut, float | int) and 0 <= graph.edge_cut <= 1, "its edge cut is no share")
    rows, uses, segments, configs = (
        graph.node_ids.size, graph.config_rows.size, graph.owned_counts.size, graph.targets.size,
    )  # fmt: skip
    shapes = {
        "owned_counts": (segments,), "node_ids": (rows,), "node_features": (rows, -1), "opcodes": (rows,),
        "edges": (2, -1), "config_rows": (uses,), "config_columns": (uses,), "config_features": (configs, -1, -1),
        "targets": (configs,), "counts": (configs,), "spreads": (configs,),
    }  # fmt: skip
    for name, shape in shapes.items():
        found = tuple(getattr(graph, name).shape)
        fits = len(found) == len(shape) and all(want in (-1, got) for want, got in zip(shape, found, strict=True))
        _require(fits, f"{name} has shape {found}, want {shape}")
    for name, length in (("row_ptr", rows), ("edge_ptr", graph.edges.shape[1]), ("config_ptr", uses)):
        starts = getattr(graph, name)
        _require(starts.shape == (segments + 1,), f"{name} has shape {starts.shape}, want ({segments + 1},)")
        ordered = starts[0] == 0 and starts[-1] == length and bool((starts[1:] >= starts[:-1]).all())
        _require(ordered, f"{name} does not divide {length} entries among {segments} segments")
    owned = graph.owned_counts
    _require(bool((owned >= 0).all() and (owned <= np.diff(graph.row_ptr)).all()), "a segment owns more than it holds")
    _require(int(owned.sum()) == graph.num_nodes, f"its segments own {owned.sum()} nodes, want {graph.num_nodes}")


def check_indices(graph: SegmentedGraph) -> None:
    """Read all of it, segment by segment: every index leads to something.

    Raises:
        ValueError: one does not; the message names the array.
    """
    _require(_within(graph.node_ids, graph.num_nodes), "node_ids names a node that is not there")
    _require(_within(graph.opcodes, np.iinfo(np.int32).max), "opcodes holds negative numbers")
    columns = graph.config_features.shape[1]
    _require(_within(graph.config_columns, columns), f"config_columns names one of {columns} that is not there")
    for name, starts in (("edges", graph.edge_ptr), ("config_rows", graph.config_ptr)):
        indices = getattr(graph, name)
        for (start, end), size in zip(pairwise(starts.tolist()), np.diff(graph.row_ptr).tolist(), strict=True):
            inside = _within(indices[..., start:end], size)
            _require(inside, f"{name} names a row that is not in its segment, which has {size}")


def _within(indices: np.ndarray, count: int) -> bool:
    return not indices.size or bool(indices.min() >= 0 and indices.max() < count)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)
