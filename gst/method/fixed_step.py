"""Training steps of fixed shapes: each runs the same operations on the same memory, and can be recorded once.

A thread of the host draws and reads a step, and one copy brings it to the device, which finds and writes rows of the
table by itself (`EmbeddingTable.dense`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from embedding_cache import EmbeddingTable
from embedding_cache.index import write_where
from embedding_cache.storage import Arrivals
from gst.graphs.segments import SegmentedGraph
from gst.method import origins
from gst.method.draws import Draw
from gst.method.encoding import apply_head
from gst.method.estimates import Part, RowSource, Sample, combine
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import (
    FixedBatch,
    NoFixedShapes,
    PaddedStep,
    Sizes,
    encoder_refusal,
    hook_refusal,
    modules,
    write_beginnings,
)
from gst.method.rows import PULL_ROWS, OwnRows, first_of_each, report


class StepResults(NamedTuple):
    """The loss of a step, the embeddings of its segments, and which of them are not written as they are not finite."""

    value: Float[Tensor, ""]
    embedded: Float[Tensor, "segments configs channels"]
    refused: Bool[Tensor, " rows"]


class DeviceRows(RowSource):
    """Rows of a table that has a row for every key (`EmbeddingTable.dense`): the device finds them itself.

    Args:
        rows, steps: of all slots.
        slots: of each segment and configuration; those of padding have no row.
        number: of the step.
        dtype: of the parts.
        num_configs: of the step; the table keeps an origin of each segment if there are more entries than that.
    """

    def __init__(
        self, rows: Float[Tensor, "slots channels"], steps: Int64[Tensor, " slots"],
        slots: Int64[Tensor, "segments entries"], number: Int64[Tensor, ""], dtype: torch.dtype, num_configs: int,
    ) -> None:  # fmt: skip
        self.rows, self.steps, self.slots, self.num_configs = rows, steps, slots, num_configs
        self._number, self._dtype = number, dtype

    def has_origins(self) -> bool:
        """Return True if the table keeps rows relative to the origins of their segments (`gst.method.origins`)."""
        return self.slots.shape[1] > self.num_configs

    def ages(self) -> Int64[Tensor, "segments configs"]:
        return origins.ages(self.steps[self.slots], self.slots > 0, self.num_configs, self._number)

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        """Yield all segments: the host does not know which are read."""
        everything = torch.arange(len(self.slots), device=self.slots.device)
        for chunk in everything.split(max(1, PULL_ROWS // self.slots.shape[1])):
            kept = self.kept(chunk)
            yield chunk, origins.absolute(kept) if self.has_origins() else kept

    def kept(self, segments: Int64[Tensor, " chosen"]) -> Float[Tensor, "chosen entries channels"]:
        """Return what the table keeps of `segments`; zeros where it keeps nothing."""
        slots = self.slots[segments]
        return torch.where((self.steps[slots] >= 0)[..., None], self.rows[slots], 0.0).to(self._dtype)


class FixedStep:
    """Steps of one model in five parts: `draw` decides which segments are fresh, `load` reads and pads them, `fill`
    copies them, at once, into the tensors that `compute` reads, `compute` is all work of the device, and `finish` warns
    of what the host has learned of earlier steps.

    Args:
        model: in training mode; see `FixedBatch`.
        loss: predictions and targets, both `(graphs, configs)` -> a number. Targets of padding are NaN.
        optimizer: one that counts its steps on the accelerator (`capturable=True`). None leaves gradients in `.grad`.

    Attributes:
        results: of the step computed last.

    Raises:
        NoFixedShapes: shapes or operations of such a model change from step to step (`refusal`), or padding would
            change what it computes. `fill` and `compute` raise it, too.
    """

    def __init__(
        self, model: GraphSegmentTraining, loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: torch.optim.Optimizer | None, sizes: Sizes,
    ) -> None:  # fmt: skip
        if reason := refusal(model, optimizer):
            raise NoFixedShapes(reason)
        self.model, self.loss, self.optimizer, self.sizes = model, loss, optimizer, sizes
        self._is_finite = nothing = torch.empty(0)
        self._rows: DeviceRows | None = None
        self.results = StepResults(nothing, nothing, nothing)
        self._refused = Arrivals[Draw]()
        everything, fresh, configs = sizes.all_segments, sizes.segments - 1, sizes.configs
        inputs = {
            "graph_of_segment": torch.arange(everything) % sizes.graphs,
            "is_fresh": torch.zeros(everything, dtype=torch.bool),
            "inclusion": torch.ones(everything, dtype=torch.float64),
            "fresh": torch.full((fresh,), everything - 1),
            "graph_node_counts": torch.ones(sizes.graphs, dtype=torch.int64),
            "targets": torch.full((sizes.graphs, configs), torch.nan, dtype=torch.float64),
            "is_kept": torch.zeros(everything, dtype=torch.bool),
            "node_counts_of_segments": torch.zeros(everything, dtype=torch.int64),
        }
        if model.keys is not None:
            entries = configs + model.keys.by_class
            inputs |= {
                "number": torch.zeros((), dtype=torch.int64),
                "slots": torch.zeros(everything, entries, dtype=torch.int64),
                "is_written": torch.zeros(fresh, entries, dtype=torch.bool),
                "first": torch.arange(fresh),
            }
        self._fixed = FixedBatch(model, sizes, inputs)

    def draw(self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"], ahead: int = 0) -> Draw:
        """Draw the next step, or the one `ahead` steps after it; ValueError if it does not fit into `sizes`."""
        if len(graphs) > self.sizes.graphs or configs.shape[1] > self.sizes.configs:
            raise ValueError(
                f"a step of {len(graphs)} graphs and {configs.shape[1]} configurations does not fit into "
                f"{self.sizes.graphs} and {self.sizes.configs}; make Sizes.of the largest step"
            )
        draw = self.model.draw(graphs, pad(configs, (0, self.sizes.configs - configs.shape[1]), value=-1), ahead)
        if len(draw.catalogue) >= self.sizes.all_segments:
            raise ValueError(
                f"a step of {len(draw.catalogue)} segments, fresh or not, does not fit into "
                f"{self.sizes.all_segments - 1}; make Sizes.of all graphs"
            )
        self.model.register(draw.catalogue.graphs)  # no thread may let the table grow
        return draw

    def load(self, draw: Draw) -> PaddedStep:
        """Read and pad the fresh segments of a draw; a thread may do it ahead. Raises what `FixedBatch.load` does."""
        catalogue, fresh, rows = draw.catalogue, draw.fresh.nonzero().squeeze(1), self.model.rows_of(draw)
        others = {
            "graph_of_segment": catalogue.graph, "is_fresh": draw.fresh, "inclusion": draw.inclusion, "fresh": fresh,
            "graph_node_counts": catalogue.graph_node_counts, "is_kept": draw.kept,
            "node_counts_of_segments": catalogue.node_counts,
        }  # fmt: skip
        if isinstance(rows, OwnRows):
            keys = rows.keys[fresh]
            is_written = torch.zeros(keys.shape, dtype=torch.bool)
            is_written.flatten()[first_of_each(keys.flatten())] = True
            others |= {"number": torch.tensor(draw.number), "slots": rows.keys + 1, "is_written": is_written}
            if rows.has_origins():
                others["first"] = origins.first_of_same(rows.origin_keys(fresh))
        return self._fixed.load(draw, **others)

    def places(self) -> tuple[Any, ...]:
        """Return settings of the model, and addresses and lengths of its table, which change as it grows."""
        rows = () if self.model.table is None else self._dense()
        return self.model.keep_probability, self.model.estimate, *((each.data_ptr(), len(each)) for each in rows)

    def fill(self, step: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> None:
        """Copy what a step reads into the tensors of the first step, which `compute` reads.

        Raises:
            NoFixedShapes: a shape changed, the encoder is frozen, or a module or parameter has a hook.
        """
        if reason := _refusal_of_state(self.model):
            raise NoFixedShapes(f"a step of fixed shapes {reason}")
        self.model.step, self._kind, self._draw = step.draw.number, targets.dtype, step.draw
        is_here = targets.device.type == "cpu"
        if is_here:
            write_beginnings(step.packed.tensors, {"targets": targets})
        self._fixed.fill(step)
        if not is_here:
            write_beginnings(self._fixed.tensors, {"targets": targets})
        if self.model.table is not None:
            inputs = self._fixed.tensors
            like = torch.promote_types(self.model.like().dtype, torch.float32)
            self._rows = DeviceRows(*self._dense(), inputs["slots"], inputs["number"], like, self.sizes.configs)

    def compute(self) -> None:
        """Encode, pool, predict, learn from it, and write rows. Nothing here depends on values, and nothing asks for
        them.

        Raises:
            NoFixedShapes: see `FixedBatch.encode`.
        """
        model, inputs = self.model, self._fixed.tensors
        for parameter in model.parameters():
            parameter.grad = None
        embedded = self._fixed.encode()
        self._is_finite = torch.ones((), dtype=torch.bool, device=embedded.device)
        if embedded.requires_grad:
            embedded.register_hook(self._look_at)
        pooled = self._pooled(embedded)
        scores = apply_head(model.head, pooled)
        targets = inputs["targets"].to(self._kind)
        scores = scores.squeeze(-1) if scores.dim() > targets.dim() else scores  # some heads have done that
        value = self.loss(scores, targets)
        value.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        self.results = StepResults(value.detach(), embedded.detach(), self._write_rows(embedded.detach()))

    def finish(self) -> None:
        """Warn of rows of earlier steps that were not finite, once the host knows."""
        if self.model.table is not None:
            self._refused.add(self.results.refused, self._draw)
            self.warn(waits=False)

    def warn(self, waits: bool = True) -> None:
        """Warn of rows that were not finite, of all steps so far if the host `waits`."""
        for flags, draw in self._refused.here(waits):
            if len(places := flags.nonzero().squeeze(1)):
                segments = draw.fresh.nonzero().squeeze(1).repeat_interleave(len(flags) // (self.sizes.segments - 1))
                report(draw.catalogue, segments, draw.number, places)

    def undo(self) -> Callable[[], None]:
        """Return what gives the table the rows back that `compute` will write."""
        if self.model.table is None:
            return lambda: None
        slots = self._fixed.tensors["slots"][self._fixed.tensors["fresh"]].flatten()
        assert self._rows is not None, "fill it first"
        before = [(each, each[slots]) for each in (self._rows.rows, self._rows.steps)]

        def restore() -> None:
            for each, values in before:
                each.index_copy_(0, slots, values)

        return restore

    def _look_at(self, gradient: Tensor) -> None:
        self._is_finite = gradient.isfinite().all()

    def _dense(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model.table, EmbeddingTable), "others are refused"
        return self.model.table.dense(self.model.like().device)

    def _pooled(self, embedded: Float[Tensor, "segments configs channels"]) -> Float[Tensor, "graphs configs channels"]:
        """Return the estimates of the pooled embeddings; segments of padding are not fresh."""
        model, inputs, rows = self.model, self._fixed.tensors, self._rows
        if model.keys is not None:
            model.keys.check_width(embedded.shape[-1])
        shape = self.sizes.all_segments, self.sizes.configs
        ages = inputs["fresh"].new_full(shape, -1) if rows is None else rows.ages()
        sample = Sample(
            is_fresh=inputs["is_fresh"],
            inclusion=inputs["inclusion"],
            is_kept=inputs["is_kept"],
            ages=ages,
            graph=inputs["graph_of_segment"],
            node_counts=inputs["node_counts_of_segments"],
            graph_node_counts=inputs["graph_node_counts"],
            keep_probability=model.keep_probability,
        )
        is_real = inputs["is_fresh"][inputs["fresh"]]
        embedded = torch.where(is_real[:, None, None], embedded, 0.0)  # 0 times what is not finite would be NaN
        return combine(model.estimate, sample, inputs["fresh"], embedded, model.pooling, rows)

    def _write_rows(self, embedded: Float[Tensor, "segments configs channels"]) -> Bool[Tensor, " rows"]:
        """Write the rows of the fresh segments, unless their gradient is not finite; return which are not finite."""
        inputs = self._fixed.tensors
        if self._rows is None:
            return inputs["is_fresh"].new_zeros(0)
        fresh, known = inputs["fresh"], self._rows
        mask, slots = inputs["is_written"].flatten(), known.slots[fresh]
        table, steps = known.rows, known.steps
        if known.has_origins():
            is_known = known.ages()[fresh] >= 0
            embedded = origins.relative(embedded, known.kept(fresh), is_known, inputs["first"], slots[:, -1] > 0)
        slots, rows = slots.flatten(), embedded.flatten(0, 1).to(table.dtype)
        is_finite = rows.isfinite().all(1)
        write_where(mask & is_finite & self._is_finite, slots, rows, inputs["number"], table, steps)
        return mask & ~is_finite


def refusal(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer | None = None) -> str | None:
    """Return the reason why steps of a model cannot have fixed shapes; None if they can."""
    reason = _refusal_of_model(model, optimizer) or _refusal_of_state(model)
    return reason and f"a step of fixed shapes {reason}"


def _refusal_of_model(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer | None) -> str | None:
    """The reason, as the end of a sentence, if the model as it was made has one."""
    if not isinstance(model.encoder, nn.Module):
        return "forgets gradients of a torch.nn.Module alone, and the encoder is none"
    if model.table is None and model.estimate.reads != "nothing":
        first = " (table=True makes it in the first step)" * model.makes_table
        return f"cannot encode all other segments; give the model a table{first}, or estimate='fresh'"
    if model.table is not None and not isinstance(model.table, EmbeddingTable):
        return "is of one process; give the model an EmbeddingTable"
    if model.table is not None and (model.table.tier != "device" or model.table.capacity is not None):
        return "finds rows on the device; give the table the tier 'device' and no capacity"
    if not model.estimate.fixed_shapes or model.learned is not None:
        return f"needs an estimate that declares fixed_shapes and learns nothing; {model.estimate.name!r} does not"
    if reason := encoder_refusal(model):
        return reason
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in modules(model.head)):
        return "would count its padding in BatchNorm of the head; use torch.nn.LayerNorm"
    on_host = [] if optimizer is None else [each for each in optimizer.param_groups if each.get("capturable") is False]
    if on_host and model.like().device.type != "cpu":
        return f"needs {type(optimizer).__name__}(..., capturable=True), which counts its steps on the accelerator"
    return None


def _refusal_of_state(model: GraphSegmentTraining) -> str | None:
    """The reason, as the end of a sentence, if the model got one later: callbacks freeze encoders and add hooks."""
    return "has no frozen encoder" if model.encoder_frozen else hook_refusal(model)
