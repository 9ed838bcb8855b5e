"""Rows of an embedding table for the steps of one model, and the state of that model beside its modules."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import Pushed, ShardedTable
from embedding_cache.table import Staged
from gst.graphs.segments import SegmentedGraph
from gst.method import encoding, origins
from gst.method.batch import SegmentBatch
from gst.method.draws import Catalogue, Draw, table_keys
from gst.method.estimates import Part, RowSource, pool_all

PULL_ROWS = 1 << 13  # (segment, configuration) pairs taken from the table at once

Chosen = Int64[Tensor, " chosen"]
Embedded = Float[Tensor, "chosen configs channels"]
Kept = Float[Tensor, "chosen entries channels"]
IsKnown = Bool[Tensor, "chosen configs"]


@runtime_checkable
class StepRows(RowSource, Protocol):
    """Rows of the table for the segments of one step, in this process.

    Attributes:
        num_configs: configurations of the step.
    """

    num_configs: int

    def begin(self) -> None:
        """Begin to fetch rows that other processes hold, if there are any."""
        return

    def has_origins(self) -> bool:
        """Return True if the table keeps rows relative to the origins of their segments (`gst.method.origins`)."""
        return False

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        """Yield the segments that are read and their rows, at most `PULL_ROWS` rows or a single segment at a time."""
        segments = is_read.nonzero().squeeze(1)
        return ((chunk, self.of(chunk)) for chunk in segments.split(max(1, PULL_ROWS // self.num_configs)))

    def of(self, segments: Chosen) -> Embedded:
        """Return the rows of `segments` on the device of the model, in float32 at least; zeros where there is none, or
        the origin."""
        return origins.absolute(self.kept(segments)) if self.has_origins() else self.kept(segments)

    def kept(self, segments: Chosen) -> Kept:
        """Return what the table keeps of `segments`; zeros where it keeps nothing."""

    def origin_keys(self, segments: Chosen) -> Chosen:
        """Return the keys of the origins of `segments`; -1 where there is none."""

    def to_keep(self, embedded: Embedded, segments: Chosen, is_known: IsKnown) -> Kept:
        """Return what the table shall keep of new embeddings; the change of rows that are known moves the origin."""
        if not self.has_origins():
            return embedded.detach()
        kept, keys = self.kept(segments), self.origin_keys(segments)
        marks = is_known, origins.first_of_same(keys), keys >= 0
        return origins.relative(embedded.detach(), kept, *(each.to(kept.device, non_blocking=True) for each in marks))

    def push(self, embedded: Embedded, segments: Chosen, is_known: IsKnown) -> Staged | Pushed:
        """Write the rows of the fresh `segments` after the step, unless a condition of the result fails. The change of
        those that are known moves the origin."""

    def push_missing(self, embedded: Sequence[Tensor], segments: Chosen) -> None:
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

    def of(self, catalogue: Catalogue, configs: Int64[Tensor, "graphs configs"]) -> Int64[Tensor, "segments entries"]:
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


class OwnRows(StepRows):
    """Rows of a table that belongs to this process alone.

    Args:
        like: returns a tensor on the device and in the dtype of the model.
    """

    def __init__(self, keys: ModelKeys, draw: Draw, like: Callable[[], Tensor]) -> None:
        assert isinstance(keys.table, EmbeddingTable)
        self.num_configs = draw.configs.shape[1]
        self._table, self._model_keys, self._draw, self._like = keys.table, keys, draw, like

    @cached_property
    def keys(self) -> Int64[Tensor, "segments entries"]:
        """The keys of all segments; the first access may allocate them."""
        return self._model_keys.of(self._draw.catalogue, self._draw.configs)

    def has_origins(self) -> bool:
        return self.keys.shape[1] > self.num_configs

    def ages(self) -> Int64[Tensor, "segments configs"]:
        written = self._table.written(self.keys.clamp(min=0).flatten()).cpu().view_as(self.keys)
        return origins.ages(written, self.keys >= 0, self.num_configs, self._draw.number)

    def origin_keys(self, segments: Chosen) -> Chosen:
        return self.keys[segments, -1]

    def kept(self, segments: Chosen) -> Kept:
        keys, like = self.keys[segments], self._like()
        ahead = like.device.type != "cpu"  # a host may not read what is still on its way to it
        summed_as = torch.promote_types(like.dtype, torch.float32)  # half precision would lose what is added to a sum
        rows = self._table.pull(keys.clamp(min=0).flatten())[0].to(like.device, summed_as, non_blocking=ahead)
        return origins.without_absent(rows.view(*keys.shape, rows.shape[1]), keys >= 0, self.num_configs)

    def push(self, embedded: Embedded, segments: Chosen, is_known: IsKnown) -> Staged:
        """Stage the rows: a step that `GradScaler` skips leaves the table as it was. A key that comes more than once
        (it stands for all configurations, or its graph is here twice) is written once."""
        flat = self.keys[segments].flatten()
        first = first_of_each(flat)
        rows = self.to_keep(embedded, segments, is_known).flatten(0, 1)[first.to(embedded.device, non_blocking=True)]
        segment_of_row = segments[first // self.keys.shape[1]]
        refused = partial(report, self._draw.catalogue, segment_of_row, self._draw.number)
        return self._table.stage(flat[first], rows, self._draw.number, refused)

    def push_missing(self, embedded: Sequence[Tensor], segments: Chosen) -> None:
        if embedded:
            new = torch.cat([*embedded])
            self.push(new, segments, torch.zeros(new.shape[:2], dtype=torch.bool))


def first_of_each(keys: Int64[Tensor, " keys"]) -> Int64[Tensor, " distinct"]:
    """Return where each key is first found, ascending; negative ones are none.

    Examples:
        >>> first_of_each(torch.tensor([0, -1, 3, 0]))
        tensor([0, 2])
    """
    distinct, inverse = keys.unique(return_inverse=True)
    first = torch.full_like(distinct, len(keys)).scatter_reduce(0, inverse, torch.arange(len(keys)), "amin")
    return first[distinct >= 0].sort().values


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


STATE_VERSION = 4  # of checkpoints: rows of 1 are by names of graphs, of 2 by configurations; 3 has no origins


class RowsVersion:
    """Version of the weights that computed the rows. While `is_trusted`, rows are of whatever weights come next."""

    def __init__(self, is_trusted: bool = False) -> None:
        self.is_trusted = is_trusted
        self._weights: tuple[Any, ...] | None = None

    def renew(self, weights: tuple[Any, ...]) -> None:
        self._weights, self.is_trusted = weights, False

    def is_of(self, weights: tuple[Any, ...]) -> bool:
        """True if these weights computed the rows, or the caller vouches for that."""
        if self.is_trusted:
            self.renew(weights)
        return self._weights == weights


def version(module: object) -> tuple[Any, ...]:
    """Return a value that changes with a parameter, buffer, plain tensor or number of a module; constant for FSDP's
    shards. On accelerators, for which the host would wait, it misses writes through `data`."""
    if not isinstance(module, nn.Module):
        return (0,)
    own = [(name, value) for layer in module.modules() for name, value in vars(layer).items()]
    tensors = [*module.parameters(), *module.buffers(), *(value for _, value in own if isinstance(value, Tensor))]
    if any(hasattr(tensor, "to_local") or tensor.is_inference() for tensor in tensors):
        return (0,)
    plain = tuple(each for each in own if each[0] != "training" and isinstance(each[1], bool | int | float | str))
    return *map(_identity, tensors), *plain


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    if nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        return id(tensor), tensor.dtype
    if tensor.device.type != "cpu":
        return id(tensor), tensor.dtype, tensor._version, tensor.data_ptr()
    values = tensor.detach().resolve_conj().flatten().clone()  # NumPy would fix the size of memory that FSDP frees
    return id(tensor), tensor.dtype, zlib.crc32(values.view(torch.uint8).numpy().data)


def weights_before_rows(model: Any) -> tuple[Any, ...]:
    """Return the version of all weights that compute the rows of a `GraphSegmentTraining`."""
    return tuple(map(version, model.before_rows))


def freeze(model: Any) -> None:
    """Freeze all parameters that compute rows."""
    model.encoder_frozen = True
    for parameter in [p for m in model.before_rows if isinstance(m, nn.Module) for p in m.parameters()]:
        if not nn.parameter.is_lazy(parameter):
            parameter.requires_grad_(False)
            parameter.grad = None  # else an optimizer would go on by it


def forget_rows(model: Any) -> None:
    """Leave the rows unread that other weights made."""
    if model.keys is not None:
        model.keys.forget()
    model.rows_version.renew(weights_before_rows(model))


@torch.compiler.disable
def embed_frozen(model: Any, step: PrefetchedStep) -> Float[Tensor, "graphs configs channels"]:
    """Return exact pooled embeddings, so the encoder is in evaluation mode."""
    encoding.check_reducer()
    if not model.rows_version.is_of(weights_before_rows(model)):
        freeze(model)  # lazy layers may have taken their widths since
        forget_rows(model)
    catalogue, configs, rows = step.draw.catalogue, step.draw.configs, step.rows or model.rows_of(step.draw)
    everything, num_configs, like = torch.arange(len(catalogue)), configs.shape[1], model.like()
    with encoding.evaluating(*model.before_rows):
        if rows is None:
            parts = model.encoded(catalogue, everything, configs)
            return pool_all(catalogue, num_configs, parts, model.pooling, like.device)
        rows.begin()
        is_missing = ((rows.ages() < 0) & (configs[catalogue.graph] >= 0)).any(1)
        encoded = list(model.encoded(catalogue, everything[is_missing], configs))
        parts = itertools.chain(rows.parts(~is_missing), encoded)
        pooled = pool_all(catalogue, num_configs, parts, model.pooling, like.device)
        # After others were pulled: a full table evicts them.
        rows.push_missing([each for _, each in encoded], everything[is_missing])
    if encoded:  # a number that the encoder itself counts up changes no row
        model.rows_version.renew(weights_before_rows(model))
    return pooled


def state_of(model: Any) -> dict[str, Any]:
    """Return the state of a model that is in none of its modules."""
    return {
        "version": STATE_VERSION, "step": model.step, "seed": model.seed, "encoder_frozen": model.encoder_frozen,
        "slot": None if model.keys is None else model.keys.slot,
        "regression": None if model.learned is None else model.learned.state_dict(),
    }  # fmt: skip


def restore(model: Any, state: dict[str, Any]) -> None:
    """Load what `state_of` returned; ValueError if rows of its table have other keys now."""
    if state.get("version", 1) != STATE_VERSION and model.table is not None:
        raise ValueError(
            f"the checkpoint is of version {state.get('version', 1)}, and rows of a table have other keys in "
            f"version {STATE_VERSION}: train again, or load it into a model without a table"
        )
    model.step, model.seed = state["step"], state["seed"]
    if model.keys is not None:
        model.keys.slot = state.get("slot")
    if model.learned is not None and state.get("regression") is not None:
        model.learned.load_state_dict(state["regression"])
    if state["encoder_frozen"]:
        freeze(model)
        model.rows_version.is_trusted = True  # until `after_loading`, once encoder and table are loaded too


def make_table(model: Any, like: Float[Tensor, "*rows channels"]) -> None:
    """Make the table of a model with `table=True` for such rows, if there is none yet."""
    if model.makes_table and model.table is None:
        dtype = like.dtype if like.dtype == torch.float64 else torch.float32
        model.table = EmbeddingTable(1, like.shape[-1], dtype, like.device)
        model.keys = ModelKeys(model.table, by_class=model.estimate.reads == "all")


def make_table_of(model: Any, graph: SegmentedGraph) -> None:
    """Make the table of a model with `table=True` for embeddings of a graph, if there is none yet."""
    if model.makes_table and model.table is None:
        make_table(model, model.like().new_empty(0, model.channels(graph)))


def before_loading(model: Any, state: dict[str, Any], prefix: str, *others: Any) -> None:
    """Make the table of a model with `table=True` as wide as the rows in `state`. Without a table, leave rows unread
    and say so among the unexpected keys."""
    unexpected_keys = others[3]
    rows = [key for key in state if key.startswith(f"{prefix}table.")]
    if model.makes_table and not rows and model.table is not None:
        model.table.clear()  # the checkpoint is of a model before its first step
        state[f"{prefix}table._extra_state"] = model.table.get_extra_state()
    elif model.makes_table and rows and model.table is None:
        make_table(model, state[f"{prefix}table._extra_state"]["rows"])
    elif model.table is None and rows:
        for key in rows:
            del state[key]
        unexpected_keys.append(
            "the checkpoint holds an embedding table, and the model has none: make it with table=True, or leave the "
            "rows unread by load_state_dict(state, strict=False)"
        )


def after_loading(model: Any, incompatible: object) -> None:
    """Keep the rows of an encoder that was saved frozen; forget those of one that was frozen here."""
    if model.encoder_frozen and model.rows_version.is_trusted:
        freeze(model)
        model.rows_version.renew(weights_before_rows(model))
    elif model.encoder_frozen:
        forget_rows(model)
