"""Which configurations of a graph give a segment the same features, so that they share its embedding.

A segment meets only the configurations of its own configurable nodes. A program with many configurations has few
different ones on any of its segments: the 23,905 of the genuine AlexNet of TpuGraphs are 1,500 pairs of a segment and
what it meets, not 167,335.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt, UInt64

from gst.graphs.kept import OnceForEach
from gst.graphs.segments import SegmentedGraph

BLOCK_BYTES = 1 << 26  # of configuration features read at once
FIRST_COLUMNS = 8  # of a segment that are hashed first: where they tell all configurations apart, no more are read


@dataclass(frozen=True, eq=False)
class ConfigClasses:
    """Classes of configurations for each segment of a graph: two are of one class where their features are equal on
    all configurable nodes of the segment, context included.

    Args:
        counts: classes of each segment; 1 for a segment without configurable nodes.
        table: the class of each configuration, for segments where some but not all of them are alike.
        place: the row of each segment in `table`; -1 where there is none.
    """

    counts: Int64[np.ndarray, " segments"]
    table: UInt[np.ndarray, "tabled configs"]
    place: Int64[np.ndarray, " segments"]

    @staticmethod
    def all_apart(configurable: Bool[np.ndarray, " segments"], num_configs: int) -> ConfigClasses:
        """Each of `num_configs` configurations is a class of its own in configurable segments."""
        counts = np.where(configurable, num_configs, 1)
        return ConfigClasses(counts, np.zeros((0, num_configs), np.uint8), np.full(len(counts), -1))

    def of(self, configs: Int64[np.ndarray, " chosen"]) -> Int64[np.ndarray, "segments chosen"]:
        """The class of each of `configs` in each segment."""
        classes = np.where(self.counts[:, None] > 1, configs[None, :], 0)
        tabled = self.place >= 0
        classes[tabled] = self.table[self.place[tabled][:, None], configs[None, :]]
        return classes


def config_classes(graph: SegmentedGraph) -> ConfigClasses:
    """The classes of configurations of `graph`. The first call reads its configuration features, a bounded part at a
    time; the result, at most 4 bytes for each configuration and segment, is kept (`OnceForEach`).

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
    return _classes(graph)


@OnceForEach
def _classes(graph: SegmentedGraph) -> ConfigClasses:
    counts, place = np.ones(graph.num_segments, np.int64), np.full(graph.num_segments, -1)
    rows: list[np.ndarray] = []
    for segment in np.flatnonzero(np.diff(graph.config_ptr)).tolist():
        first, classes = np.unique(_hashes(graph, segment), return_index=True, return_inverse=True)[1:]
        counts[segment] = len(first)
        if 1 < len(first) < graph.num_configs:
            place[segment] = len(rows)
            rows.append(np.argsort(np.argsort(first)).astype(_integer(len(first)))[classes])
    table = np.stack(rows) if rows else np.zeros((0, graph.num_configs), np.uint8)
    return ConfigClasses(counts, table, place)


def _integer(count: int) -> np.dtype:
    return np.min_scalar_type(count - 1)


def _hashes(graph: SegmentedGraph, segment: int) -> UInt64[np.ndarray, " configs"]:
    """A hash of what each configuration gives the nodes of a segment, of the first ones if they tell all apart."""
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
    """A hash of each row, equal for equal rows."""
    odd = np.random.default_rng(0).integers(1 << 63, size=features.shape[-1], dtype=np.uint64) * 2 + 1
    return mixed(as_numbers(features) @ odd)


def as_numbers(features: Shaped[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """Bit patterns of what encoders see, float32, so that no two different values are one."""
    if features.dtype.kind == "f":
        return (features.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)  # -0.0 is 0.0
    return features.astype(np.int64).astype(np.uint64)


def mixed(x: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """Every bit depends on every other: the finaliser of SplitMix64 (Steele et al. 2014, section 3)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
