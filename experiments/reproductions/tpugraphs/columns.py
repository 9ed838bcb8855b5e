"""Lists in the 140 node features of TpuGraphs (`gst.data.tpugraphs`): their columns, operands, ranks and lengths.

The columns hold the first few numbers of each list of an instruction and zeros after them; no column holds the length.
Lengths follow from other columns: a window has as many dimensions as it has flags of reversal, an array as many as its
layout orders, and the definition of an opcode says what its instructions list (the operation semantics of XLA).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.data.tpugraphs import NODE_FEATURES, OPCODE_NAMES
from gst.graphs.graph import Graph

Columns = dict[str, Float64[np.ndarray, " nodes"]]
"""Columns of node features by name."""

OF_WINDOWS = tuple(
    f"window_{name}"
    for name in ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation", "window_reversal")
)
OF_CONVOLUTIONS = tuple(f"convolution_dim_numbers_{side}_spatial_dims" for side in ("input", "kernel"))
OF_RANK = {
    **dict.fromkeys(("slice_dims_start", "slice_dims_stride", "slice_dims_limit"), "slice"),
    "dynamic_slice_sizes": "dynamic-slice",
    **dict.fromkeys(("padding_config_edge_padding_low", "padding_config_edge_padding_high"), "pad"),
}
"""Lists with one number for each dimension of the array, and the opcode that has them."""
SHAPE, LAYOUT, DIMENSIONS = "shape_dimensions", "layout_minor_to_major", "dimensions"
ONE_DIMENSION = (
    "concatenate", "iota", "sort", "all-gather", "all-to-all", "reduce-scatter", "get-dimension-size",
    "set-dimension-size",
)  # fmt: skip


def entries(name: str) -> list[str]:
    """Names of the columns that hold the first few numbers of a list.

    Examples:
        >>> entries("dynamic_slice_sizes")
        ['dynamic_slice_sizes_0', 'dynamic_slice_sizes_1']
    """
    return [column for column in NODE_FEATURES if column.startswith(f"{name}_") and column[len(name) + 1 :].isdigit()]


def is_opcode(graph: Graph, *names: str) -> Bool[np.ndarray, " nodes"]:
    """Mark the nodes that have one of these opcodes."""
    return np.isin(graph.opcodes, [OPCODE_NAMES.index(name) for name in names])


def ranks(columns: Columns) -> Int64[np.ndarray, " nodes"]:
    """Number of dimensions of each array, 6 at most; 0 for scalars and for what is no array.

    The layout orders 0 .. rank - 1, so its largest number tells a rank of 2 or more. An array of one dimension has a
    size or, if that is 0, no elements, where a scalar has one.
    """
    sizes, order = table(columns, SHAPE), table(columns, LAYOUT)
    from_layout = np.where(order.any(axis=1), order.max(axis=1) + 1, 0)
    least = np.maximum(_last_nonzero(sizes), (columns[f"{SHAPE}_product"] == 0).astype(np.int64))
    return np.minimum(np.maximum(from_layout, least), 6).astype(np.int64)


def operands(graph: Graph, columns: Columns) -> Int64[np.ndarray, "2 operands"]:
    """Edges from an operand to its user. All other edges lead from the root of a computation to its caller."""
    return graph.edges[:, columns["is_root"][graph.edges[0]] == 0]


def list_lengths(graph: Graph, columns: Columns) -> dict[str, Int64[np.ndarray, " nodes"]]:
    """Number of columns of each list that hold an entry of the list and not padding, by node.

    A zero at the end of the dimensions of a `reverse`, or of a reduction of several arrays at once, cannot be told
    from padding and counts as padding.
    """
    rank = ranks(columns)
    window = columns["window_window_reversal_true_count"] + columns["window_window_reversal_false_count"]
    spatial = np.where(is_opcode(graph, "convolution"), window, 0)
    has_layout = (rank == 1) | table(columns, LAYOUT).any(axis=1)
    lengths = {
        SHAPE: rank,
        LAYOUT: np.where(has_layout, rank, 0),
        DIMENSIONS: _dimensions(graph, columns, rank),
        **dict.fromkeys(OF_WINDOWS, window),
        **dict.fromkeys(OF_CONVOLUTIONS, spatial),
        **{name: np.where(is_opcode(graph, opcode), rank, 0) for name, opcode in OF_RANK.items()},
    }
    return {
        name: np.clip(length, _last_nonzero(table(columns, name)), len(entries(name))).astype(np.int64)
        for name, length in lengths.items()
    }


def _dimensions(graph: Graph, columns: Columns, rank: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Length of `dimensions`: rank of a broadcast's operand, rank of a transpose or map, axes that a reduce removes."""
    of_operand = np.zeros(graph.num_nodes, np.int64)
    producers, consumers = operands(graph, columns)
    np.maximum.at(of_operand, consumers, rank[producers])
    is_array = columns["shape_element_type_is_tuple"] == 0
    length = np.where(is_opcode(graph, "broadcast"), of_operand, 0)
    length = np.where(is_opcode(graph, "reduce") & is_array, of_operand - rank, length)
    length = np.where(is_opcode(graph, "transpose", "map"), rank, length)
    return np.where(is_opcode(graph, *ONE_DIMENSION), 1, length)


def table(columns: Columns, name: str) -> Float64[np.ndarray, "nodes entries"]:
    """The columns of a list, side by side."""
    return np.stack([columns[column] for column in entries(name)], axis=1)


def _last_nonzero(table: Float64[np.ndarray, "nodes entries"]) -> Int64[np.ndarray, " nodes"]:
    """Place of the last nonzero number of each row, counted from 1; 0 for a row of zeros."""
    return np.asarray(((table != 0) * np.arange(1, table.shape[1] + 1)).max(axis=1))
