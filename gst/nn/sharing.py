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
from jaxtyping import Float64, Int64
from torch import Tensor

from gst.method.batch import SegmentBatch
from gst.nn.bounds import Direction, Part
from gst.nn.levels import Adjacency, Level, all_apart, at_first, refine
from gst.nn.sparse import CsrMatrix, transposed
from gst.util.compiled import compiled

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

    def inputs(self) -> tuple[CsrMatrix, Int64[Tensor, " given"], Int64[Tensor, "2 given"]]:
        """Return the sources of the first rows: a matrix (rows, nodes) that picks the node of each row; the rows that
        belong to configurable nodes; and for each of these its place in `batch.config_nodes` and the configuration. In
        a padded plan, the further ones of these rows are unused rows."""
        rows, given = self.tensors("given")
        return CsrMatrix(*self.tensors("picks")), rows, given


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
        alike = at_first(batch) if share else all_apart(batch)
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
        entries = Entries(row_ptr[:num_rows].copy(), np.empty(heard, np.int64), np.empty(heard))
        for i, (part, adjacency) in enumerate(zip(parts, neighbours, strict=True)):
            _fill(entries, before, after, adjacency, self._scales(part, weights), stride, i if stacked else 0)
        arrays = (row_ptr, entries.columns, entries.weights)
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

    def _given(self) -> Sequence[np.ndarray]:
        level, nodes = self.levels[0], self.levels[0].node_of_row()
        slot = np.full(len(level.alike), -1)
        slot[self.config_nodes] = np.arange(len(self.config_nodes))
        given = np.flatnonzero(slot[nodes] >= 0)
        return given, np.stack([slot[nodes[given]], level.config_of_row[given]])


def check_directions(directions: tuple[str, ...]) -> None:
    """Raise ValueError for a direction that is none."""
    for direction in directions:
        if direction not in get_args(Direction):
            raise ValueError(f"direction {direction!r}? messages run 'forward', with the data, or 'backward'")


class Entries(NamedTuple):
    """The entries of a CSR matrix while they are written; the next entry of each row goes to its place in `ends`."""

    ends: Int64[np.ndarray, " rows"]
    columns: Int64[np.ndarray, " entries"]
    weights: Float64[np.ndarray, " entries"]


@compiled
@no_type_check
def _fill(entries, before, after, adjacency, scales, stride, shift):
    """Write for each row after a layer the rows that it hears: row r is column `stride * r + shift`."""
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
