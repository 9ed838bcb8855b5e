"""Compute once what is the same: which configurations look alike to which node after each layer.

A node knows after l layers the configuration of the nodes within l hops, and nothing else. Two configurations that
agree there have one row. Rows result from refinement: two configurations look alike after a layer if they looked alike
before it to the node itself and to every node it hears. Nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args, no_type_check

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from gst.method.batch import SegmentBatch
from gst.nn.sparse import CsrMatrix, rounded, transposed
from gst.util.compiled import compiled

Direction = Literal["forward", "backward"]
Part = Literal["own", "forward", "backward"]
"""Where a message comes from: the node itself, those whose values it consumes, or those that consume its values."""

PARTS = get_args(Part)


class PlanOptions(NamedTuple):
    """Settings of an encoder that its plans depend on (`Sharing.of`)."""

    num_layers: int
    directions: tuple[Direction, ...]
    share: bool = True


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


Weights = Literal["sum", "mean", "symmetric"]
"""Of messages u -> v: 1; 1 / how many v hears in that direction; 1 / sqrt((1 + degree(u)) (1 + degree(v))), degrees
over all directions in use, the own part included (Kipf and Welling 2017, equation 2)."""


class Plan:
    """The rows of a batch before the first layer of an encoder and after each, and the messages among them, as tensors.
    They are made once, when a layer asks for them."""

    levels: Sequence[Any]

    def __init__(self, directions: tuple[Direction, ...]) -> None:
        self.directions = directions
        self._tensors: dict[tuple, tuple[Tensor, ...]] = {}

    @torch.compiler.disable
    def tensors(self, name: str, *arguments: Any) -> tuple[Tensor, ...]:
        """Return what the method `_name(*arguments)` makes."""
        key = (name, *arguments)
        if key not in self._tensors:
            self._tensors[key] = tuple(map(self._placed, getattr(self, f"_{name}")(*arguments)))
        return self._tensors[key]

    def _placed(self, made: Any) -> Tensor:
        return made

    def matrix(self, layer: int, parts: tuple[Part, ...], weights: Weights = "sum", stacked: bool = False) -> CsrMatrix:
        """Return the messages that each row after `layer` (from 0) receives from the rows before it.

        With `stacked`, column `len(parts) * row + i` holds part i of a row, so that one product takes a
        `Linear(channels, len(parts) * channels)` of all rows, viewed as `(len(parts) * rows, channels)`. In a padded
        plan, further entries of weight 0 are in unused rows.

        Raises:
            ValueError: no weights have this name.
        """
        if weights not in get_args(Weights):
            raise ValueError(f"weights {weights!r}? messages are added as a 'sum', a 'mean' or 'symmetric'")
        return CsrMatrix(*self.tensors("entries", layer, parts, weights, stacked))

    def row_of(self) -> Int64[Tensor, "nodes configs"]:
        """The row after the last layer of each node and configuration."""
        return self.tensors("row_of")[0]

    def inputs(self) -> tuple[CsrMatrix, Int64[Tensor, " pairs"], Int64[Tensor, "2 pairs"]]:
        """Return the sources of the first rows: a matrix (rows, nodes) that picks the node of each row; the rows that
        belong to configurable nodes; and for each of these its place in `batch.config_nodes` and the configuration. In
        a padded plan, the further ones of these rows are unused rows."""
        rows, pairs = self.tensors("inputs")
        return CsrMatrix(*self.tensors("picks")), rows, pairs


class Sharing(Plan):
    """The rows of a batch, found exactly on the host."""

    def __init__(
        self,
        levels: tuple[Level, ...],
        directions: tuple[Direction, ...],
        batch: SegmentBatch,
        device: torch.device,
        neighbours: dict[str, Adjacency],
    ) -> None:
        super().__init__(directions)
        self.levels, self.device, self._neighbours = levels, device, neighbours
        self.config_nodes = batch.config_nodes.numpy()

    @staticmethod
    def of(batch: SegmentBatch, num_layers: int, directions: tuple[Direction, ...], share: bool = True) -> Sharing:
        """Find the rows; without `share` every node has a row for every configuration: the same states, slower."""
        check_directions(directions)
        device, batch = batch.edge_index.device, batch.on_host
        producers, consumers = batch.edge_index.numpy()
        neighbours = {
            "forward": Adjacency.of(consumers, producers, batch.num_nodes),
            "backward": Adjacency.of(producers, consumers, batch.num_nodes),
        }
        alike = at_first(batch)
        if not share:
            alike[:] = np.arange(batch.num_configs)  # no two configurations look alike
        levels = [Level.of(alike)]
        for _ in range(num_layers):
            alike = alike.copy()
            for direction in directions:
                refine(alike, levels[-1], neighbours[direction])
            levels.append(Level.of(alike))
        return Sharing(tuple(levels), directions, batch, device, neighbours)

    def _placed(self, made: np.ndarray) -> Tensor:
        return torch.from_numpy(made).to(self.device, non_blocking=True)

    def _entries(self, layer: int, parts: tuple[Part, ...], weights: Weights, stacked: bool) -> Sequence[np.ndarray]:
        before, after = self.levels[layer], self.levels[layer + 1]
        nodes = np.arange(len(before.alike) + 1)
        neighbours = [self._neighbours.get(part, Adjacency(nodes, nodes[:-1])) for part in parts]
        rows_of_node, num_rows = np.diff(after.first), len(after.config_of_row)
        row_ptr = np.zeros(after.num_rows + 1, np.int64)
        np.cumsum(sum(np.repeat(each.degrees, rows_of_node) for each in neighbours), out=row_ptr[1 : num_rows + 1])
        heard, stride = int(row_ptr[num_rows]), len(parts) if stacked else 1
        row_ptr[num_rows + 1 :] = heard
        ends, arrays = row_ptr[:num_rows].copy(), (row_ptr, np.empty(heard, np.int64), np.empty(heard))
        for i, (part, adjacency) in enumerate(zip(parts, neighbours, strict=True)):
            scales, shift = self._scales(part, weights), i if stacked else 0
            _fill(ends, arrays, before, after, adjacency, scales, stride, shift)
        return *arrays, *transposed(*arrays, before.num_rows * stride)

    def _scales(self, part: Part, weights: Weights) -> tuple[np.ndarray, np.ndarray]:
        """A message u -> v weighs `sender[u] * receiver[v]`."""
        ones = np.ones(len(self.levels[0].alike))
        if weights == "symmetric":
            degrees = sum(self._neighbours[direction].degrees for direction in self.directions)
            scale = 1 / np.sqrt(1.0 + degrees)
            return scale, scale
        if weights == "mean" and part != "own":
            return ones, 1 / np.maximum(self._neighbours[part].degrees, 1)
        return ones, ones

    def _row_of(self) -> Sequence[np.ndarray]:
        last = self.levels[-1]
        return (last.first[:-1, None] + last.alike,)

    def _picks(self) -> Sequence[np.ndarray]:
        level, nodes = self.levels[0], self.levels[0].node_of_row()
        arrays = (np.minimum(np.arange(level.num_rows + 1), len(nodes)), nodes, np.ones(len(nodes)))
        return *arrays, *transposed(*arrays, len(level.alike))

    def _inputs(self) -> Sequence[np.ndarray]:
        level, nodes = self.levels[0], self.levels[0].node_of_row()
        slot = np.full(len(level.alike), -1)
        slot[self.config_nodes] = np.arange(len(self.config_nodes))
        pairs = np.flatnonzero(slot[nodes] >= 0)
        return pairs, np.stack([slot[nodes[pairs]], level.config_of_row[pairs]])


def check_directions(directions: tuple[str, ...]) -> None:
    """Raise ValueError for a direction that is none."""
    for direction in directions:
        if direction not in get_args(Direction):
            raise ValueError(f"direction {direction!r}? messages run 'forward', with the data, or 'backward'")


@compiled
@no_type_check
def _fill(ends, arrays, before, after, adjacency, scales, stride, shift):
    """Write for each row after a layer, behind its entries so far, which end at `ends`, the rows that it hears: row r
    is column `stride * r + shift` of a CSR matrix."""
    (sender, receiver), (_, columns, weights) = scales, arrays
    for node in range(len(adjacency.starts) - 1):
        for row in range(after.first[node], after.first[node + 1]):
            config, place = after.config_of_row[row], ends[row]
            for index in range(adjacency.starts[node], adjacency.starts[node + 1]):
                other = adjacency.others[index]
                columns[place] = (before.first[other] + before.alike[other, config]) * stride + shift
                weights[place] = sender[other] * receiver[node]
                place += 1
            ends[row] = place
