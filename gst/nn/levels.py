"""Classes of configurations that look alike to a node before and after each layer of an encoder: refinement."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Int32, Int64

from gst.method.batch import SegmentBatch
from gst.nn.sparse import rounded
from gst.util.compiled import compiled


class Level(NamedTuple):
    """The rows after some layers. Those of node v are `first[v]:first[v + 1]`.

    Args:
        alike: for each node and configuration, the row of the node that stands for it, counted from 0.
        config_of_row: one configuration that each row stands for.
    """

    first: Int64[np.ndarray, " nodes_plus_one"]
    alike: Int32[np.ndarray, "nodes configs"]
    config_of_row: Int64[np.ndarray, " rows"]

    @property
    def num_rows(self) -> int:
        """Rows of a tensor that holds them, the last ones unused: see `gst.nn.sparse`."""
        return rounded(len(self.config_of_row))

    def node_of_row(self) -> Int64[np.ndarray, " rows"]:
        return np.repeat(np.arange(len(self.alike)), np.diff(self.first))

    @staticmethod
    def of(alike: Int32[np.ndarray, "nodes configs"]) -> Level:
        """Return the rows of labels numbered in order of appearance at each node."""
        first = np.zeros(len(alike) + 1, np.int64)
        np.cumsum(alike.max(axis=1, initial=-1) + 1, out=first[1:])
        return Level(first, alike, _representatives(first, alike))


class Adjacency(NamedTuple):
    """For node v the other ends of its edges in one direction: `others[starts[v]:starts[v + 1]]`."""

    starts: Int64[np.ndarray, " nodes_plus_one"]
    others: Int64[np.ndarray, " edges"]

    @staticmethod
    def of(ends: np.ndarray, others: np.ndarray, num_nodes: int) -> Adjacency:
        """Edges between `ends` and `others`, sorted by the former."""
        starts = np.zeros(num_nodes + 1, np.int64)
        np.cumsum(np.bincount(ends, minlength=num_nodes), out=starts[1:])
        return Adjacency(starts, others[np.argsort(ends, kind="stable")])

    @property
    def degrees(self) -> Int64[np.ndarray, " nodes"]:
        return np.diff(self.starts)


def all_apart(batch: SegmentBatch) -> Int32[np.ndarray, "nodes configs"]:
    """Labels by which no two configurations look alike."""
    return np.tile(np.arange(batch.num_configs, dtype=np.int32), (batch.num_nodes, 1))


def at_first(batch: SegmentBatch) -> Int32[np.ndarray, "nodes configs"]:
    """Labels before the first layer: to a node that is configurable those look alike that give it equal features."""
    alike = np.zeros((batch.num_nodes, batch.num_configs), np.int32)
    if batch.num_configs > 1:
        features = batch.config_features.cpu()
        features = features.float() if features.element_size() == 2 else features  # numpy knows no bf16
        _compare(alike, batch.config_nodes.cpu().numpy(), np.ascontiguousarray(features.numpy()))
    return alike


@compiled
@no_type_check
def _compare(alike, config_nodes, features):
    """Label the configurations of each configurable node by their features, equal ones alike, exactly. In place."""
    num_configs, channels = features.shape[1], features.shape[2]
    size = 1
    while size < 2 * num_configs:
        size *= 2
    for index in range(len(config_nodes)):
        labels = alike[config_nodes[index]]
        slots = np.full(size, -1, np.int32)  # open addressing; a slot holds the first configuration of its kind
        num_labels = 0
        for config in range(num_configs):
            mixed = np.uint64(1469598103934665603)
            for channel in range(channels):
                value = np.float64(features[index, config, channel]) + 0.0  # -0.0 is 0.0
                mixed = (mixed ^ np.uint64(np.int64(value * 1048576.0))) * np.uint64(1099511628211)
            place = np.int64((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(1)) & np.int64(size - 1)
            while slots[place] >= 0:
                other = slots[place]
                equal = True
                for channel in range(channels):
                    if features[index, config, channel] != features[index, other, channel]:
                        equal = False
                        break
                if equal:
                    break
                place = (place + 1) & np.int64(size - 1)
            if slots[place] >= 0:
                labels[config] = labels[slots[place]]
            else:
                slots[place] = config
                labels[config] = num_labels
                num_labels += 1


@compiled
@no_type_check
def refine(alike, before, adjacency):
    """Change `alike`: tell configurations apart that a node's neighbours told apart before, in linear time."""
    num_nodes, num_configs = alike.shape
    size = 2
    while size < 2 * num_configs:
        size *= 2
    pairs, labels_of_pairs = np.empty(size, np.int64), np.empty(size, np.int32)
    filled_in = np.zeros(size, np.int64)  # the refinement that last filled each place
    now = 0
    for node in range(num_nodes):
        labels = alike[node]
        for index in range(adjacency.starts[node], adjacency.starts[node + 1]):
            other = adjacency.others[index]
            if before.first[other + 1] - before.first[other] == 1:
                continue
            now += 1
            num_labels = 0
            for config in range(num_configs):
                pair = np.int64(labels[config]) * num_configs + before.alike[other, config]
                mixed = np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)
                place = np.int64(mixed >> np.uint64(32)) & (size - 1)
                while filled_in[place] == now and pairs[place] != pair:
                    place = (place + 1) & (size - 1)
                if filled_in[place] != now:
                    filled_in[place], pairs[place], labels_of_pairs[place] = now, pair, num_labels
                    num_labels += 1
                labels[config] = labels_of_pairs[place]
            if num_labels == num_configs:
                break


@compiled
@no_type_check
def _representatives(first, alike):
    """The first configuration of each row."""
    configs = np.empty(first[-1], np.int64)
    for node in range(len(alike)):
        row = 0
        for config in range(alike.shape[1]):
            if alike[node, config] == row:
                configs[first[node] + row] = config
                row += 1
    return configs
