"""Node features derived from the 140 columns of TpuGraphs, each switched on by its name.

The columns are those of the dataset (Phothilimthana et al. 2023, arXiv 2308.13490), named by its README and in
`gst.data.hlo.NODE_FEATURES`. Files of which columns were dropped are refused: nobody can tell which are
left. The order of operands is not among the features: edges, here and in the published files, are a set, and only an
HLO module knows it. `gst.data.costs` infers it from sizes where it needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from gst.data.costs import COST_COLUMNS, costs
from gst.data.hlo.features import NODE_FEATURES
from gst.data.list_lengths import (
    LAYOUT,
    OF_CONVOLUTIONS,
    SHAPE,
    Columns,
    entries,
    is_opcode,
    list_lengths,
    ranks,
)
from gst.graphs.graph import Graph

ABSENT = -1.0
LANES, SUBLANES = 128, 8  # of a tile of the TPU
LAYOUT_WIDTH = 18  # columns of a layout configuration
MODULO_COLUMNS = tuple(f"{column}_modulo_{size}" for size in (LANES, SUBLANES) for column in entries(SHAPE))
TILE_COLUMNS = ("default_layout_tiles", "default_layout_padding_share")
OF_SIZES = ("shape_dimensions_", "window_", "slice_dims_", "dynamic_slice_sizes_", "padding_config_")
SIZES = (
    *(name for name in NODE_FEATURES if name.startswith(OF_SIZES) and "reversal" not in name),
    "shape_tuple_shapes_size", "feature_group_count", "batch_group_count", TILE_COLUMNS[0], *COST_COLUMNS,
)  # fmt: skip
"""Columns that are sizes or counts, over many magnitudes, and not flags, numbers of dimensions or shares."""


def enrich(graph: Graph, names: Sequence[str]) -> Graph:
    """`graph` with the named `FEATURES`. Whatever the order of the names, they are worked out in that of `FEATURES`;
    new columns come after the 140 in the same order.

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
            "columns of TpuGraphs by their places; give the whole file, or leave features out"
        )
    columns = dict(zip(NODE_FEATURES, graph.node_features.T.astype(np.float64), strict=True))
    for name, feature in FEATURES.items():
        if name in names:
            columns |= feature(graph, columns)
    return replace(graph, node_features=np.stack(list(columns.values()), axis=1).astype(np.float32))


def check_features(names: Sequence[str]) -> None:
    """
    Raises:
        ValueError: one of `names` is not one of `FEATURES`.
    """
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"there is no feature {name!r}; there are {', '.join(FEATURES)}")


def modulo(graph: Graph, columns: Columns) -> Columns:
    """Every dimension modulo 128 and modulo 8, `MODULO_COLUMNS`, -1 where there is none: what is left over beside whole
    tiles. The third of the competition on TpuGraphs took both parts of sizes (github.com/jafluri/kaggle_tpu_graph)."""
    sizes, rank = _sizes(columns), ranks(columns)
    present = np.arange(sizes.shape[1]) < rank[:, None]
    left = [np.where(present, sizes % size, ABSENT) for size in (LANES, SUBLANES)]
    return dict(zip(MODULO_COLUMNS, np.concatenate(left, axis=1).T, strict=True))


def tiles(graph: Graph, columns: Columns) -> Columns:
    """How many tiles the array takes and which share of their elements is padding, `TILE_COLUMNS`; -1 for what is no
    array, or has more dimensions than the columns tell of.

    A TPU stores the minor-most dimension in 128 lanes and the next one in 8 sublanes, both rounded up (Cloud TPU
    performance guide, section Padding). Of one dimension or none the tile is 128 elements. Minor-most is what the
    default layout of the node says, or the last dimension where there is no layout.
    """
    sizes, rank, elements = _sizes(columns), ranks(columns), columns[f"{SHAPE}_product"]
    order = np.stack([columns[column] for column in entries(LAYOUT)], axis=1).astype(np.int64)
    descending = np.maximum(rank[:, None] - 1 - np.arange(order.shape[1]), 0)
    order = np.where(order.any(axis=1, keepdims=True), order, descending)
    inside = order[:, :2].max(axis=1) < sizes.shape[1]
    chosen = np.take_along_axis(sizes, np.minimum(order[:, :2], sizes.shape[1] - 1), axis=1)
    minor = np.where(rank >= 1, chosen[:, 0], 1)
    second, rows = np.where(rank >= 2, chosen[:, 1], 1), np.where(rank >= 2, SUBLANES, 1)
    others = elements / np.maximum(minor * second, 1)
    count = np.ceil(minor / LANES) * np.ceil(second / rows) * others
    padding = 1 - elements / np.maximum(count * LANES * rows, 1)
    known = _is_array(columns) & inside
    values = (np.where(known, count, ABSENT), np.where(known & (count > 0), padding, np.where(known, 0.0, ABSENT)))
    return dict(zip(TILE_COLUMNS, values, strict=True))


def padding(graph: Graph, columns: Columns) -> Columns:
    """-1 wherever a list has ended, where the published columns have a 0 that may also be a size or a place.

    Totals of a list that is empty are -1 too, since the product of nothing is 1; but a scalar has one element. So are
    numbers of dimensions of what is no convolution and numbers of parameters of what is no parameter. The winners of
    the competition on TpuGraphs re-extracted their data so (TGraph, Khizbullin et al. 2024, arXiv 2405.16623;
    github.com/thanhhau097/google_fast_or_slow); here it is done after the fact, see `list_lengths`.
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


def layout(graph: Graph, columns: Columns) -> Columns:
    """-1 for the default layout of configurable nodes, and for what `tiles` makes of it: the configuration overrides it
    and alone speaks for them.

    Raises:
        ValueError: the configurations are not layouts.
    """
    width = graph.config_features.shape[2]
    if width != LAYOUT_WIDTH:
        raise ValueError(
            f"graph {graph.name!r} has configurations of {width} columns, but feature 'layout' puts those of layouts, "
            f"{LAYOUT_WIDTH}, in the place of columns; leave it out"
        )
    configurable = np.zeros(graph.num_nodes, bool)
    configurable[graph.config_nodes] = True
    overridden = [*entries(LAYOUT), *(column for column in TILE_COLUMNS if column in columns)]
    return {column: np.where(configurable, ABSENT, columns[column]) for column in overridden}


def log(graph: Graph, columns: Columns) -> Columns:
    """sign(x) log(1 + |x|) of all `SIZES`. For models that take numbers as they are: the encoders of `gst.nn` scale
    every column so by themselves, and need it no second time."""
    return {column: np.sign(values) * np.log1p(np.abs(values)) for column, values in columns.items() if column in SIZES}


FEATURES: dict[str, Callable[[Graph, Columns], Columns]] = {
    "costs": costs, "modulo": modulo, "tiles": tiles, "padding": padding, "layout": layout, "log": log,
}  # fmt: skip
"""What each name adds or changes, from a graph and its columns so far, in the order in which they are worked out: what
reads the published columns first, what changes them later."""


def _sizes(columns: Columns) -> Float64[np.ndarray, "nodes dimensions"]:
    return np.stack([columns[column] for column in entries(SHAPE)], axis=1)


def _is_array(columns: Columns) -> np.ndarray:
    others = ("tuple", "token", "opaque_type")
    return np.asarray(sum(columns[f"shape_element_type_is_{name}"] for name in others) == 0)
