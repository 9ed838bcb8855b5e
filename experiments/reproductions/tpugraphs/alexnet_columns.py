"""The columns of TpuGraphs that the AlexNet file at hand still has, by name.

`alexnet_train_batch_32.npz`, as trialan/tpu_graphs_compiling published it, lost every column that is constant: 70 of
140 for nodes and 10 of 18 for configurations are left, without their names. They stand in their order, and lists fill
from the front, so laws of the format tell which they are: one type of elements for each node, totals that are the sums
and products of the entries before them, flags of reversal that count the dimensions of windows, layouts that are
permutations, and numbers that instructions of one opcode alone have. Four of the seven types are told by the
instructions that have them, as in `unet_3d`: indices are s32, what a custom call returns s64, shifted numbers u32. The
program computes in one floating type, taken for f32; were it bf16, all bytes would be half. What was dropped is 0, or
for the product of an empty list 1 (Phothilimthana et al. 2023, arXiv 2308.13490, and the README of the dataset).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from experiments.reproductions.tpugraphs.columns import LAYOUT, OF_WINDOWS, entries, is_opcode
from gst.data.tpugraphs import NODE_FEATURES
from gst.graphs.graph import Graph

TYPE, NUMBERS = "shape_element_type_is_", "convolution_dim_numbers"
TYPES = ("pred", "s32", "s64", "u32", "f32", "tuple", "token")


def _first(name: str, count: int, *totals: str) -> tuple[str, ...]:
    return tuple(f"{name}_{end}" for end in (*range(count), *totals))


KEPT = (
    "is_root",
    *(f"{TYPE}{name}" for name in TYPES),
    *_first("shape_dimensions", 4, "sum", "product"), "shape_tuple_shapes_size", "parameter_number",
    *_first("dimensions", 3),
    *_first("window_size", 4, "sum", "product"), *_first("window_stride", 4, "sum", "product"),
    *_first("window_padding_low", 2, "sum", "product"), *_first("window_padding_high", 2, "sum", "product"),
    *_first("window_window_dilation", 4, "sum", "product"), *_first("window_base_dilation", 4, "sum"),
    *_first("window_window_reversal", 2, "true_count", "false_count"),
    *(f"{NUMBERS}_input_{name}_dim" for name in ("batch", "feature")),
    *_first(f"{NUMBERS}_input_spatial_dims", 2),
    *(f"{NUMBERS}_kernel_{name}_feature_dim" for name in ("input", "output")),
    *_first(f"{NUMBERS}_kernel_spatial_dims", 2),
    *(f"{NUMBERS}_output_{name}_dim" for name in ("batch", "feature")),
    "feature_group_count", "batch_group_count", *_first("layout_minor_to_major", 4),
)  # fmt: skip
"""The columns of nodes that were kept."""
KEPT_OF_LAYOUTS = (0, 1, 2, 3, 6, 7, 8, 9, 12, 13)
"""The columns of configurations that were kept: four dimensions of the output, four of the input, two of the kernel. Of
the 26 nodes two are reshapes from two dimensions to four or back, which fill the first two groups, and each node has a
permutation of its dimensions in each."""


def with_all_columns(graph: Graph) -> Graph:
    """The same graph with the 140 and 18 columns of TpuGraphs; as it is if it has them.

    Raises:
        ValueError: it has neither these numbers of columns nor 70 and 10, or one of the laws does not hold.
    """
    nodes, configured = graph.node_features.shape[1], graph.config_features.shape[2]
    if (nodes, configured) == (len(NODE_FEATURES), 18):
        return graph
    if (nodes, configured) != (len(KEPT), len(KEPT_OF_LAYOUTS)):
        raise ValueError(
            f"graph {graph.name!r} has {nodes} and {configured} columns; known are {len(NODE_FEATURES)} and 18, and "
            f"the {len(KEPT)} and {len(KEPT_OF_LAYOUTS)} of the AlexNet file"
        )
    whole = np.zeros((graph.num_nodes, len(NODE_FEATURES)), np.float32)
    whole[:, [name.endswith("_product") for name in NODE_FEATURES]] = 1
    whole[:, [NODE_FEATURES.index(name) for name in KEPT]] = graph.node_features
    completed = replace(graph, node_features=whole)
    broken = broken_laws(completed)
    if broken:
        raise ValueError(f"graph {graph.name!r} is not the AlexNet file; what does not hold: {', '.join(broken)}")
    layouts = np.full((*graph.config_features.shape[:2], 18), -1, np.int8)
    layouts[:, :, KEPT_OF_LAYOUTS] = graph.config_features
    return replace(completed, config_features=layouts)


def broken_laws(graph: Graph) -> list[str]:
    """Name the laws that the 140 columns of `graph` break. Files with all columns keep them."""
    table = dict(zip(NODE_FEATURES, graph.node_features.T.astype(np.float64), strict=True))
    stacked = lambda names: np.stack([table[name] for name in names], axis=1)  # noqa: E731
    types = stacked([name for name in NODE_FEATURES if name.startswith(TYPE)])
    laws = {
        "one type for each node": types.sum(1) == 1,
        "tuples are tuples": ~is_opcode(graph, "tuple") | (table[f"{TYPE}tuple"] == 1),
        "comparisons are true or false": ~is_opcode(graph, "compare") | (table[f"{TYPE}pred"] == 1),
        "parameters have numbers": is_opcode(graph, "parameter") | (table["parameter_number"] == 0),
    }
    for name in ("shape_dimensions", *OF_WINDOWS[:-1]):
        listed = stacked(entries(name))
        laws[f"{name}_sum"] = table[f"{name}_sum"] == listed.sum(1)
        if name in ("shape_dimensions", "window_size", "window_stride", "window_window_dilation"):  # not 0 in between
            laws[f"{name}_product"] = table[f"{name}_product"] == np.where(listed > 0, listed, 1).prod(1)
    reversal, window = OF_WINDOWS[-1], (stacked(entries("window_stride")) > 0).sum(1)
    flags = [table[f"{reversal}_{value}_count"] for value in ("true", "false")]
    laws |= {"flags of reversal": stacked(entries(reversal)).sum(1) == flags[0], "windows": sum(flags) == window}
    order = stacked(entries(LAYOUT))
    laws["layouts are permutations"] = _permutations(order, order.max(1).astype(np.int64) + 1)
    convolutions = is_opcode(graph, "convolution")
    for side in ("input", "kernel"):
        places = stacked([name for name in NODE_FEATURES if name.startswith(f"{NUMBERS}_{side}")])
        spatial = np.arange(places.shape[1])[None] < 2 + window[:, None]
        laws[f"dimensions of the {side}"] = ~convolutions | _permutations(places, spatial.sum(1))
    return [name for name, holds in laws.items() if not holds.all()]


def _permutations(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Mark the rows that start with a permutation of the numbers below their length."""
    return np.array([sorted(row[:n]) == list(range(n)) for row, n in zip(rows, lengths, strict=True)])
