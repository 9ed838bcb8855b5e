"""Plans for encoders: rows found on the host (`gst.nn.sharing`) or where the batch lies, or padded to fixed shapes.

Equal states are found where the batch lies by 64-bit fingerprints. The fingerprint of a node under a configuration
depends on all that the node knows: before the first layer on the features that the configuration gives it, after a
layer also on the fingerprints of the nodes that it hears. Equal fingerprints of a node share a row. Only tensor
operations find them, on whatever device, so that an accelerator waits for the host once, for the number of rows, and
not at all where sizes are given (`Bounds`).

Most states of a large step are equal, so that bounds for whatever is drawn are two to four times too large: where a
step may exceed them (`Sizes.likely`), they come from steps that were drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch, assemble
from gst.method.fixed_batch import DoesNotFit, Sizes, largest_sums
from gst.nn.sharing import PARTS, Direction, Part, Plan, PlanOptions, Sharing, Weights, check_directions
from gst.nn.sparse import rounded, rows_of
from gst.util.copies import fetch_together

Where = Literal["auto", "host", "device"]
DRAWN = 64  # steps whose largest tells what large plans are padded to

_where: Where = "auto"


def set_sharing(where: Where) -> None:
    """Choose where equal states are found from now on, in this process.

    Args:
        where: on the `host`, exactly; on the `device` of the batch, by fingerprints; `auto` is
            the device of a batch on an accelerator, and else the host. Padded steps find them on the device.

    Raises:
        ValueError: no such place.
    """
    global _where
    if where not in get_args(Where):
        raise ValueError(f"sharing {where!r}? equal states are found by one of {', '.join(get_args(Where))}")
    _where = where


@torch.compiler.disable
def planned(batch: SegmentBatch, options: PlanOptions) -> Plan:
    """The plan of a batch by these options, found once for each batch."""
    if options not in batch.plans:
        on_device = batch.edge_index.device.type != "cpu" if _where == "auto" else _where != "host"
        batch.plans[options] = DeviceSharing(batch, options) if on_device else Sharing.of(batch, *options)
    return batch.plans[options]


class FixedPlans:
    """The plans of an encoder, padded to their `Bounds`. Implements `gst.method.fixed_batch.Plans`."""

    def __init__(self, options: PlanOptions, sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int) -> None:
        self.options = options
        self.bounds = Bounds.of(options, sizes, graphs, num_fresh, partial(_largest, sizes, graphs, num_fresh, options))

    def check(self, batch: SegmentBatch) -> None:
        """Raise `DoesNotFit` if the plan of a batch of the host, not padded, is larger than its bounds."""
        fits = self.bounds.hold_any(batch, self.options) or (further(batch, self.options) <= self.bounds.most).all()
        if not fits:
            raise DoesNotFit("a plan has more rows or messages than the padded one; were its graphs in the sizes?")

    def padding(self, batch: SegmentBatch) -> float:
        """Return how many times as many rows the padded plan has as that of this batch of the host."""
        return sum(self.bounds.rows) / sum(level.num_rows for level in Sharing.of(batch, *self.options).levels)

    def of(self, padded: SegmentBatch) -> dict[PlanOptions, Plan]:
        """Return the plan of a padded batch, made where it is, by operations of fixed shapes."""
        return {self.options: DeviceSharing(padded, self.options, self.bounds)}


def further(batch: SegmentBatch, options: PlanOptions) -> Int64[np.ndarray, " counts"]:
    """Return how many more rows and messages the plan of a batch of the host has than under one configuration: rows
    before the first layer and after each, then messages of each layer by part."""
    more = [np.diff(level.first) - 1 for level in Sharing.of(batch, *options).levels]
    producers, consumers = batch.edge_index.numpy()
    messages = [count for each in more[1:] for count in (each.sum(), each[consumers].sum(), each[producers].sum())]
    return np.array([*(each.sum() for each in more), *messages])


def _largest(
    sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int, options: PlanOptions
) -> Int64[np.ndarray, " counts"]:
    """Return the largest counts of some steps; their graphs, by numbers of configurations, fresh segments and
    configurations are drawn."""
    generator, counts = np.random.default_rng(0), []
    lists = np.array([-(-graph.num_configs // sizes.configs) for graph in graphs])
    for _ in range(DRAWN):
        some = [graphs[each] for each in generator.choice(len(graphs), sizes.graphs, p=lists / lists.sum())]
        fresh = [generator.permutation(graph.num_segments)[:num_fresh].tolist() for graph in some]
        rows = [torch.from_numpy(generator.permutation(graph.num_configs)[: sizes.configs]) for graph in some]
        configs = torch.stack([pad(each, (0, sizes.configs - len(each)), value=-1) for each in rows])
        picks = [(number, each) for number, mine in enumerate(fresh) for each in mine]
        counts.append(further(assemble(some, picks, configs), options))
    return np.max(counts, axis=0)


# Equal states by fingerprints ----------------------------------------------------------------------------------------

PADDING_A_ROW = 64  # entries without weight that an unused row takes at most: a kernel adds those of one row in turn
SMALL, MARGIN = 1 << 10, 1.125  # further rows in likely bounds, at least, and times those of the steps drawn
ROUNDS = ((30, -4658895280553007687), (27, -7723592293110705685))  # of the finaliser of SplitMix64 (Steele et al. 2014)


def mixed(x: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Return integers that look random, number by number: those of x and -1 - x are equal, as shifts keep the sign."""
    for shift, factor in ROUNDS:
        x = (x ^ (x >> shift)) * factor
    return x ^ (x >> 31)


def fingerprints(batch: SegmentBatch, options: PlanOptions) -> list[Int64[Tensor, "nodes configs"]]:
    """Return a number for what each node knows under each configuration, before the first layer and after each.

    Two of one node that should differ are equal with a probability of some 2^-62: all in all about configs^2 nodes /
    2^63.
    """
    configs = batch.num_configs
    device, (producers, consumers) = batch.edge_index.device, batch.edge_index
    nothing = torch.zeros(batch.num_nodes, configs, dtype=torch.int64, device=device)
    if configs == 1 or not options.share:
        return [nothing + torch.arange(configs, device=device)] * (options.num_layers + 1)
    bits = (batch.config_features.double() + 0.0).view(torch.int64)  # + 0.0, since -0.0 is 0.0
    column = mixed(torch.arange(1, bits.shape[2] + 1, device=device))
    content = nothing.index_add(0, batch.config_nodes, mixed(bits ^ column).sum(2))
    by_layer, node = [content], mixed(torch.arange(1, batch.num_nodes + 1, device=device))[:, None]
    for _ in range(options.num_layers):
        sent = mixed(content + node)  # which node says it counts too
        if "forward" in options.directions:
            content = content.index_add(0, consumers, sent.index_select(0, producers))
        if "backward" in options.directions:
            content = content.index_add(0, producers, sent.index_select(0, consumers))
        by_layer.append(content)
    return by_layer


class Classes(NamedTuple):
    """Configurations of each node by class, equal ones side by side.

    Args:
        row: of each configuration in `order`; the rows of a node lie side by side.
        is_first: whether it is the first of its row.
    """

    order: Int64[Tensor, "nodes configs"]
    row: Int64[Tensor, "nodes configs"]
    is_first: Bool[Tensor, "nodes configs"]

    @staticmethod
    def of(known: Int64[Tensor, "nodes configs"]) -> Classes:
        ordered, order = known.sort(dim=1, stable=True)
        is_first = pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
        return Classes(order, is_first.flatten().cumsum(0).view_as(order) - 1, is_first)

    @property
    def first(self) -> Int64[Tensor, " nodes_plus_one"]:
        """The first row of each node, and the number of rows."""
        return torch.cat([self.row[:, 0], self.row[-1:, -1] + 1])


class DeviceLevel(NamedTuple):
    """The rows after some layers.

    Args:
        row_of: of each node and configuration.
        first: the first row of each node, and the number of rows in use at the end. Further rows are unused.
        numbers, is_used: of all rows.
    """

    row_of: Int64[Tensor, "nodes configs"]
    first: Int64[Tensor, " nodes_plus_one"]
    node_of_row: Int64[Tensor, " rows"]
    config_of_row: Int64[Tensor, " rows"]
    numbers: Int64[Tensor, " rows"]
    is_used: Bool[Tensor, " rows"]

    @staticmethod
    def of(classes: Classes, rows: int) -> DeviceLevel:
        (order, row, is_first), first = classes, classes.first
        place = torch.where(is_first, row, rows).flatten()  # those that stand for no row go behind the last
        pairs = torch.arange(row.numel(), device=row.device)
        pair_of_row = row.new_zeros(rows + 1).scatter_(0, place, pairs)[:-1]
        numbers = torch.arange(rows, device=row.device)
        row_of, config_of_row = torch.empty_like(row).scatter_(1, order, row), order.flatten()[pair_of_row]
        return DeviceLevel(row_of, first, pair_of_row // row.shape[1], config_of_row, numbers, numbers < first[-1])

    @property
    def used(self) -> Int64[Tensor, ""]:
        return self.first[-1]

    @property
    def num_unused(self) -> Int64[Tensor, ""]:
        """At least 1, for divisions."""
        return (len(self.numbers) - self.used).clamp(min=1)


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
            "own": (nodes, nodes),
            "forward": (consumers, producers),
            "backward": (producers, consumers),
        }
        ones = torch.ones_like(producers)
        heard = {part: torch.zeros_like(nodes).index_add_(0, self._ends[part][0], ones) for part in get_args(Direction)}
        self._degrees = {"own": torch.ones_like(nodes)} | heard
        classes = [Classes.of(each) for each in fingerprints(batch, options)]
        self._bounds = self._sizes(classes) if bounds is None else bounds
        self.levels = [DeviceLevel.of(each, rows) for each, rows in zip(classes, self._bounds.rows, strict=True)]

    def _sizes(self, classes: list[Classes]) -> Bounds:
        """Return the sizes of what is in use. The host waits for them."""
        batch, counts = self._batch, [each.first.diff() for each in classes]
        messages = [count * self._degrees[part] for count in counts[1:] for part in PARTS]
        numbers = [each.sum() for each in (*counts, *messages, counts[0][batch.config_nodes])]
        *counted, pairs = torch.stack(numbers).tolist()
        rows, entries = counted[: len(counts)], iter(counted[len(counts) :])
        return Bounds(
            pairs, tuple(map(rounded, rows)), tuple({part: next(entries) for part in PARTS} for _ in counts[1:]), ()
        )

    def _near(self, parts: tuple[Part, ...], weights: Weights) -> tuple[Tensor, ...]:
        """Return what each node hears of others: number of messages of each node, and place of the first; then of each
        message its sender, its part and its weight."""
        ends = [self._ends[part] for part in parts]
        order = torch.cat([receivers for receivers, _ in ends]).argsort(stable=True)
        degrees = torch.stack([self._degrees[part] for part in parts]).sum(0)
        number = [torch.full_like(senders, place) for place, (_, senders) in enumerate(ends)]
        scales = torch.cat([self._scales(part, weights) for part in parts]).to(self._batch.config_features.dtype)
        messages = torch.cat([senders for _, senders in ends]), torch.cat(number), scales
        return degrees, degrees.cumsum(0) - degrees, *(each[order] for each in messages)

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
        if parts == ("own",) and weights == "sum":
            columns = before.row_of[after.node_of_row, after.config_of_row]
            return self._one_a_row(after, columns, len(before.numbers))
        degrees, starts, senders, number, scales = self.tensors("near", parts, weights)
        total, stride = sum(self._bounds.entries[layer][part] for part in parts), len(parts) if stacked else 1
        width = stride * len(before.numbers)
        heard = pad((degrees[after.node_of_row] * after.is_used).cumsum(0), (1, 0))
        further = pad((after.numbers + 1 - after.used).clamp(min=0), (1, 0))  # unused rows so far: they share padding
        row_ptr = heard + further * (total - heard[-1]) // after.num_unused
        row, entry = rows_of(row_ptr, total), torch.arange(total, device=row_ptr.device)
        place = (entry + (starts[after.node_of_row] - row_ptr[:-1])[row]).clamp(max=max(len(senders) - 1, 0))
        is_used, columns = after.is_used[row], before.row_of[senders[place], after.config_of_row[row]] * stride
        columns = torch.where(is_used, columns + number[place] if stacked else columns, entry % width)
        return self._both_ways(row_ptr, row, columns, scales[place] * is_used, width)

    def _one_a_row(self, level: DeviceLevel, columns: Int64[Tensor, " rows"], width: int) -> tuple[Tensor, ...]:
        """Return a matrix with one entry in each row, of weight 1 if the row is in use and else 0."""
        row_ptr = torch.arange(len(columns) + 1, device=columns.device)
        columns = torch.where(level.is_used, columns, level.numbers % width)
        weights = level.is_used.to(self._batch.config_features.dtype)
        return self._both_ways(row_ptr, level.numbers, columns, weights, width)

    @staticmethod
    def _both_ways(row_ptr: Tensor, row: Tensor, columns: Tensor, values: Tensor, width: int) -> tuple[Tensor, ...]:
        """Return a CSR matrix and its transpose; `row` is that of each entry."""
        ordered, order = columns.sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(width + 1, device=ordered.device))
        return row_ptr, columns, values, starts, row[order], values[order]

    def _row_of(self) -> tuple[Tensor, ...]:
        return (self.levels[-1].row_of,)

    def _picks(self) -> tuple[Tensor, ...]:
        return self._one_a_row(self.levels[0], self.levels[0].node_of_row, self._batch.num_nodes)

    def _inputs(self) -> tuple[Tensor, ...]:
        level, config_nodes, pairs = self.levels[0], self._batch.config_nodes, self._bounds.pairs
        slots = torch.arange(len(config_nodes), device=config_nodes.device)
        slot = torch.full_like(level.first[:-1], -1).scatter_(0, config_nodes, slots)[level.node_of_row]
        is_configurable = (slot >= 0) & level.is_used
        place = torch.where(is_configurable, is_configurable.cumsum(0) - 1, pairs)
        numbers = torch.arange(pairs + 1, device=place.device)
        rows = (level.used + numbers % level.num_unused).scatter_(0, place, level.numbers)[:-1]
        configs = torch.zeros_like(numbers).scatter_(0, place, level.config_of_row)[:-1]
        return rows, torch.stack([(numbers % max(len(config_nodes), 1)).scatter_(0, place, slot)[:-1], configs])


class Bounds(NamedTuple):
    """Sizes to which a plan of a padded batch is padded.

    Args:
        pairs: pairs of a configurable node and a configuration.
        rows: before the first layer and after each: so many more than can be in use that no unused row has more than
            `PADDING_A_ROW` of the entries that are padding.
        entries: of the matrices of each layer, by part; one of the own part alone has an entry in each row.
        most: rows and messages that there can be because configurations differ, in the order of `_more`.
    """

    pairs: int
    rows: tuple[int, ...]
    entries: tuple[Mapping[Part, int], ...]
    most: tuple[int, ...]

    @staticmethod
    def of(
        options: PlanOptions,
        sizes: Sizes,
        graphs: Sequence[SegmentedGraph],
        num_fresh: int,
        drawn: Callable[[], Int64[np.ndarray, " counts"]],
    ) -> Bounds:
        """Return bounds of the plans of all steps with `num_fresh` fresh segments of at most `sizes.graphs` graphs, or
        likely ones; `drawn` returns `most` of the largest of some steps."""
        layers, configs = options.num_layers, sizes.configs
        counts = np.array([sizes.nodes] * (layers + 1) + [sizes.nodes, sizes.edges, sizes.edges] * layers)
        if options.share:
            each = largest_sums(graphs, num_fresh, partial(_of_segments, options=options))
            more = (configs - 1) * sizes.graphs * each
            if sizes.likely and more.max() > SMALL:
                more = np.minimum(more, np.maximum(np.ceil(MARGIN * drawn()), SMALL).astype(np.int64))
        else:
            more = (configs - 1) * counts
        most = counts + more
        rows, messages = most[: layers + 1], most[layers + 1 :].reshape(layers, len(PARTS))
        pairs = sizes.configurable * configs
        padding = np.append(pairs, messages.sum(axis=1)) // PADDING_A_ROW + 1
        entries = tuple(dict(zip(PARTS, each, strict=True)) for each in messages.tolist())
        return Bounds(pairs, tuple(map(rounded, (rows + padding).tolist())), entries, tuple(more.tolist()))

    def hold_any(self, batch: SegmentBatch, options: PlanOptions) -> bool:
        """Return True if the plan of a batch of the host, not padded, fits even if all states differ that may."""
        if not options.share:
            return True
        more = _more(batch.num_nodes, batch.config_nodes.numpy(), batch.edge_index.numpy(), options)
        return bool(((batch.num_configs - 1) * np.array(more) <= self.most).all())


def _of_segments(graph: SegmentedGraph, options: PlanOptions) -> Int64[np.ndarray, "segments counts"]:
    rows = []
    fetch_together((array, slice(None)) for array in (graph.edges.T, graph.config_rows))
    for segment, nodes in enumerate(np.diff(graph.row_ptr)):
        inside, uses = (slice(*each[segment : segment + 2]) for each in (graph.edge_ptr, graph.config_ptr))
        rows.append(_more(int(nodes), graph.config_rows[uses], graph.edges[:, inside], options))
    return np.array(rows)


def _more(nodes: int, configurable: np.ndarray, edges: np.ndarray, options: PlanOptions) -> list[int]:
    """Return for each further configuration the rows before the first layer and after each, then the messages of each
    layer by part: a node that a configurable one reaches has a row for every configuration."""
    producers, consumers = edges
    reached = np.zeros(nodes, bool)
    reached[configurable] = True
    rows, messages = [int(reached.sum())], list[int]()
    for _ in range(options.num_layers):
        before, reached = reached, reached.copy()
        if "forward" in options.directions:
            reached[consumers[before[producers]]] = True
        if "backward" in options.directions:
            reached[producers[before[consumers]]] = True
        rows.append(int(reached.sum()))
        messages += [rows[-1], *(int(reached[ends].sum()) for ends in (consumers, producers))]
    return rows + messages
