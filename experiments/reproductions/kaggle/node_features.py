"""Node features derived from the 140 columns of TpuGraphs, each switched on by its name.

The columns are those of the dataset (Phothilimthana et al. 2023, arXiv 2308.13490), named by its README and in
`gst.data.tpugraphs.NODE_FEATURES`. Graphs with dropped columns are refused, because the remaining ones cannot be told
apart. No feature reads the order of operands: edges, here and in the published files, are a set. `costs` infers the
order from sizes where it needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.tpugraphs.columns import (
    LAYOUT,
    OF_CONVOLUTIONS,
    SHAPE,
    Columns,
    entries,
    is_opcode,
    list_lengths,
    operands,
    ranks,
    table,
)
from gst.data.tpugraphs import NODE_FEATURES
from gst.graphs.graph import Graph

ABSENT = -1.0
ELEMENT_TYPE = "shape_element_type_is_"  # begin the names of the columns of types
LANES, SUBLANES = 128, 8  # of a tile of the TPU
MODULO_COLUMNS = tuple(f"{column}_modulo_{size}" for size in (LANES, SUBLANES) for column in entries(SHAPE))
TILE_COLUMNS = ("default_layout_tiles", "default_layout_padding_share")
COST_COLUMNS = ("flops", "bytes_written", "bytes_read")
ELEMENTWISE = (
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert", "cosine",
    "count-leading-zeros", "divide", "exponential", "exponential-minus-one", "floor", "imag", "is-finite", "log",
    "log-plus-one", "logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power",
    "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "stochastic-convert",
    "subtract", "tan", "tanh", "xor",
)  # fmt: skip
NOTHING_MOVED = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
PARTLY_READ = ("slice", "dynamic-slice", "gather")
BYTES = {"s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
         "c64": 8, "c128": 16}  # fmt: skip
"""Bytes of one element; 1 for any type that is not listed."""


def enrich(graph: Graph, names: Sequence[str]) -> Graph:
    """`graph` with the named derived features. They are computed in the order of `FEATURES`, whatever the order of
    `names`; new columns follow the 140 in that order.

    Raises:
        ValueError: there is no such feature, or the graph lacks what one of them reads.
    """
    check_features(names)
    if not names:
        return graph
    width = graph.node_features.shape[1]
    if width != len(NODE_FEATURES):
        raise ValueError(
            f"graph {graph.name!r} has {width} node features, but {', '.join(names)} read the {len(NODE_FEATURES)} "
            "columns of TpuGraphs by position; give the whole file, or leave features out"
        )
    columns = dict(zip(NODE_FEATURES, graph.node_features.T.astype(np.float64), strict=True))
    for name, feature in FEATURES.items():
        if name in names:
            columns |= feature(graph, columns)
    return replace(graph, node_features=np.stack(list(columns.values()), axis=1).astype(np.float32))


def check_features(names: Sequence[str]) -> None:
    """Refuse names that `FEATURES` lacks.

    Examples:
        >>> check_features(["costs", "flops"])
        Traceback (most recent call last):
        ValueError: there is no feature 'flops'; there are costs, modulo, tiles, padding
    """
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"there is no feature {name!r}; there are {', '.join(FEATURES)}")


def costs(graph: Graph, columns: Columns) -> Columns:
    """Floating point operations and bytes of each instruction, `COST_COLUMNS`, by the rules of XLA's `HloCostAnalysis`
    (openxla/xla, hlo_cost_analysis.cc) as far as columns allow. A called computation counts at its own instructions and
    not at its caller.

    - convolution: 2 x elements x kernel entries per element; positions of the window on padding count too.
    - dot: 2 x elements x the contracted size, inferred from sizes, exact for one contracted dimension.
    - reduce: elements of the largest operand minus its own; reduce-window: elements x (window - 1);
      select-and-scatter: elements x window / stride.
    - elementwise: one operation for each element, transcendental functions too. All others, which move data or call: 0.
    - bytes: elements x bytes of an element, written and read from operands; an operand that is used twice counts once.
      Slices and gathers read as much as they write. Tuples and other names for existing data move none.
    """
    elements, size = columns[f"{SHAPE}_product"], _bytes_of_array(columns)
    producers, consumers = operands(graph, columns)
    largest_operand = np.zeros(graph.num_nodes)
    np.maximum.at(largest_operand, consumers, elements[producers])
    window, stride = columns["window_size_product"], np.maximum(columns["window_stride_product"], 1)
    rules = (
        (ELEMENTWISE, elements),
        (("reduce",), np.maximum(largest_operand - elements, 0)),
        (("reduce-window",), elements * np.maximum(window - 1, 0)),
        (("select-and-scatter",), elements * window / stride),
        (("convolution", "dot"), 2 * elements * _multiplied(graph, columns)),
    )
    flops = np.zeros(graph.num_nodes)
    for opcodes, number in rules:
        flops = np.where(is_opcode(graph, *opcodes), number, flops)
    read = np.bincount(consumers, size[producers], graph.num_nodes)
    read = np.where(is_opcode(graph, *PARTLY_READ), np.minimum(read, size), read)
    moves = ~is_opcode(graph, *NOTHING_MOVED)
    return dict(zip(COST_COLUMNS, (flops, size * moves, read * moves), strict=True))


def modulo(graph: Graph, columns: Columns) -> Columns:
    """Every dimension modulo 128 and modulo 8, `MODULO_COLUMNS`, the remainder after whole tiles; -1 beyond the rank.
    The third place of the competition on TpuGraphs used quotients and remainders (github.com/jafluri/kaggle_tpu_graph).
    """
    sizes, rank = table(columns, SHAPE), ranks(columns)
    present = np.arange(sizes.shape[1]) < rank[:, None]
    remainders = [np.where(present, sizes % size, ABSENT) for size in (LANES, SUBLANES)]
    return dict(zip(MODULO_COLUMNS, np.concatenate(remainders, axis=1).T, strict=True))


def tiles(graph: Graph, columns: Columns) -> Columns:
    """Number of tiles of each array and the share of padding in them, `TILE_COLUMNS`; -1 for what is no array, or has
    more dimensions than columns.

    A TPU stores the minor-most dimension in 128 lanes and the next one in 8 sublanes, both rounded up (Cloud TPU
    performance guide, section Padding). Of one dimension or none the tile is 128 elements. Minor-most is what the
    default layout of the node says, or the last dimension where there is no layout.
    """
    sizes, rank, elements = table(columns, SHAPE), ranks(columns), columns[f"{SHAPE}_product"]
    order = table(columns, LAYOUT).astype(np.int64)
    descending = np.maximum(rank[:, None] - 1 - np.arange(order.shape[1]), 0)
    order = np.where(order.any(axis=1, keepdims=True), order, descending)
    inside = order[:, :2].max(axis=1) < sizes.shape[1]
    chosen = np.take_along_axis(sizes, np.minimum(order[:, :2], sizes.shape[1] - 1), axis=1)
    minor = np.where(rank >= 1, chosen[:, 0], 1)
    second, rows = np.where(rank >= 2, chosen[:, 1], 1), np.where(rank >= 2, SUBLANES, 1)
    others = elements / np.maximum(minor * second, 1)
    count = np.ceil(minor / LANES) * np.ceil(second / rows) * others
    padding = 1 - elements / np.maximum(count * LANES * rows, 1)
    has_tiles = _is_array(columns) & inside
    share = np.where(count > 0, padding, 0.0)
    values = (np.where(has_tiles, count, ABSENT), np.where(has_tiles, share, ABSENT))
    return dict(zip(TILE_COLUMNS, values, strict=True))


def padding(graph: Graph, columns: Columns) -> Columns:
    """-1 in the columns beyond the end of a list, where the published columns have a 0 that may also be an entry.

    Also -1: totals of an empty list, whose product would be 1 (a scalar has one element, though), dimension numbers of
    what is no convolution, and parameter numbers of what is no parameter. The winners of the competition on TpuGraphs
    extracted their data again with this padding (TGraph, Khizbullin et al. 2024, arXiv 2405.16623;
    github.com/thanhhau097/google_fast_or_slow); here `list_lengths` reconstructs it.
    """
    changed: Columns = {}
    is_array = _is_array(columns)
    for name, length in list_lengths(graph, columns).items():
        for place, column in enumerate(entries(name)):
            changed[column] = np.where(place < length, columns[column], ABSENT)
        present = is_array if name == SHAPE else length > 0
        for total in ("sum", "product", "true_count", "false_count"):
            if f"{name}_{total}" in columns:
                changed[f"{name}_{total}"] = np.where(present, columns[f"{name}_{total}"], ABSENT)
    scalars = [name for name in NODE_FEATURES if name.startswith("convolution_") and name.endswith("_dim")]
    of_convolutions = [*scalars, *(column for name in OF_CONVOLUTIONS for column in entries(name))]
    convolves = is_opcode(graph, "convolution") | np.any([columns[column] != 0 for column in of_convolutions], axis=0)
    is_parameter = is_opcode(graph, "parameter") | (columns["parameter_number"] != 0)
    for column in scalars:
        changed[column] = np.where(convolves, columns[column], ABSENT)
    return changed | {"parameter_number": np.where(is_parameter, columns["parameter_number"], ABSENT)}


FEATURES: dict[str, Callable[[Graph, Columns], Columns]] = {
    "costs": costs, "modulo": modulo, "tiles": tiles, "padding": padding,
}  # fmt: skip
"""Functions from a graph and its columns so far to the columns that they add or change, in the order of computation:
those that read the published columns come before those that change them."""


def _is_array(columns: Columns) -> np.ndarray:
    return np.asarray(sum(columns[f"{ELEMENT_TYPE}{name}"] for name in ("tuple", "token", "opaque_type")) == 0)


def _bytes_of_array(columns: Columns) -> Float64[np.ndarray, " nodes"]:
    width = 1.0 + sum((size - 1) * columns[f"{ELEMENT_TYPE}{name}"] for name, size in BYTES.items())
    return np.asarray(columns[f"{SHAPE}_product"] * width * _is_array(columns))


def _multiplied(graph: Graph, columns: Columns) -> Float64[np.ndarray, " nodes"]:
    """Products that are summed for each element of a convolution or a dot, 0 for the other nodes."""
    sizes = table(columns, SHAPE).astype(np.int64)
    rank, edges = ranks(columns), operands(graph, columns)
    convolution = is_opcode(graph, "convolution")
    summed = np.zeros(graph.num_nodes)
    for node in np.flatnonzero(convolution | is_opcode(graph, "dot")):
        inputs = [sizes[operand, : rank[operand]] for operand in edges[0, edges[1] == node]]
        own = sizes[node, : rank[node]]
        if convolution[node]:
            summed[node] = _kernel_numbers({name: int(column[node]) for name, column in columns.items()}, own, inputs)
        elif inputs:
            summed[node] = _contracted(own, inputs[0], inputs[-1])
    return summed


def _kernel_numbers(columns: dict[str, int], own: Int64[np.ndarray, " dimensions"], inputs: list[np.ndarray]) -> float:
    """Window x input features of a group. The kernel is the operand whose sizes are those of the window and the output
    features; without such an operand the input features are unknown and count as one."""
    numbers = "convolution_dim_numbers"
    inward, outward = (columns[f"{numbers}_kernel_{way}_feature_dim"] for way in ("input", "output"))
    features = columns[f"{numbers}_output_feature_dim"]
    window = [columns[column] for column in entries("window_size") if columns[column]]
    places = [columns[column] for column in entries(f"{numbers}_kernel_spatial_dims")][: len(window)]

    def is_kernel(sizes: np.ndarray) -> bool:
        if max([inward, outward, *places]) >= len(sizes) or features >= len(own):
            return False
        return bool(sizes[outward] == own[features]) and sizes[places].tolist() == window[: len(places)]

    kernels = [sizes for sizes in inputs if is_kernel(sizes)]
    fitting = [kernel for kernel in kernels if any(_takes(columns, int(kernel[inward]), other) for other in inputs)]
    input_features = (fitting or kernels)[0][inward] if kernels else 1
    return float(columns["window_size_product"] * input_features)


def _takes(columns: dict[str, int], features: int, sizes: np.ndarray) -> bool:
    """True if an input of these sizes fits a kernel of `features` input features for each group."""
    place = columns["convolution_dim_numbers_input_feature_dim"]
    return place < len(sizes) and bool(sizes[place] == features * max(columns["feature_group_count"], 1))


def _contracted(
    own: Int64[np.ndarray, " dimensions"], left: Int64[np.ndarray, " left"], right: Int64[np.ndarray, " right"]
) -> float:
    """The size that a dot sums over: its result is batch x rows x columns, its operands batch x rows x size and
    batch x size x columns. Batch dimensions come first and are in both operands."""
    batch = max(len(left) + len(right) - len(own) - 2, 0)
    while batch and not (_contains(left, own[:batch]) and _contains(right, own[:batch])):
        batch = max(batch - 2, 0)
    elements = float(np.prod(own, dtype=np.float64)) * float(np.prod(own[:batch], dtype=np.float64))
    product = float(np.prod(left, dtype=np.float64)) * float(np.prod(right, dtype=np.float64))
    return float(np.rint(np.sqrt(product / elements))) if elements else 0.0


def _contains(sizes: np.ndarray, subset: np.ndarray) -> bool:
    """True if each of `subset` is among `sizes`, at least as often."""
    return all((sizes == size).sum() >= (subset == size).sum() for size in subset)
