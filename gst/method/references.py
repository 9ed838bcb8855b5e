"""Which configurations of a graph all others are compared with: some of its own, drawn by content alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64, UInt64
from torch import Tensor

from gst.graphs.config_classes import BLOCK_BYTES, as_numbers, feature_hashes, mixed
from gst.graphs.kept import OnceForEach
from gst.graphs.segments import SegmentedGraph


def with_references(
    graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"], references: int
) -> Int64[Tensor, "graphs both"]:
    """The `references` reference configurations of each graph, then `configs`: what `gst.nn.CrossConfigHead` wants."""
    drawn = [torch.from_numpy(reference_configs(graph, references)) for graph in graphs]
    return torch.cat([torch.stack(drawn).to(configs), configs], dim=1)


def reference_configs(graph: SegmentedGraph, references: int) -> Int64[np.ndarray, " references"]:
    """The configurations with the smallest fingerprints: a bottom-k sample (Cohen and Kaplan 2007), which is a uniform
    draw of distinct configurations, the same in whatever order configurations and nodes stand. A graph that has fewer
    repeats them in turn."""
    return np.resize(_ordered(graph), references).astype(np.int64)


@OnceForEach
def _ordered(graph: SegmentedGraph) -> Int64[np.ndarray, " distinct"]:
    """Distinct configurations in the order of their fingerprints."""
    return np.unique(fingerprints(graph), return_index=True)[1]


def fingerprints(graph: SegmentedGraph) -> UInt64[np.ndarray, " configs"]:
    """A hash of what each configuration gives the nodes, equal for equal configurations: a sum over nodes, modulo 2^64,
    so that their order does not matter; they are told apart by opcodes and features."""
    nodes, channels = graph.config_features.shape[1:]
    keys, found = _keys_of_columns(graph), np.empty(graph.num_configs, np.uint64)
    block = max(1, BLOCK_BYTES // max(1, 8 * nodes * channels))
    for start in range(0, graph.num_configs, block):
        features = np.asarray(graph.config_features[start : start + block])
        found[start : start + block] = feature_hashes(features) @ keys
    return mixed(found)


def _keys_of_columns(graph: SegmentedGraph) -> UInt64[np.ndarray, " configurable"]:
    """An odd number for each column of the configuration features, by the content of its node."""
    sizes = np.diff(graph.config_ptr)
    rows = np.repeat(graph.row_ptr[:-1], sizes) + graph.config_rows
    column_row = np.zeros(graph.config_features.shape[1], np.int64)
    column_row[graph.config_columns] = rows  # context nodes name the same content again
    features = as_numbers(np.asarray(graph.node_features)[column_row])
    odd = np.random.default_rng(1).integers(1 << 63, size=features.shape[1], dtype=np.uint64) * 2 + 1
    content = features @ odd + np.asarray(graph.opcodes)[column_row].astype(np.uint64)
    return mixed(content) | np.uint64(1)
