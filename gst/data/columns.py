"""The 140 node features of TpuGraphs: names of the columns, numbers of opcodes, and lengths of the lists in them.

The columns hold the first few numbers of each list of an instruction and zeros after them; no column holds the length.
Lengths follow from other columns: a window has as many dimensions as it has flags of reversal, an array as many as its
layout orders, and the definition of an opcode says what its instructions list (the operation semantics of XLA).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.graphs.graph import Graph

ELEMENT_TYPES = {
    "invalid_type": 0, "pred": 1, "s8": 2, "s16": 3, "s32": 4, "s64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9,
    "f16": 10, "f32": 11, "f64": 12, "bf16": 16, "c64": 15, "c128": 18, "tuple": 13, "opaque_type": 14, "token": 17,
}  # fmt: skip
"""Types of elements that have a column, in the order of the columns, with their number in `xla_data.proto`. An array of
another type (f8e4m3fn, s4, ...) has a zero in all of them."""

WINDOW_NUMBERS = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")


def _named(name: str, length: int, *totals: str) -> list[str]:
    return [f"{name}_{end}" for end in (*range(length), *totals)]


def _totalled(name: str, length: int) -> list[str]:
    return _named(name, length, "sum", "product")


NODE_FEATURES = (
    "is_root",
    "element_size_in_bits",
    *(f"shape_element_type_is_{name}" for name in ELEMENT_TYPES),
    *_totalled("shape_dimensions", 6),
    "shape_tuple_shapes_size",
    "parameter_number",
    *_named("dimensions", 6),
    *(name for part in WINDOW_NUMBERS for name in _totalled(f"window_{part}", 6)),
    *_named("window_window_reversal", 6, "true_count", "false_count"),
    *(f"convolution_dim_numbers_input_{name}_dim" for name in ("batch", "feature")),
    *_named("convolution_dim_numbers_input_spatial_dims", 4),
    *(f"convolution_dim_numbers_kernel_{name}_feature_dim" for name in ("input", "output")),
    *_named("convolution_dim_numbers_kernel_spatial_dims", 4),
    *(f"convolution_dim_numbers_output_{name}_dim" for name in ("batch", "feature")),
    "feature_group_count",
    "batch_group_count",
    *(name for part in ("start", "stride", "limit") for name in _totalled(f"slice_dims_{part}", 2)),
    *_totalled("dynamic_slice_sizes", 2),
    *(name for end in ("low", "high") for name in _totalled(f"padding_config_edge_padding_{end}", 2)),
    "is_stable",
    *_named("layout_minor_to_major", 6),
)
"""Names of the columns, as in the README of google-research-datasets/tpu_graphs. A list of numbers fills columns with
its first few numbers, padded with 0, and some lists with their sum and product (1 for an empty list). Column 1 is 0."""

_IN_ORDER = """
    unknown abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad batch-norm-inference
    batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky clamp collective-permute
    count-leading-zeros compare complex concatenate conditional constant convert convolution copy copy-done copy-start
    cosine custom-call divide domain dot dynamic-slice dynamic-update-slice exponential exponential-minus-one fft floor
    fusion gather get-dimension-size set-dimension-size get-tuple-element imag infeed iota is-finite log log-plus-one
    and not or xor map maximum minimum multiply negate outfeed pad parameter partition-id popcnt power real recv
    recv-done reduce reduce-precision reduce-window remainder replica-id reshape reverse rng rng-get-and-update-state
    rng-bit-generator round-nearest-afz rsqrt scatter select select-and-scatter send send-done shift-left
    shift-right-arithmetic shift-right-logical sign sine slice sort sqrt subtract tanh trace transpose triangular-solve
    tuple tuple-select while cbrt all-gather collective-permute-start collective-permute-done logistic dynamic-reshape
    all-reduce-start all-reduce-done reduce-scatter all-gather-start all-gather-done opt-barrier async-start
    async-update async-done round-nearest-even stochastic-convert tan
"""
OPCODE_NAMES = tuple(_IN_ORDER.split())
"""Name of each opcode number (`LEARNED_HLO_OPCODE_LIST` in hlo_opcode.h of google-research-datasets/tpu_graphs); 0
stands for every opcode that is not in the list (`erf`, `topk`, ...)."""

_NUMBERS = {name: number for number, name in enumerate(OPCODE_NAMES)}
CONFIGURABLE = frozenset(_NUMBERS[name] for name in ("convolution", "dot", "reshape"))
"""Opcodes whose layouts TpuGraphs configures: in alexnet and unet_3d every instruction of these, and no other."""

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


def opcode_number(name: str) -> int:
    """Number of an opcode in TpuGraphs, 0 for one that it does not list.

    Examples:
        >>> opcode_number("dot"), opcode_number("topk")
        (34, 0)
    """
    return _NUMBERS.get(name, 0)


def entries(name: str) -> list[str]:
    """Names of the columns that hold the first few numbers of a list.

    Examples:
        >>> entries("dynamic_slice_sizes")
        ['dynamic_slice_sizes_0', 'dynamic_slice_sizes_1']
    """
    return [column for column in NODE_FEATURES if column.startswith(f"{name}_") and column[len(name) + 1 :].isdigit()]


def is_opcode(graph: Graph, *names: str) -> Bool[np.ndarray, " nodes"]:
    """Whether each node has one of these opcodes."""
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
