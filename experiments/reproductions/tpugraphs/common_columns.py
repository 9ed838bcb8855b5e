"""Layouts, tile sizes and measured plans in the same columns, so that one model can read all of them.

- nodes: degrees and opcodes (operations of captured programs are numbered behind those of HLO). HLO programs also have
  the 140 columns of TpuGraphs, AlexNet's recovered by `alexnet_columns`, and those of `kaggle.node_features`;
  programs of plans have their own columns; columns that a graph lacks are zero.
- configurations: layouts by what they mean (`layout_features`), once as they are and once times the share of the
  node in the program's arithmetic; tile sizes by `tile_features`, plans as they are, each in columns of their own. So
  tiles and plans can only teach how a graph is read, and nothing to a model that is linear in configurations.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64

from experiments.reproductions.kaggle.node_features import enrich
from experiments.reproductions.kaggle.pruning import reduce
from experiments.reproductions.tpugraphs.alexnet_columns import with_all_columns
from experiments.reproductions.tpugraphs.layout_features import NAMES, layout_features
from experiments.reproductions.tpugraphs.tile_features import tile_features
from gst.data.columns import NODE_FEATURES
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.graphs.store import open_store

ALEXNET, UNET = "layout/xla/random/train/alexnet_train_batch_32.npz", "layout/xla/default/valid/unet_3d.npz"
HLO_OPCODES, NUM_OPCODES, DEGREES = 128, 512, 2
DERIVED = ("costs", "modulo", "tiles", "padding")
FLOPS = DEGREES + len(NODE_FEATURES)  # the first of the derived columns
MAX_NODES = 512  # of a segment


def read_all(data: Path, programs: Path | None) -> tuple[dict[str, list[SegmentedGraph]], SegmentedGraph]:
    """AlexNet, the kernels that have a choice of tiles and measured plans by kind, and the U-Net, in common columns.

    Args:
        data: a folder as of TpuGraphs.
        programs: a folder of stores of measured plans.

    Raises:
        ValueError: a file is missing, or there are no stores where there should be.
    """
    kernels = [tiles(graph) for graph in map(read, sorted(data.glob("tile/xla/train/*.npz"))) if graph.num_configs > 1]
    kinds = {"layout": [layouts(read(data / name)) for name in (ALEXNET, UNET)], "tile": kernels}
    if not kernels:
        raise ValueError(f"{data} holds no tile kernels; give a folder with tile/xla/train/*.npz by --data")
    if programs is not None:
        stores = sorted(path.parent for path in programs.glob("**/meta.json"))
        kinds["plan"] = [plans(graph) for store in stores for graph in open_store(store)]
        if not stores:
            raise ValueError(f"{programs} holds no stores; give a folder of what `gst prepare` or `gst measure` wrote")
    kinds = in_common(kinds)
    alexnet, unet = kinds["layout"]
    return kinds | {"layout": [alexnet]}, unet


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


def plans(stored: SegmentedGraph) -> SegmentedGraph:
    """A captured program with measured plans, from a store. Degrees are those within a segment."""
    starts = np.repeat(stored.row_ptr[:-1], np.diff(stored.edge_ptr)).astype(np.int32)
    counted = _with_degrees(replace(stored, edges=stored.edges + starts))
    return replace(counted, edges=stored.edges, opcodes=np.asarray(stored.opcodes) + np.int32(HLO_OPCODES))


def _with_degrees(graph: Any) -> Any:
    degrees = [np.bincount(ends, minlength=len(graph.node_features)) for ends in graph.edges]
    return replace(graph, node_features=np.column_stack([*degrees, graph.node_features]).astype(np.float32))


def in_common(kinds: dict[str, list[SegmentedGraph]]) -> dict[str, list[SegmentedGraph]]:
    """Concatenate the columns of graphs by kind (`layout`, `tile`, `plan`); columns that a graph lacks are zero."""
    nodes: dict[str, int] = {}
    for kind, graphs in kinds.items():
        nodes[_program(kind)] = max(graph.node_features.shape[1] - DEGREES for graph in graphs)
    configs = {kind: max(graph.config_features.shape[2] for graph in graphs) for kind, graphs in kinds.items()}
    return {kind: [_widened(graph, kind, nodes, configs) for graph in graphs] for kind, graphs in kinds.items()}


def pooled(graph: SegmentedGraph, sums: bool = False) -> Float64[np.ndarray, "configs columns"]:
    """The means of each configuration's columns over the configurable nodes, or for what layouts mean their sums."""
    values = graph.config_features[np.arange(graph.num_configs)].mean(axis=1, dtype=np.float64)
    values[:, : len(NAMES)] *= graph.config_features.shape[1] if sums else 1
    return values


def _program(kind: str) -> str:
    return "captured" if kind == "plan" else "HLO"


def _widened(graph: SegmentedGraph, kind: str, nodes: dict[str, int], configs: dict[str, int]) -> SegmentedGraph:
    known = np.asarray(graph.node_features)
    given = np.asarray(graph.config_features[np.arange(graph.num_configs)], np.float32)
    own = _placed(known[:, DEGREES:], nodes, _program(kind))
    return replace(
        graph, node_features=np.hstack([known[:, :DEGREES], own]), config_features=_placed(given, configs, kind)
    )  # fmt: skip


def _placed(values: Float32[np.ndarray, "*rows columns"], widths: dict[str, int], block: str) -> np.ndarray:
    """`values` in the columns of its block."""
    before = sum(widths[name] for name in list(widths)[: list(widths).index(block)])
    after = sum(widths.values()) - before - values.shape[-1]
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(before, after)])
