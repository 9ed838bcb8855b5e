"""Floating point operations and bytes of every instruction, estimated from its columns and its operands.

The rules are those of XLA's own `HloCostAnalysis` (openxla/xla, hlo_cost_analysis.cc) as far as columns tell. What
they do not tell is the order of operands, which no edge of a `Graph` carries, and which dimensions a dot contracts:
both are inferred from sizes. A computation that is called counts at its own instructions and not at its caller.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from gst.data.list_lengths import SHAPE, Columns, entries, is_opcode, operands, ranks
from gst.graphs.graph import Graph

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
"""Of one element; 1 of any other type."""


def costs(graph: Graph, columns: Columns) -> Columns:
    """`COST_COLUMNS`, by node.

    - convolution: 2 x elements x numbers of the kernel for each; positions of the window on padding count too.
    - dot: 2 x elements x the contracted size, exact for one contracted dimension.
    - reduce: elements of the largest operand minus its own; reduce-window: elements x (window - 1);
      select-and-scatter: elements x window / stride.
    - elementwise: one operation for each element, the transcendental ones too. Any other: none, it moves data or calls.
    - bytes: elements x size of one, of itself and of its operands; an operand that is used twice counts once. Slices
      and gathers read what they write. Tuples, and what only gives a name to data, move none.
    """
    elements, size = columns[f"{SHAPE}_product"], _bytes_of_array(columns)
    producers, consumers = operands(graph, columns)
    largest_operand = np.zeros(graph.num_nodes)
    np.maximum.at(largest_operand, consumers, elements[producers])
    window, stride = columns["window_size_product"], np.maximum(columns["window_stride_product"], 1)
    counted = (
        (ELEMENTWISE, elements),
        (("reduce",), np.maximum(largest_operand - elements, 0)),
        (("reduce-window",), elements * np.maximum(window - 1, 0)),
        (("select-and-scatter",), elements * window / stride),
        (("convolution", "dot"), 2 * elements * _multiplied(graph, columns)),
    )
    flops = np.zeros(graph.num_nodes)
    for opcodes, number in counted:
        flops = np.where(is_opcode(graph, *opcodes), number, flops)
    read = np.bincount(consumers, size[producers], graph.num_nodes)
    read = np.where(is_opcode(graph, *PARTLY_READ), np.minimum(read, size), read)
    moves = ~is_opcode(graph, *NOTHING_MOVED)
    return dict(zip(COST_COLUMNS, (flops, size * moves, read * moves), strict=True))


def _bytes_of_array(columns: Columns) -> Float64[np.ndarray, " nodes"]:
    prefix = "shape_element_type_is_"
    width = 1.0 + sum((size - 1) * columns[prefix + name] for name, size in BYTES.items())
    no_array = sum(columns[prefix + name] for name in ("tuple", "token", "opaque_type"))
    return np.asarray(columns[f"{SHAPE}_product"] * width * (no_array == 0))


def _multiplied(graph: Graph, columns: Columns) -> Float64[np.ndarray, " nodes"]:
    """How many products are summed for each element of a convolution or a dot, 0 for the other nodes."""
    sizes = np.stack([columns[column] for column in entries(SHAPE)], axis=1).astype(np.int64)
    rank, edges = ranks(columns), operands(graph, columns)
    convolution = is_opcode(graph, "convolution")
    summed = np.zeros(graph.num_nodes)
    for node in np.flatnonzero(convolution | is_opcode(graph, "dot")):
        given = [sizes[operand, : rank[operand]] for operand in edges[0, edges[1] == node]]
        own = sizes[node, : rank[node]]
        if convolution[node]:
            summed[node] = _kernel_numbers({name: int(column[node]) for name, column in columns.items()}, own, given)
        elif given:
            summed[node] = _contracted(own, given[0], given[-1])
    return summed


def _kernel_numbers(columns: dict[str, int], own: Int64[np.ndarray, " dimensions"], given: list[np.ndarray]) -> float:
    """Window x input features of a group. The kernel is the operand whose sizes are those of the window and the output
    features; if none is, nothing is known of the input features and they count as one."""
    numbers = "convolution_dim_numbers"
    inward, outward = (columns[f"{numbers}_kernel_{way}_feature_dim"] for way in ("input", "output"))
    features = columns[f"{numbers}_output_feature_dim"]
    window = [columns[column] for column in entries("window_size") if columns[column]]
    places = [columns[column] for column in entries(f"{numbers}_kernel_spatial_dims")][: len(window)]

    def is_kernel(sizes: np.ndarray) -> bool:
        if max([inward, outward, *places]) >= len(sizes) or features >= len(own):
            return False
        return bool(sizes[outward] == own[features]) and sizes[places].tolist() == window[: len(places)]

    kernels = [sizes for sizes in given if is_kernel(sizes)]
    fitting = [kernel for kernel in kernels if any(_takes(columns, int(kernel[inward]), other) for other in given)]
    input_features = (fitting or kernels)[0][inward] if kernels else 1
    return float(columns["window_size_product"] * input_features)


def _takes(columns: dict[str, int], features: int, sizes: np.ndarray) -> bool:
    """Whether an input of these sizes has as many features as a kernel of `features` for each group works on."""
    place = columns["convolution_dim_numbers_input_feature_dim"]
    return place < len(sizes) and bool(sizes[place] == features * max(columns["feature_group_count"], 1))


def _contracted(
    own: Int64[np.ndarray, " dimensions"], left: Int64[np.ndarray, " left"], right: Int64[np.ndarray, " right"]
) -> float:
    """The size that a dot sums over. Of elements batch x rows x columns it has, and its operands batch x rows x size
    and batch x size x columns; batch dimensions come first and are in both operands."""
    batch = max(len(left) + len(right) - len(own) - 2, 0)
    while batch and not (_contains(left, own[:batch]) and _contains(right, own[:batch])):
        batch = max(batch - 2, 0)
    elements = float(np.prod(own, dtype=np.float64)) * float(np.prod(own[:batch], dtype=np.float64))
    product = float(np.prod(left, dtype=np.float64)) * float(np.prod(right, dtype=np.float64))
    return float(np.rint(np.sqrt(product / elements))) if elements else 0.0


def _contains(sizes: np.ndarray, some: np.ndarray) -> bool:
    """Whether each of `some` is among `sizes`, as often."""
    return all((sizes == size).sum() >= (some == size).sum() for size in some)
