"""Features of layouts that mean the same for arrays of other ranks and for other programs.

A layout configuration of TpuGraphs (Phothilimthana et al. 2023, section 3 and its README) gives a node six numbers for
each of its output, its input and its kernel: the dimensions from the minor-most on. Dimension 3 is the features of
AlexNet's images and the depth of those of U-Net 3D: the number alone carries nothing over, its extent and its role do.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64

from experiments.reproductions.kaggle.node_features import LANES, SUBLANES
from experiments.reproductions.tpugraphs.columns import SHAPE, Columns, entries, operands
from gst.data.tpugraphs import NODE_FEATURES, opcode_number
from gst.graphs.graph import Graph

TENSORS, DIMENSIONS = ("output", "input", "kernel"), 6
MEANINGS = ("given", "minor_extent", "second_extent", "padding", "padded_elements", "minor_is_feature")
NUMBERS = "convolution_dim_numbers"
FEATURE_DIMENSION = {
    "output": f"{NUMBERS}_output_feature_dim", "input": f"{NUMBERS}_input_feature_dim",
    "kernel": f"{NUMBERS}_kernel_output_feature_dim",
}  # fmt: skip
NAMES = tuple(f"{tensor}_{meaning}" for tensor in TENSORS for meaning in MEANINGS)


def layout_features(graph: Graph) -> Float32[np.ndarray, "configs configurable meanings"]:
    """The features `NAMES` of every configurable node under every layout; zeros where the compiler is to choose.

    `minor_extent` and `second_extent`: log2 of the sizes of the two minor-most dimensions, in tenths. `padding`: log of
    elements stored / elements, both dimensions rounded up to 128 lanes and 8 sublanes (`kaggle.node_features.tiles`);
    `padded_elements`: log10(1 + elements of padding). `minor_is_feature`: of a convolution, 1 where features are minor
    and -1 where batch or a spatial dimension is.

    Raises:
        ValueError: the graph has not the 140 and 18 columns of a layout file.
    """
    if (graph.node_features.shape[1], graph.config_features.shape[2]) != (len(NODE_FEATURES), 18):
        raise ValueError(
            f"graph {graph.name!r} has {graph.node_features.shape[1]} and {graph.config_features.shape[2]} columns, "
            f"want the {len(NODE_FEATURES)} and 18 of a layout file"
        )
    columns: Columns = dict(zip(NODE_FEATURES, graph.node_features.T.astype(np.float64), strict=True))
    sizes = np.stack([columns[name] for name in entries(SHAPE)], axis=1)
    edges, result = operands(graph, columns), np.zeros((*graph.config_features.shape[:2], len(NAMES)), np.float32)
    for place, node in enumerate(graph.config_nodes):
        convolves = graph.opcodes[node] == opcode_number("convolution")
        given = edges[0, edges[1] == node]
        arrays = [node, *(_input_and_kernel(columns, sizes, node, given) if convolves else given[:2])]
        for number, (tensor, array) in enumerate(zip(TENSORS, arrays, strict=False)):
            order = graph.config_features[:, place, number * DIMENSIONS :][:, :2].astype(np.int64)
            feature = columns[FEATURE_DIMENSION[tensor]][node] if convolves else None
            width = slice(number * len(MEANINGS), (number + 1) * len(MEANINGS))
            result[:, place, width] = _meanings(order, sizes[array], feature)
    return result


def _meanings(
    order: np.ndarray, sizes: Float64[np.ndarray, " dimensions"], feature: float | None
) -> Float64[np.ndarray, "configs meanings"]:
    """Of one array under the two minor-most dimensions of each configuration, -1 where there are none."""
    extents = np.where(order >= 0, np.maximum(sizes, 1)[np.maximum(order, 0)], 1)
    tiles = np.array([LANES, SUBLANES])
    stored = np.where(order >= 0, np.ceil(extents / tiles) * tiles / extents, 1).prod(axis=1)
    elements = np.where(sizes > 0, sizes, 1).prod()
    role = np.zeros(len(order)) if feature is None else np.where(order[:, 0] == feature, 1, -1)
    given = order[:, 0] >= 0
    return given[:, None] * np.stack(
        [
            np.ones(len(order)), np.log2(extents[:, 0]) / 10, np.log2(extents[:, 1]) / 10, np.log(stored),
            np.log10(1 + (stored - 1) * elements), role,
        ], axis=1,
    )  # fmt: skip


def _input_and_kernel(columns: Columns, sizes: np.ndarray, node: int, given: np.ndarray) -> list[int]:
    """The operands of a convolution, which edges do not number: the kernel has the extents of the window and of the
    output features where the convolution says it has them; the last one if both do."""
    outward = int(columns[f"{NUMBERS}_kernel_output_feature_dim"][node])
    features = sizes[node, int(columns[f"{NUMBERS}_output_feature_dim"][node])]
    window = [int(columns[name][node]) for name in entries("window_size") if columns[name][node]]
    places = [int(columns[name][node]) for name in entries(f"{NUMBERS}_kernel_spatial_dims")][: len(window)]
    wanted = [features, *window[: len(places)]]
    fits = [sizes[operand, [outward, *places]].tolist() == wanted for operand in given]
    kernel = max(range(len(given)), key=lambda number: (fits[number], number), default=0)
    return [int(given[number]) for number in range(len(given)) if number != kernel][:1] + given[kernel:][:1].tolist()
