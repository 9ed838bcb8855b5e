"""Compute once what is the same: which configurations look alike to which node after each layer.

What a node knows after l layers depends on the configuration of the nodes within l hops, and on nothing else. So two
configurations that agree there give it the same state, and one row stands for both. A node further than l hops from
every configurable node has one row for all configurations; a node that sees all of them differ has as many rows as
there are configurations. Rows are found by refinement: two configurations look alike after a layer if they looked
alike before it, to the node itself and to every node it hears. Nothing is estimated: the result is that of computing
every node under every configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from gst.method.batch import SegmentBatch
from gst.nn.sparse import CsrMatrix, rounded, transposed
from partitioners.compiled import compiled

Part = Literal["own", "forward", "backward"]
"""Where a message comes from: the node itself, those whose values it consumes, or those that consume its values."""

Direction = Literal["forward", "backward"]

Weights = Literal["sum", "mean", "symmetric"]
"""Of messages u -> v: 1; 1 / how many v hears in that direction; 1 / sqrt((1 + degree(u)) (1 + degree(v))), degrees
over all directions in use, the own part included (Kipf and Welling 2017, equation 2)."""


class Level(NamedTuple):
    """The rows after some layers. Those of node v are `first[v]:first[v + 1]`.

    Args:
        first: where the rows of each node begin.
        alike: for each node and configuration, which of the rows of the node stands for it, counted from 0.
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
        """From labels that are 0, 1, ... in order of appearance among the configurations of each node."""
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


@dataclass(frozen=True, eq=False)
class Sharing:
    """The rows of a batch before the first layer and after each, and who hears whom among them.

    Args:
        levels: one more than there are layers.
        directions: which way messages run.
        segment_of_node: as in the batch.
        device: where matrices are wanted.
    """

    levels: tuple[Level, ...]
    directions: tuple[Direction, ...]
    segment_of_node: Int64[np.ndarray, " nodes"]
    device: torch.device
    _neighbours: dict[str, Adjacency]
    _matrices: dict[tuple, CsrMatrix] = field(default_factory=dict)

    @staticmethod
    def of(
        batch: SegmentBatch,
        num_layers: int,
        directions: tuple[Direction, ...],
        share: bool = True,
        whole_segments: bool = False,
    ) -> Sharing:
        """Find the rows.

        Args:
            share: False gives every node a row for every configuration: the same states, at full price.
            whole_segments: in every layer a node hears all nodes of its segment besides (attention).
        """
        for direction in directions:
            if direction not in ("forward", "backward"):
                raise ValueError(f"direction {direction!r}? messages run 'forward', with the data, or 'backward'")
        device, batch = batch.edge_index.device, batch.on_host
        producers, consumers = batch.edge_index.cpu().numpy()
        neighbours = {
            "forward": Adjacency.of(consumers, producers, batch.num_nodes),
            "backward": Adjacency.of(producers, consumers, batch.num_nodes),
        }
        segment_of_node = batch.segment_of_node.cpu().numpy()
        alike = _at_first(batch) if share else _all_apart(batch)
        levels = [Level.of(alike)]
        for _ in range(num_layers):
            alike = alike.copy()
            for direction in directions:
                _refine(alike, levels[-1], neighbours[direction])
            if whole_segments:
                alike = _over_segments(alike, segment_of_node)
            levels.append(Level.of(alike))
        return Sharing(tuple(levels), directions, segment_of_node, device, neighbours)

    def matrix(self, layer: int, parts: tuple[Part, ...], weights: Weights = "sum", stacked: bool = False) -> CsrMatrix:
        """What each row after `layer` (from 0) hears from the rows before it.

        Args:
            stacked: keep `parts` apart: column `len(parts) * row + i` holds part i of a row, so that one product takes
                a `Linear(channels, len(parts) * channels)` of all rows, viewed as `(len(parts) * rows, channels)`.
        """
        key = (layer, parts, weights, stacked)
        if key not in self._matrices:
            self._matrices[key] = self._build(self.levels[layer], self.levels[layer + 1], parts, weights, stacked)
        return self._matrices[key]

    def _build(
        self, before: Level, after: Level, parts: tuple[Part, ...], weights: Weights, stacked: bool
    ) -> CsrMatrix:
        nodes = np.arange(len(before.alike) + 1)
        neighbours = [self._neighbours.get(part, Adjacency(nodes, nodes[:-1])) for part in parts]
        rows_of_node, num_rows = np.diff(after.first), len(after.config_of_row)
        row_ptr = np.zeros(after.num_rows + 1, np.int64)
        np.cumsum(sum(np.repeat(each.degrees, rows_of_node) for each in neighbours), out=row_ptr[1 : num_rows + 1])
        row_ptr[num_rows + 1 :] = row_ptr[num_rows]
        entries = Entries(row_ptr[:num_rows].copy(), np.empty(row_ptr[-1], np.int64), np.empty(row_ptr[-1]))
        stride = len(parts) if stacked else 1
        for i, (part, adjacency) in enumerate(zip(parts, neighbours, strict=True)):
            _fill(entries, before, after, adjacency, self._scales(part, weights), stride, i if stacked else 0)
        arrays = (row_ptr, entries.columns, entries.weights)
        every = (*arrays, *transposed(*arrays, before.num_rows * stride))
        return CsrMatrix(*(torch.from_numpy(array).to(self.device, non_blocking=True) for array in every))

    def _scales(self, part: Part, weights: Weights) -> tuple[np.ndarray, np.ndarray]:
        """A message u -> v weighs `sender[u] * receiver[v]`."""
        ones = np.ones(len(self.levels[0].alike))
        if weights == "symmetric":
            degrees = sum(self._neighbours[direction].degrees for direction in self.directions)
            scale = 1 / np.sqrt(1.0 + degrees)
            return scale, scale
        if weights == "mean" and part != "own":
            return ones, 1 / np.maximum(self._neighbours[part].degrees, 1)
        if weights not in ("sum", "mean"):
            raise ValueError(f"weights {weights!r}? messages are added as a 'sum', a 'mean' or 'symmetric'")
        return ones, ones

    def row_of(self) -> Int64[Tensor, "nodes configs"]:
        """The row after the last layer of each node and configuration."""
        last = self.levels[-1]
        return torch.from_numpy(last.first[:-1, None] + last.alike).to(self.device, non_blocking=True)

    def inputs(self, batch: SegmentBatch) -> tuple[CsrMatrix, Int64[Tensor, " given"], Int64[Tensor, "2 given"]]:
        """What the first rows are made of: (rows, nodes) picks the node of each row; which rows are of configurable
        nodes; and for each of these the configurable node (as in `batch.config_nodes`) and the configuration."""
        if ("inputs",) not in self._matrices:
            level = self.levels[0]
            nodes = level.node_of_row()
            picks = CsrMatrix.picking(torch.from_numpy(nodes), batch.num_nodes, level.num_rows)
            slot = np.full(batch.num_nodes, -1)
            slot[batch.on_host.config_nodes.cpu().numpy()] = np.arange(len(batch.config_nodes))
            given = np.flatnonzero(slot[nodes] >= 0)
            found = (given, np.stack([slot[nodes[given]], level.config_of_row[given]]))
            self._matrices["inputs",] = picks.to(self.device)
            sent = [torch.from_numpy(array).to(self.device, non_blocking=True) for array in found]
            self._matrices["given",] = tuple(sent)  # type: ignore[assignment]
        return self._matrices["inputs",], *self._matrices["given",]  # type: ignore[misc]


def _all_apart(batch: SegmentBatch) -> Int32[np.ndarray, "nodes configs"]:
    return np.tile(np.arange(batch.num_configs, dtype=np.int32), (batch.num_nodes, 1))


def _at_first(batch: SegmentBatch) -> Int32[np.ndarray, "nodes configs"]:
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
        found = 0
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
                labels[config] = found
                found += 1


@compiled
@no_type_check
def _refine(alike, before, adjacency):
    """Tell configurations apart that a node's neighbours told apart before. Changes `alike`. Time is linear in edges
    and configurations: pairs of labels are numbered by a hash table of open addressing."""
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


def _over_segments(
    alike: Int32[np.ndarray, "nodes configs"], segment_of_node: Int64[np.ndarray, " nodes"]
) -> Int32[np.ndarray, "nodes configs"]:
    """Every node of a segment tells apart what any of them does."""
    num_segments = int(segment_of_node.max()) + 1
    together = np.zeros((num_segments, alike.shape[1]), np.int32)
    _refine(together, Level.of(alike), Adjacency.of(segment_of_node, np.arange(len(alike)), num_segments))
    return together[segment_of_node]


@compiled
@no_type_check
def _representatives(first, alike):
    """The first configuration that each row stands for."""
    configs = np.empty(first[-1], np.int64)
    for node in range(len(alike)):
        found = 0
        for config in range(alike.shape[1]):
            if alike[node, config] == found:
                configs[first[node] + found] = config
                found += 1
    return configs


class Entries(NamedTuple):
    """The entries of a CSR matrix while they are written.

    Args:
        ends: where the next entry of each row goes.
        columns, weights: of the entries, row by row.
    """

    ends: Int64[np.ndarray, " rows"]
    columns: Int64[np.ndarray, " entries"]
    weights: Float64[np.ndarray, " entries"]


@compiled
@no_type_check
def _fill(entries, before, after, adjacency, scales, stride, shift):
    """For each row after a layer, the rows before it that it hears from `adjacency`: row r is column `stride * r +
    shift`, and weighs what `_scales` says."""
    sender, receiver = scales
    for node in range(len(adjacency.starts) - 1):
        for row in range(after.first[node], after.first[node + 1]):
            config, place = after.config_of_row[row], entries.ends[row]
            for index in range(adjacency.starts[node], adjacency.starts[node + 1]):
                other = adjacency.others[index]
                entries.columns[place] = (before.first[other] + before.alike[other, config]) * stride + shift
                entries.weights[place] = sender[other] * receiver[node]
                place += 1
            entries.ends[row] = place
