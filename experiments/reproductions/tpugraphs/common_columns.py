"""Layouts and tile sizes in the same columns, so that one model can read both.

- nodes: degrees, opcodes, the 140 columns of TpuGraphs, AlexNet's recovered by `alexnet_columns`, and those of
  `kaggle.node_features`.
- configurations: layouts by what they mean (`layout_features`), once as they are and once times the share of the
  node in the program's arithmetic; tile sizes by `tile_features`, in columns of their own. So tiles can only teach how
  a graph is read, and nothing to a model that is linear in configurations. Columns that a graph lacks are zero.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from experiments.reproductions.kaggle.node_features import enrich
from experiments.reproductions.kaggle.pruning import reduce
from experiments.reproductions.tpugraphs.alexnet_columns import with_all_columns
from experiments.reproductions.tpugraphs.layout_features import NAMES, layout_features
from experiments.reproductions.tpugraphs.tile_features import tile_features
from gst.data.tpugraphs import NODE_FEATURES, read
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment

ALEXNET, UNET = "layout/xla/random/train/alexnet_train_batch_32.npz", "layout/xla/default/valid/unet_3d.npz"
NUM_OPCODES, DEGREES = 512, 2
DERIVED = ("costs", "modulo", "tiles", "padding")
FLOPS = DEGREES + len(NODE_FEATURES)  # the first of the derived columns
MAX_NODES = 512  # of a segment


def read_all(data: Path) -> tuple[dict[str, list[SegmentedGraph]], SegmentedGraph]:
    """Return AlexNet and the kernels that have a choice of tiles by kind, and the U-Net, in common columns.

    Args:
        data: a folder as of TpuGraphs.

    Raises:
        ValueError: a file is missing.
    """
    alexnet, unet = (layouts(read(data / name)) for name in (ALEXNET, UNET))
    kernels = [tiles(graph) for graph in map(read, sorted(data.glob("tile/xla/train/*.npz"))) if graph.num_configs > 1]
    if not kernels:
        raise ValueError(f"{data} holds no tile kernels; give a folder with tile/xla/train/*.npz by --data")
    of_layouts, of_tiles = (graphs[0].config_features.shape[2] for graphs in ([alexnet], kernels))
    wide = [_padded(graph, 0, of_tiles) for graph in (alexnet, unet)]
    return {"layout": wide[:1], "tile": [_padded(kernel, of_layouts, 0) for kernel in kernels]}, wide[1]


def layouts(graph: Graph) -> SegmentedGraph:
    """A graph of layouts, pruned to two hops around its configurable nodes."""
    whole = with_all_columns(graph)
    rich, meaning = _with_degrees(enrich(whole, DERIVED)), layout_features(whole)
    flops = rich.node_features[:, FLOPS].astype(np.float64)
    share = flops[graph.config_nodes] / max(flops.sum(), 1) * len(graph.config_nodes)
    configs = np.concatenate([meaning, meaning * share[:, None]], axis=2).astype(np.float32)
    return segment(reduce(replace(rich, config_features=configs), "hops:2"), MAX_NODES)


def tiles(graph: Graph) -> SegmentedGraph:
    """A kernel with its tile sizes."""
    configs = tile_features(graph)[:, None].astype(np.float32)
    return segment(replace(_with_degrees(enrich(graph, DERIVED)), config_features=configs), MAX_NODES)


def _with_degrees(graph: Graph) -> Graph:
    degrees = [np.bincount(ends, minlength=len(graph.node_features)) for ends in graph.edges]
    return replace(graph, node_features=np.column_stack([*degrees, graph.node_features]).astype(np.float32))


def pooled(graph: SegmentedGraph, sums: bool = False) -> Float64[np.ndarray, "configs columns"]:
    """The means of each configuration's columns over the configurable nodes, or for what layouts mean their sums."""
    values = graph.config_features[np.arange(graph.num_configs)].mean(axis=1, dtype=np.float64)
    values[:, : len(NAMES)] *= graph.config_features.shape[1] if sums else 1
    return values


def _padded(graph: SegmentedGraph, before: int, after: int) -> SegmentedGraph:
    """Return the graph with columns of zeros around those of its configurations."""
    features = np.asarray(graph.config_features[np.arange(graph.num_configs)], np.float32)
    return replace(graph, config_features=np.pad(features, [(0, 0), (0, 0), (before, after)]))
