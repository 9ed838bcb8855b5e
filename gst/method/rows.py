"""Rows of an embedding table for the steps of one model: keys, reads, and writes that wait for finite gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import Pushed, ShardedTable
from embedding_cache.table import Staged
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.combination import Part, RowSource
from gst.method.draws import Catalogue, Draw, table_keys

PULL_ROWS = 1 << 13  # (segment, configuration) pairs taken from the table at once


@runtime_checkable
class StepRows(RowSource, Protocol):
    """Rows of the table for the segments of one step, in this process."""

    def begin(self) -> None:
        """Begin to fetch rows that other processes hold, if there are any."""

    def of(self, segments: Int64[Tensor, " chosen"]) -> Float[Tensor, "chosen configs channels"]:
        """Return the rows of `segments` on the device of the model, in float32 at least; zeros where there is none."""

    def push(
        self, embedded: Float[Tensor, "chosen configs channels"], segments: Int64[Tensor, " chosen"]
    ) -> Staged | Pushed:
        """Write the rows of the fresh `segments` after the step, unless a condition of the result fails."""

    def push_missing(self, embedded: Sequence[Tensor], segments: Int64[Tensor, " chosen"]) -> None:
        """Write the rows of `segments` that have none."""


@dataclass(frozen=True, eq=False)
class PrefetchedStep:
    """A draw and its fresh segments on the device of the model, where they are once `arrived`; None if frozen."""

    draw: Draw
    batch: SegmentBatch | None
    rows: StepRows | None = None
    arrived: torch.Event | None = None

    def begin(self, device: torch.device) -> None:
        """Let work on a device wait for the segments, and begin to fetch rows."""
        if self.arrived is not None and self.batch is not None:
            stream = torch.accelerator.current_stream(device)
            stream.wait_event(self.arrived)
            self.batch.node_features.record_stream(stream)  # all tensors of the batch are one piece of memory
        if self.rows is not None:
            self.rows.begin()


class ModelKeys:
    """The keys of one model, whose number is `slot`, in a table that other models may share."""

    def __init__(self, table: EmbeddingTable | ShardedTable, by_class: bool) -> None:
        self.table, self.by_class = table, by_class
        self.slot: int | None = None

    def of(self, catalogue: Catalogue, configs: Int64[Tensor, "graphs configs"]) -> Int64[Tensor, "segments configs"]:
        """Return the keys of all segments (`table_keys`); the table grows to hold them."""
        ranges = self.table.ranges
        self.slot = ranges.slot(self, self.slot)
        keys = table_keys(catalogue, configs, ranges, self.slot, self.by_class)
        if ranges.num_keys > self.table.num_keys:
            self.table.resize(ranges.num_keys)
        return keys

    def register(self, graph: SegmentedGraph) -> None:
        """Allocate the keys of a graph, if it has none."""
        if self.slot is None or not self.table.ranges.has(self.slot, graph.fingerprint):
            self.of(Catalogue.of([graph]), torch.zeros(1, 1, dtype=torch.int64))

    def forget(self) -> None:
        """Leave all rows of the model unread: clear a table of its own, take new keys in a shared one."""
        if self.table.ranges.num_slots > 1:
            self.slot = self.table.ranges.slot(self)
        else:
            self.table.clear()

    def check_width(self, width: int) -> None:
        """Raise ValueError if embeddings of `width` numbers do not fit into the rows of the table."""
        if (rows := self.table.channels) != width:
            advice = f"EmbeddingTable({self.table.num_keys}, {width})"
            advice = f"ShardedTable({advice})" if isinstance(self.table, ShardedTable) else advice
            raise ValueError(
                f"the table holds rows of {rows} numbers, and the encoder returns {width}: make it {advice}"
            )


class OwnRows:
    """`StepRows` of a table that belongs to this process alone.

    Args:
        like: returns a tensor on the device and in the dtype of the model.
    """

    are_of_now = False

    def __init__(self, keys: ModelKeys, draw: Draw, like: Callable[[], Tensor]) -> None:
        assert isinstance(keys.table, EmbeddingTable)
        self._table, self._model_keys, self._draw, self._like = keys.table, keys, draw, like

    @cached_property
    def keys(self) -> Int64[Tensor, "segments configs"]:
        """The keys of all segments; the first access may allocate them."""
        return self._model_keys.of(self._draw.catalogue, self._draw.configs)

    def begin(self) -> None:
        return

    def ages(self) -> Int64[Tensor, "segments configs"]:
        written = self._table.written(self.keys.clamp(min=0).flatten()).cpu().view_as(self.keys)
        return torch.where((self.keys >= 0) & (written >= 0), (self._draw.number - written).clamp(min=0), -1)

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        return parts_of(self, is_read, self.keys.shape[1])

    def of(self, segments: Int64[Tensor, " chosen"]) -> Float[Tensor, "chosen configs channels"]:
        keys, like = self.keys[segments], self._like()
        ahead = like.device.type != "cpu"  # a host may not read what is still on its way to it
        summed_as = torch.promote_types(like.dtype, torch.float32)  # half precision would lose what is added to a sum
        rows = self._table.pull(keys.clamp(min=0).flatten())[0].to(like.device, summed_as, non_blocking=ahead)
        return rows.view(*keys.shape, rows.shape[1])

    def push(self, embedded: Float[Tensor, "chosen configs channels"], segments: Int64[Tensor, " chosen"]) -> Staged:
        """Stage the rows: a step that `GradScaler` skips leaves the table as it was. A key that comes more than once
        (it stands for all configurations, or its graph is here twice) is written once."""
        flat = self.keys[segments].flatten()
        first = first_of_each(flat)
        rows = embedded.detach().flatten(0, 1)[first.to(embedded.device, non_blocking=True)]
        segment_of_row = segments[first // self.keys.shape[1]]
        refused = partial(report, self._draw.catalogue, segment_of_row, self._draw.number)
        return self._table.stage(flat[first], rows, self._draw.number, refused)

    def push_missing(self, embedded: Sequence[Tensor], segments: Int64[Tensor, " chosen"]) -> None:
        if embedded:
            self.push(torch.cat([*embedded]), segments)

    def summed(self, values: Float64[Tensor, " numbers"]) -> Float64[Tensor, " numbers"]:
        return values


def first_of_each(keys: Int64[Tensor, " keys"]) -> Int64[Tensor, " distinct"]:
    """Return where each key is first found, ascending; negative ones are none.

    Examples:
        >>> first_of_each(torch.tensor([0, -1, 3, 0]))
        tensor([0, 2])
    """
    distinct, inverse = keys.unique(return_inverse=True)
    first = torch.full_like(distinct, len(keys)).scatter_reduce(0, inverse, torch.arange(len(keys)), "amin")
    return first[distinct >= 0].sort().values


def parts_of(rows: StepRows, is_read: Bool[Tensor, " segments"], num_configs: int) -> Iterator[Part]:
    """Yield the segments that are read and their rows, at most `PULL_ROWS` rows or a single segment at a time."""
    segments = is_read.nonzero().squeeze(1)
    return ((chunk, rows.of(chunk)) for chunk in segments.split(max(1, PULL_ROWS // num_configs)))


def require_finite_gradients(embedded: Tensor, encoder: object, pushed: Staged | Pushed) -> None:
    """Require in the backward pass that the gradient of the embeddings is finite; rows of one table wait for that.

    Under autocast in float16, whose range gradients may leave inside the encoder, the gradients of all of its
    parameters count too."""
    if not embedded.requires_grad:
        return

    def hook(gradient: Tensor) -> None:
        pushed.require(gradient.isfinite().all())

    embedded.register_hook(hook)
    if isinstance(pushed, Staged):
        pushed.await_condition(hook)
    device = embedded.device.type
    half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    if not (half and isinstance(encoder, nn.Module)):
        return

    def check(gradients: Sequence[Tensor | None]) -> None:
        handle.remove()
        pushed.require(torch.stack([each.isfinite().all() for each in gradients if each is not None]).all())

    parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    handle = torch.autograd.graph.register_multi_grad_hook(parameters, check)


def report(catalogue: Catalogue, segment_of_row: Tensor, step: int, places: Tensor) -> None:
    """Warn of the rows at `places`, which are not finite and so not written, once for a step."""
    segments = segment_of_row[places.cpu()].unique()
    names = [
        f"segment {number} of graph {catalogue.graphs[graph].name!r}" for graph, number in catalogue.picks(segments)
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    warnings.warn(
        f"step {step}: embeddings of {', '.join(names[:3])}{more} are not finite; the table keeps its old rows of "
        "them: look at the features of these graphs, or lower the learning rate",
        stacklevel=2,
    )
