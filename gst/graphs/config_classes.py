"""Configurations of a graph compared by content: classes that give a segment the same features.

A program with many configurations has few different ones on any of its segments: the 23,905 of the genuine AlexNet of
TpuGraphs make 1,500 different pairs of a segment and its features, not 167,335.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int64, Shaped, UInt, UInt64

from gst.graphs.segments import SegmentedGraph

BLOCK_BYTES = 1 << 26  # of configuration features read at once
FIRST_COLUMNS = 8  # of a segment that are hashed first: where they tell all configurations apart, no more are read
MOST_COPIES = 8  # results remembered by the content of graphs, the last used ones


@dataclass(frozen=True, eq=False)
class ConfigClasses:
    """Classes of configurations for each segment of a graph: equal features on all of its configurable nodes.

    Args:
        counts: number of classes of each segment; 1 for a segment without configurable nodes.
        table: the class of each configuration, for segments where some but not all of them are alike.
        place: the row of each segment in `table`; -1 for segments without one.
    """

    counts: Int64[np.ndarray, " segments"]
    table: UInt[np.ndarray, "tabled configs"]
    place: Int64[np.ndarray, " segments"]

    def of(self, configs: Int64[np.ndarray, " chosen"]) -> Int64[np.ndarray, "segments chosen"]:
        """Return the class of each of `configs` in each segment."""
        classes = np.where(self.counts[:, None] > 1, configs[None, :], 0)
        tabled = self.place >= 0
        classes[tabled] = self.table[self.place[tabled][:, None], configs[None, :]]
        return classes


_of_graph: WeakKeyDictionary[SegmentedGraph, ConfigClasses] = WeakKeyDictionary()
_of_content: dict[str, ConfigClasses] = {}


def config_classes(graph: SegmentedGraph) -> ConfigClasses:
    """Return the classes of configurations of `graph`. The first call reads its configuration features, a bounded part
    at a time; the result, at most 4 bytes for each configuration and segment, is remembered as long as the graph.

    Configurations are compared by hashes of 64 bits; two different ones of a graph with 10^5 configurations have the
    same with a probability of 3e-10.

    Examples:
        >>> from gst.graphs.graph import Graph
        >>> from gst.graphs.segments import segment
        >>> features = np.array([[[0], [5]], [[1], [5]], [[0], [6]]], np.int8)  # 3 configurations of 2 nodes
        >>> nodes, edges = np.zeros((2, 1), np.float32), np.array([[0], [1]])
        >>> graph = Graph(nodes, edges, config_nodes=np.array([0, 1]), config_features=features)
        >>> config_classes(segment(graph, parts=np.array([0, 1]))).of(np.arange(3)).tolist()
        [[0, 1, 0], [0, 0, 1]]
    """
    classes = _of_graph.get(graph)
    if classes is None:
        # A `DataLoader` with workers unpickles a graph for every step; the fingerprint of others would read them whole.
        content = graph.fingerprint if graph.is_copy else ""
        classes = _of_content.pop(content, None) or _compared(graph)
        if content:
            _of_content[content] = classes  # the one used last comes last
            if len(_of_content) > MOST_COPIES:
                del _of_content[next(iter(_of_content))]
        _of_graph[graph] = classes
    return classes


def _compared(graph: SegmentedGraph) -> ConfigClasses:
    counts, place = np.ones(graph.num_segments, np.int64), np.full(graph.num_segments, -1)
    rows: list[np.ndarray] = []
    for segment in np.flatnonzero(np.diff(graph.config_ptr)).tolist():
        first, classes = np.unique(_hashes(graph, segment), return_index=True, return_inverse=True)[1:]
        counts[segment] = len(first)
        if 1 < len(first) < graph.num_configs:
            place[segment] = len(rows)
            rows.append(np.argsort(np.argsort(first)).astype(np.min_scalar_type(len(first) - 1))[classes])
    table = np.stack(rows) if rows else np.zeros((0, graph.num_configs), np.uint8)
    return ConfigClasses(counts, table, place)


def _hashes(graph: SegmentedGraph, segment: int) -> UInt64[np.ndarray, " configs"]:
    """Hash the features that each configuration gives the nodes of a segment, or the first of them if they suffice."""
    columns = graph.config_columns[graph.config_ptr[segment] : graph.config_ptr[segment + 1]]
    channels = graph.config_features.shape[2]
    keys = np.random.default_rng(segment).integers(1 << 63, size=len(columns), dtype=np.uint64) * 2 + 1
    hashes, start, stop = np.zeros(graph.num_configs, np.uint64), 0, FIRST_COLUMNS
    while start < len(columns):
        part = slice(start, stop)
        block = max(1, BLOCK_BYTES // max(1, 8 * len(columns[part]) * channels))
        for first in range(0, graph.num_configs, block):
            configs = np.arange(first, min(first + block, graph.num_configs))
            features = graph.config_features[configs[:, None], columns[None, part]]
            hashes[configs] += feature_hashes(features) @ keys[part]
        if len(np.unique(hashes)) == graph.num_configs:
            break
        start, stop = stop, 2 * stop
    return hashes


def feature_hashes(features: Shaped[np.ndarray, "*rows channels"]) -> UInt64[np.ndarray, "*rows"]:
    """Return a hash of each row, equal for equal rows."""
    odd = np.random.default_rng(0).integers(1 << 63, size=features.shape[-1], dtype=np.uint64) * 2 + 1
    return mixed(as_numbers(features) @ odd)


def as_numbers(features: Shaped[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """Return the bit patterns of features as encoders get them, in float32, so that different values stay different."""
    if features.dtype.kind == "f":
        return (features.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)  # -0.0 is 0.0
    return features.astype(np.int64).astype(np.uint64)


def mixed(x: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """Mix bits so that each depends on every other: the finaliser of SplitMix64 (Steele et al. 2014, section 3)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
