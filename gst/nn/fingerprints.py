"""Equal states found where the batch lies, by 64-bit fingerprints: what `gst.nn.sharing` finds exactly on the host.

The fingerprint of a node under a configuration depends on all that the node knows: before the first layer on the
features that the configuration gives it, after a layer also on the fingerprints of the nodes that it hears. Equal
fingerprints of a node share a row. Only tensor operations find them, on whatever device, so that an accelerator waits
for the host once, for the number of rows, and not at all where sizes are given (`Bounds`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from gst.method.batch import SegmentBatch
from gst.nn.bounds import PARTS, Bounds, Part, PlanOptions
from gst.nn.sharing import Plan, Weights, check_directions
from gst.nn.sparse import rounded, rows_of

ROUNDS = ((30, -4658895280553007687), (27, -7723592293110705685))  # of the finaliser of SplitMix64 (Steele et al. 2014)


def mixed(x: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Return a permutation of the 64-bit integers that looks random, number by number."""
    for shift, factor in ROUNDS:
        x = (x ^ ((x >> shift) & ((1 << 64 - shift) - 1))) * factor
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def fingerprints(batch: SegmentBatch, options: PlanOptions) -> list[Int64[Tensor, "nodes configs"]]:
    """Return a number for what each node knows under each configuration, before the first layer and after each.

    Two of one node that should differ are equal with a probability of 2^-64: all in all about configs^2 nodes / 2^65.
    """
    configs = 1 if options.one_config else batch.num_configs
    device, (producers, consumers) = batch.edge_index.device, batch.edge_index
    nothing = torch.zeros(batch.num_nodes, configs, dtype=torch.int64, device=device)
    if configs == 1 or not options.share:
        return [nothing + torch.arange(configs, device=device)] * (options.num_layers + 1)
    bits = (batch.config_features.double() + 0.0).view(torch.int64)  # + 0.0, since -0.0 is 0.0
    column = mixed(torch.arange(1, bits.shape[2] + 1, device=device))
    known = nothing.index_add(0, batch.config_nodes, mixed(bits ^ column).sum(2))
    found, node = [known], mixed(torch.arange(1, batch.num_nodes + 1, device=device))[:, None]
    for _ in range(options.num_layers):
        sent = mixed(known + node)  # which node says it counts too
        if "forward" in options.directions:
            known = known.index_add(0, consumers, sent.index_select(0, producers))
        if "backward" in options.directions:
            known = known.index_add(0, producers, sent.index_select(0, consumers))
        known = mixed(known)
        if options.whole_segments:
            together = nothing[: batch.num_segments].index_add(0, batch.segment_of_node, mixed(known + node))
            known = together.index_select(0, batch.segment_of_node)
        found.append(known)
    return found


class Classes(NamedTuple):
    """Configurations of each node by class, equal ones side by side."""

    order: Int64[Tensor, "nodes configs"]
    label: Int64[Tensor, "nodes configs"]
    is_first: Bool[Tensor, "nodes configs"]

    @staticmethod
    def of(known: Int64[Tensor, "nodes configs"]) -> Classes:
        ordered, order = known.sort(dim=1, stable=True)
        is_first = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[:, 1:], ordered[:, :-1], out=is_first[:, 1:])
        return Classes(order, is_first.long().cumsum(1) - 1, is_first)

    @property
    def of_node(self) -> Int64[Tensor, " nodes"]:
        """Number of classes of each node."""
        return self.label[:, -1] + 1


class DeviceLevel(NamedTuple):
    """The rows after some layers, those of a node side by side.

    Args:
        row_of: of each node and configuration.
        first: the first row of each node, and the number of rows in use at the end. Further rows are unused.
    """

    row_of: Int64[Tensor, "nodes configs"]
    first: Int64[Tensor, " nodes_plus_one"]
    node_of_row: Int64[Tensor, " rows"]
    config_of_row: Int64[Tensor, " rows"]

    @staticmethod
    def of(classes: Classes, rows: int) -> DeviceLevel:
        first = pad(classes.of_node.cumsum(0), (1, 0))
        row = first[:-1, None] + classes.label
        place = torch.where(classes.is_first, row, rows).flatten()  # those that stand for no class go behind the last
        node = torch.arange(len(row), device=row.device)[:, None].expand_as(row).flatten()
        nothing = row.new_zeros(rows + 1)
        return DeviceLevel(
            torch.empty_like(row).scatter_(1, classes.order, row), first,
            nothing.scatter(0, place, node)[:-1], nothing.scatter(0, place, classes.order.flatten())[:-1],
        )  # fmt: skip

    @property
    def used(self) -> Int64[Tensor, ""]:
        return self.first[-1]

    @property
    def numbers(self) -> Int64[Tensor, " rows"]:
        """Of all rows."""
        return torch.arange(len(self.node_of_row), device=self.first.device)

    @property
    def num_unused(self) -> Int64[Tensor, ""]:
        """At least 1, to divide by."""
        return (len(self.node_of_row) - self.used).clamp(min=1)


class DeviceSharing(Plan):
    """The rows of a batch and the messages among them, on the device of the batch.

    Args:
        bounds: sizes of all tensors, for a batch that is padded (`SegmentBatch.padded_to`); read from the device if
            None.
    """

    def __init__(self, batch: SegmentBatch, options: PlanOptions, bounds: Bounds | None = None) -> None:
        super().__init__(options.directions)
        check_directions(options.directions)
        self._batch, (producers, consumers) = batch, batch.edge_index
        nodes = torch.arange(batch.num_nodes, device=batch.edge_index.device)
        self._ends: dict[Part, tuple[Tensor, Tensor]] = {
            "own": (nodes, nodes), "forward": (consumers, producers), "backward": (producers, consumers)
        }  # fmt: skip
        self._degrees = {
            part: torch.zeros_like(nodes).index_add(0, ends[0], torch.ones_like(ends[0]))
            for part, ends in self._ends.items()
        }
        classes = [Classes.of(each) for each in fingerprints(batch, options)]
        self._bounds = self._sizes(classes) if bounds is None else bounds
        self.levels = [DeviceLevel.of(each, rows) for each, rows in zip(classes, self._bounds.rows, strict=True)]
        self.num_groups = batch.num_segments * self.levels[0].row_of.shape[1] + 1

    def _sizes(self, classes: list[Classes]) -> Bounds:
        """Return the sizes of what is in use. The host waits for them."""
        batch, counts = self._batch, [each.of_node for each in classes]
        messages = [count * self._degrees[part] for count in counts[1:] for part in PARTS]
        numbers = [each.sum() for each in (*counts, *messages, counts[0][batch.config_nodes])]
        *found, given = torch.stack(numbers).tolist()
        rows, entries = found[: len(counts)], iter(found[len(counts) :])
        return Bounds(
            given, tuple(map(rounded, rows)), tuple({part: next(entries) for part in PARTS} for _ in counts[1:]), ()
        )

    def _near(self, parts: tuple[Part, ...], weights: Weights) -> tuple[Tensor, ...]:
        """Return what each node hears of others: place of the first message of each node; then of each message its
        sender, its part and its weight."""
        ends = [self._ends[part] for part in parts]
        order = torch.cat([receivers for receivers, _ in ends]).argsort(stable=True)
        starts = pad(sum((self._degrees[part] for part in parts), torch.zeros_like(ends[0][0][:1])).cumsum(0), (1, 0))
        number = [torch.full_like(senders, place) for place, (_, senders) in enumerate(ends)]
        scales = [self._scales(part, weights) for part in parts]
        messages = [senders for _, senders in ends], number, scales
        return starts, *(torch.cat(each)[order] for each in messages)

    def _scales(self, part: Part, weights: Weights) -> Float64[Tensor, " edges"]:
        """Return the weight of each message of a part."""
        receivers, senders = self._ends[part]
        if weights == "symmetric":
            scale = (1.0 + sum(self._degrees[direction].double() for direction in self.directions)) ** -0.5
            return scale[senders] * scale[receivers]
        if weights == "mean" and part != "own":
            return 1 / self._degrees[part].double()[receivers]
        return torch.ones_like(senders, dtype=torch.float64)

    def _entries(self, layer: int, parts: tuple[Part, ...], weights: Weights, stacked: bool) -> tuple[Tensor, ...]:
        before, after = self.levels[layer : layer + 2]
        starts, senders, number, scales = self.tensors("near", parts, weights)
        total, stride = sum(self._bounds.entries[layer][part] for part in parts), len(parts) if stacked else 1
        width = stride * len(before.node_of_row)
        heard = pad((starts.diff()[after.node_of_row] * (after.numbers < after.used)).cumsum(0), (1, 0))
        further = pad((after.numbers + 1 - after.used).clamp(min=0), (1, 0))  # unused rows so far: they share padding
        row_ptr = heard + further * (total - heard[-1]) // after.num_unused
        row, entry = rows_of(row_ptr, total), torch.arange(total, device=row_ptr.device)
        place = (starts[after.node_of_row[row]] + entry - row_ptr[row]).clamp(max=max(len(senders) - 1, 0))
        is_used, columns = row < after.used, before.row_of[senders[place], after.config_of_row[row]] * stride
        columns = torch.where(is_used, columns + number[place] if stacked else columns, entry % width)
        return self._both_ways(row_ptr, row, columns, scales[place] * is_used, width)

    @staticmethod
    def _both_ways(row_ptr: Tensor, row: Tensor, columns: Tensor, values: Tensor, width: int) -> tuple[Tensor, ...]:
        """Return a CSR matrix and its transpose; `row` is that of each entry."""
        ordered, order = columns.sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(width + 1, device=ordered.device))
        return row_ptr, columns, values, starts, row[order], values[order]

    def _row_of(self) -> tuple[Tensor, ...]:
        return (self.levels[-1].row_of,)

    def _picks(self) -> tuple[Tensor, ...]:
        level, nodes = self.levels[0], self._batch.num_nodes
        numbers, is_used = level.numbers, level.numbers < level.used
        columns = torch.where(is_used, level.node_of_row, numbers % nodes)
        row_ptr = torch.arange(len(numbers) + 1, device=numbers.device)
        return self._both_ways(row_ptr, numbers, columns, is_used.double(), nodes)

    def _given(self) -> tuple[Tensor, ...]:
        level, config_nodes, given = self.levels[0], self._batch.config_nodes, self._bounds.given
        slots = torch.arange(len(config_nodes), device=config_nodes.device)
        slot = torch.full_like(level.first[:-1], -1).scatter(0, config_nodes, slots)[level.node_of_row]
        is_given = (slot >= 0) & (level.numbers < level.used)
        place = torch.where(is_given, is_given.cumsum(0) - 1, given)
        padding = torch.arange(given + 1, device=place.device) % max(len(config_nodes), 1)
        further = level.used + torch.arange(given + 1, device=place.device) % level.num_unused
        rows = further.scatter(0, place, level.numbers)[:-1]
        configs = torch.zeros_like(padding).scatter(0, place, level.config_of_row)[:-1]
        return rows, torch.stack([padding.scatter(0, place, slot)[:-1], configs])

    def _groups(self, layer: int) -> tuple[Tensor, ...]:
        level = self.levels[layer + 1]
        kind = level.numbers - level.first[level.node_of_row]
        group = self._batch.segment_of_node[level.node_of_row] * level.row_of.shape[1] + kind
        return (torch.where(level.numbers < level.used, group, self.num_groups - 1),)
