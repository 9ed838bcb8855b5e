"""Compute once what is the same: which configurations look alike to which node after each layer.

A node knows after l layers the configuration of the nodes within l hops, and nothing else. Two configurations that
agree there have one row. Rows result from refinement: two configurations look alike after a layer if they looked alike
before it to the node itself and to every node it hears. Nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.fixed_step import NoFixedShapes, Sizes
from gst.nn.bounds import Bounds, Direction, PlanOptions
from gst.nn.levels import Adjacency, Level, all_apart, at_first, over_segments, refine
from gst.nn.sparse import CsrMatrix, transposed
from partitioners.compiled import compiled

Part = Literal["own", "forward", "backward"]
"""Where a message comes from: the node itself, those whose values it consumes, or those that consume its values."""

Weights = Literal["sum", "mean", "symmetric"]
"""Of messages u -> v: 1; 1 / how many v hears in that direction; 1 / sqrt((1 + degree(u)) (1 + degree(v))), degrees
over all directions in use, the own part included (Kipf and Welling 2017, equation 2)."""


@dataclass(frozen=True, eq=False)
class Sharing:
    """The rows of a batch before the first layer and after each (`levels`), and the messages among them."""

    levels: tuple[Level, ...]
    directions: tuple[Direction, ...]
    segment_of_node: Int64[np.ndarray, " nodes"]
    config_nodes: Int64[np.ndarray, " configurable"]
    device: torch.device
    bounds: Bounds | None
    _neighbours: dict[str, Adjacency]
    _tensors: dict[tuple, tuple[Tensor, ...]] = field(default_factory=dict)

    @staticmethod
    def of(
        batch: SegmentBatch,
        num_layers: int,
        directions: tuple[Direction, ...],
        share: bool = True,
        whole_segments: bool = False,
        one_config: bool = False,
        bounds: Bounds | None = None,
    ) -> Sharing:
        """Find the rows.

        Args:
            share: False gives every node a row for every configuration: the same states, slower.
            whole_segments: in every layer a node hears all nodes of its segment too (attention).
            one_config: give every node one row, as if there were one configuration.
            bounds: pad the plan to these sizes. `batch` itself is not padded.
        """
        for direction in directions:
            if direction not in ("forward", "backward"):
                raise ValueError(f"direction {direction!r}? messages run 'forward', with the data, or 'backward'")
        device, batch = batch.edge_index.device, batch.on_host
        if one_config:
            batch = replace(batch, config_features=batch.config_features[:, :1])
        producers, consumers = batch.edge_index.cpu().numpy()
        neighbours = {
            "forward": Adjacency.of(consumers, producers, batch.num_nodes),
            "backward": Adjacency.of(producers, consumers, batch.num_nodes),
        }
        segment_of_node, config_nodes = batch.segment_of_node.cpu().numpy(), batch.config_nodes.cpu().numpy()
        sizes = (None,) * (num_layers + 1) if bounds is None else bounds.rows
        alike = at_first(batch) if share else all_apart(batch)
        levels = [Level.of(alike, sizes[0])]
        for size in sizes[1:]:
            alike = alike.copy()
            for direction in directions:
                refine(alike, levels[-1], neighbours[direction])
            if whole_segments:
                alike = over_segments(alike, segment_of_node)
            levels.append(Level.of(alike, size))
        return Sharing(tuple(levels), directions, segment_of_node, config_nodes, device, bounds, neighbours)

    def tensors(self, name: str, *arguments: Any) -> tuple[Tensor, ...]:
        """The arrays that the method `_name(*arguments)` returns, as tensors on the device. They are made once."""
        key = (name, *arguments)
        if key not in self._tensors:
            made = getattr(self, f"_{name}")(*arguments)
            self._tensors[key] = tuple(torch.from_numpy(each).to(self.device, non_blocking=True) for each in made)
        return self._tensors[key]

    def pinned(self) -> Sharing:
        """Return the same plan; its tensors so far are in memory that an accelerator can fetch from."""
        pinned = {key: tuple(each.pin_memory() for each in made) for key, made in self._tensors.items()}
        return replace(self, _tensors=pinned)

    def to(self, device: torch.device) -> Sharing:
        """The same plan, with its tensors on a device."""
        moved = {key: tuple(each.to(device, non_blocking=True) for each in made) for key, made in self._tensors.items()}
        return replace(self, device=device, _tensors=moved)

    def into(self, other: Sharing) -> Sharing:
        """Overwrite the tensors of another plan of the same bounds with those of this one, and return this plan with
        them: recorded steps read the same memory. The other plan is of no use afterwards."""
        for key, places in other._tensors.items():
            for place, made in zip(places, self.tensors(*key), strict=True):
                assert place.shape == made.shape, f"{key} has another shape than before"
                place.copy_(made, non_blocking=True)
        return replace(self, device=other.device, _tensors=other._tensors)

    def matrix(self, layer: int, parts: tuple[Part, ...], weights: Weights = "sum", stacked: bool = False) -> CsrMatrix:
        """Return the messages that each row after `layer` (from 0) receives from the rows before it.

        With `stacked`, column `len(parts) * row + i` holds part i of a row, so that one product takes a
        `Linear(channels, len(parts) * channels)` of all rows, viewed as `(len(parts) * rows, channels)`. In a padded
        plan, further entries of weight 0 are in unused rows.
        """
        return CsrMatrix(*self.tensors("entries", layer, parts, weights, stacked))

    def _entries(self, layer: int, parts: tuple[Part, ...], weights: Weights, stacked: bool) -> Sequence[np.ndarray]:
        before, after = self.levels[layer], self.levels[layer + 1]
        nodes = np.arange(len(before.alike) + 1)
        neighbours = [self._neighbours.get(part, Adjacency(nodes, nodes[:-1])) for part in parts]
        rows_of_node, num_rows = np.diff(after.first), len(after.config_of_row)
        row_ptr = np.zeros(after.num_rows + 1, np.int64)
        np.cumsum(sum(np.repeat(each.degrees, rows_of_node) for each in neighbours), out=row_ptr[1 : num_rows + 1])
        heard, stride = int(row_ptr[num_rows]), len(parts) if stacked else 1
        row_ptr[num_rows + 1 :] = heard
        total = heard if self.bounds is None else sum(self.bounds.entries[layer][part] for part in parts)
        entries = Entries(row_ptr[:num_rows].copy(), np.empty(total, np.int64), np.empty(total))
        if self.bounds is not None:
            unused = after.num_rows - num_rows
            row_ptr[num_rows:] = heard + np.arange(unused + 1) * (total - heard) // unused
            entries.columns[heard:] = np.arange(total - heard) % (before.num_rows * stride)
            entries.weights[heard:] = 0.0
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
        if weights not in ("sum", "mean"):
            raise ValueError(f"weights {weights!r}? messages are added as a 'sum', a 'mean' or 'symmetric'")
        return ones, ones

    def row_of(self) -> Int64[Tensor, "nodes configs"]:
        """The row after the last layer of each node and configuration. Nodes that are padding have unused rows."""
        return self.tensors("row_of")[0]

    def _row_of(self) -> Sequence[np.ndarray]:
        last = self.levels[-1]
        rows = last.first[:-1, None] + last.alike
        if self.bounds is None:
            return (rows,)
        padding = self.bounds.nodes - len(rows)
        return (np.concatenate([rows, np.repeat(last.unused(padding)[:, None], rows.shape[1], axis=1)]),)

    def inputs(self) -> tuple[CsrMatrix, Int64[Tensor, " given"], Int64[Tensor, "2 given"]]:
        """Return the sources of the first rows: a matrix (rows, nodes) that picks the node of each row; the rows that
        belong to configurable nodes; and for each of these its place in `batch.config_nodes` and the configuration. In
        a padded plan, the further ones of these rows are unused rows."""
        rows, given = self.tensors("given")
        return CsrMatrix(*self.tensors("picks")), rows, given

    def _picks(self) -> Sequence[np.ndarray]:
        level, nodes = self.levels[0], self.levels[0].node_of_row()
        num_nodes, columns, weights = len(level.alike), nodes, np.ones(len(nodes))
        if self.bounds is not None:
            num_nodes, padding = self.bounds.nodes, level.num_rows - len(nodes)
            columns = np.concatenate([nodes, np.arange(padding) % num_nodes])
            weights = np.concatenate([weights, np.zeros(padding)])
        arrays = (np.minimum(np.arange(level.num_rows + 1), len(columns)), columns, weights)
        return *arrays, *transposed(*arrays, num_nodes)

    def _given(self) -> Sequence[np.ndarray]:
        level, nodes = self.levels[0], self.levels[0].node_of_row()
        slot = np.full(len(level.alike), -1)
        slot[self.config_nodes] = np.arange(len(self.config_nodes))
        given = np.flatnonzero(slot[nodes] >= 0)
        pairs = np.stack([slot[nodes[given]], level.config_of_row[given]])
        if self.bounds is not None:
            padding = self.bounds.given - len(given)
            more = np.stack([np.arange(padding) % max(self.bounds.configurable, 1), np.zeros(padding, np.int64)])
            given, pairs = np.append(given, level.unused(padding)), np.concatenate([pairs, more], axis=1)
        return given, pairs

    @property
    def num_groups(self) -> int:
        """Number of groups: one for each segment and configuration, and one for unused rows."""
        segments = int(self.segment_of_node.max()) + 1 if self.bounds is None else self.bounds.segments
        return segments * self.levels[0].alike.shape[1] + 1

    def groups(self, layer: int) -> Int64[Tensor, " rows"]:
        """Return a number for the segment and class of each row after `layer`, the last for unused rows."""
        return self.tensors("groups", layer)[0]

    def _groups(self, layer: int) -> Sequence[np.ndarray]:
        level = self.levels[layer + 1]
        node, group = level.node_of_row(), np.full(level.num_rows, self.num_groups - 1)
        kind = np.arange(len(node)) - level.first[node]
        group[: len(node)] = self.segment_of_node[node] * level.alike.shape[1] + kind
        return (group,)


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


class FixedPlans:
    """The plans of an encoder, padded to their `Bounds`. Implements `gst.method.fixed_step.Plans`."""

    def __init__(self, bounds: Mapping[PlanOptions, Bounds]) -> None:
        self.bounds = bounds
        self._wanted: dict[PlanOptions, tuple[tuple, ...]] = {}

    @staticmethod
    def made_for(
        layers: Iterable[nn.Module], plans: Iterable[PlanOptions], sizes: Sizes, graphs: Sequence[SegmentedGraph],
        num_fresh: int,
    ) -> FixedPlans:  # fmt: skip
        """Plans that `layers` read.

        Raises:
            NoFixedShapes: a layer has no attribute `reads_plan_tensors` that is true: its shapes may change from step
                to step, or it may read arrays that are not in the tensors of a plan.
        """
        for layer in layers:
            if not getattr(layer, "reads_plan_tensors", False):
                raise NoFixedShapes(
                    f"{type(layer).__name__} has other shapes in each step; use SAGE, GCN, GIN, GAT or FusedSAGE of "
                    "gst.nn, or an encoder that takes (x, edge_index)"
                )
        return FixedPlans({each: Bounds.of(each, sizes, graphs, num_fresh) for each in plans})

    def of(self, batch: SegmentBatch, pinned: bool = False) -> dict[PlanOptions, Sharing]:
        """On the host, with the tensors that the encoder has asked for so far."""
        plans = {options: Sharing.of(batch, *options, bounds) for options, bounds in self.bounds.items()}
        for options, wanted in list(self._wanted.items()):
            for key in wanted:
                plans[options].tensors(*key)
        return {options: plan.pinned() for options, plan in plans.items()} if pinned else plans

    def put(self, plans: Mapping[Any, Any], batch: SegmentBatch) -> None:
        """The plans of `batch` from now on."""
        for options, plan in plans.items():
            before = batch.plans.get(options)
            batch.plans[options] = plan.to(batch.edge_index.device) if before is None else plan.into(before)
            self._wanted[options] = tuple(batch.plans[options]._tensors)
