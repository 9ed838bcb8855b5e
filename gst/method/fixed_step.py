"""Training steps of fixed shapes: each runs the same operations on the same memory, and can be recorded once.

A thread of the host draws and reads a step, and one copy brings it to the device, which finds and writes rows of the
table by itself (`EmbeddingTable.dense`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from embedding_cache import EmbeddingTable
from embedding_cache.arrivals import Arrivals
from embedding_cache.dense import write_where
from gst.graphs.segments import SegmentedGraph
from gst.method.draws import Draw, dropout_weights
from gst.method.encoding import apply_head
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import (
    FixedBatch,
    NoFixedShapes,
    PaddedBatch,
    Sizes,
    encoder_refusal,
    hook_refusal,
    modules,
    write_beginnings,
)
from gst.method.readouts import GraphPool
from gst.method.regression import StaleSum, readout_shares
from gst.method.rows import PULL_ROWS, OwnRows, first_of_each, report


@dataclass(frozen=True, eq=False)
class PaddedStep:
    """A draw and its fresh segments, read and padded, in memory of the host."""

    draw: Draw
    padded: PaddedBatch


class StepResults(NamedTuple):
    """The loss of a step, the embeddings of its segments, and which of them are not written as they are not finite."""

    value: Float[Tensor, ""]
    embedded: Float[Tensor, "segments configs channels"]
    refused: Bool[Tensor, " rows"]


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
        self._is_finite = self._rows = self._steps_of_rows = nothing = torch.empty(0)
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
        }
        if model.table is not None:
            inputs |= {
                "number": torch.zeros((), dtype=torch.int64),
                "is_kept": torch.zeros(everything, dtype=torch.bool),
                "node_counts_of_segments": torch.zeros(everything, dtype=torch.int64),
                "slots": torch.zeros(everything, configs, dtype=torch.int64),
                "is_written": torch.zeros(fresh, configs, dtype=torch.bool),
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
            "graph_node_counts": catalogue.graph_node_counts,
        }  # fmt: skip
        if isinstance(rows, OwnRows):
            is_written = torch.zeros(len(fresh), draw.configs.shape[1], dtype=torch.bool)
            is_written.flatten()[first_of_each(rows.keys[fresh].flatten())] = True
            others |= {
                "number": torch.tensor(draw.number), "is_kept": draw.kept,
                "node_counts_of_segments": catalogue.node_counts, "slots": rows.keys + 1, "is_written": is_written,
            }  # fmt: skip
        return PaddedStep(draw, self._fixed.load(self.model.fresh_batch(draw), **others))

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
            write_beginnings(step.padded.packed.tensors, {"targets": targets})
        self._fixed.fill(step.padded)
        if not is_here:
            write_beginnings(self._fixed.tensors, {"targets": targets})
        if self.model.table is not None:
            self._rows, self._steps_of_rows = self._dense()

    def compute(self) -> None:
        """Encode, pool, predict, learn from it, and write rows. Nothing here depends on values, and nothing asks for
        them.

        Raises:
            NoFixedShapes: see `FixedBatch.encode`.
        """
        model, inputs = self.model, self._fixed.tensors
        for parameter in model.parameters():
            parameter.grad = None
        batch, embedded = self._fixed.encode()
        self._is_finite = torch.ones((), dtype=torch.bool, device=embedded.device)
        if embedded.requires_grad:
            embedded.register_hook(self._look_at)
        fresh, pool = inputs["fresh"], GraphPool(inputs["graph_node_counts"], model.pooling)
        weights = self._add_rows(pool, embedded.shape[-1])[fresh].to(embedded.dtype)
        present = torch.where(weights[..., None] > 0, embedded, 0.0)  # 0 times what is not finite would be NaN
        pool.add(present, weights, batch.node_counts[:-1], inputs["graph_of_segment"][fresh])
        scores = apply_head(model.head, pool.result())
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
                segments = draw.fresh.nonzero().squeeze(1).repeat_interleave(self.sizes.configs)
                report(draw.catalogue, segments, draw.number, places)

    def undo(self) -> Callable[[], None]:
        """Return what gives the table the rows back that `compute` will write."""
        if self.model.table is None:
            return lambda: None
        slots = self._fixed.tensors["slots"][self._fixed.tensors["fresh"]].flatten()
        rows, steps = self._rows[slots], self._steps_of_rows[slots]

        def restore() -> None:
            self._rows.index_copy_(0, slots, rows)
            self._steps_of_rows.index_copy_(0, slots, steps)

        return restore

    def _look_at(self, gradient: Tensor) -> None:
        self._is_finite = gradient.isfinite().all()

    def _dense(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model.table, EmbeddingTable), "others are refused"
        return self.model.table.dense(self.model.like().device)

    def _add_rows(self, pool: GraphPool, channels: int) -> Float[Tensor, "segments configs"]:
        """Add the rows of the table to the graphs; return the weights of fresh embeddings, 0 of other segments."""
        model, inputs = self.model, self._fixed.tensors
        is_fresh, inclusion, graph = inputs["is_fresh"], inputs["inclusion"], inputs["graph_of_segment"]
        if model.table is None:
            return (is_fresh / inclusion)[:, None].expand(-1, self.sizes.configs)
        assert model._keys is not None
        counts, slots = inputs["node_counts_of_segments"], inputs["slots"]
        model._keys.check_width(channels)
        is_known, like = self._steps_of_rows[slots] >= 0, torch.promote_types(model.like().dtype, torch.float32)
        at_once = max(1, PULL_ROWS // slots.shape[1])
        chunks = torch.arange(len(slots), device=slots.device).split(at_once)
        known = (torch.where(is_known[chunk][..., None], self._rows[slots[chunk]], 0.0).to(like) for chunk in chunks)
        if model.estimate == "difference":
            size, per_node = readout_shares(counts, inputs["graph_node_counts"][graph], model.pooling)
            fresh, per_node, sizes = is_fresh / inclusion, per_node.to(like), self.sizes
            stale = StaleSum(graph, ((1 - fresh) * size).to(like), sizes.graphs, sizes.configs, channels)
            for chunk, part in zip(chunks, known, strict=True):
                stale.add(chunk, part * per_node[chunk, None, None], is_known[chunk])
            pool.total = stale.result(None)
            return fresh[:, None].expand(slots.shape)
        weights = dropout_weights(is_fresh, inclusion, is_known, inputs["is_kept"], model.keep_probability)
        for chunk, part in zip(chunks, known, strict=True):
            pool.add(part, weights.stale[chunk].to(like), counts[chunk], graph[chunk])
        return weights.fresh

    def _write_rows(self, embedded: Float[Tensor, "segments configs channels"]) -> Bool[Tensor, " rows"]:
        """Write the rows of the fresh segments, unless their gradient is not finite; return which are not finite."""
        inputs = self._fixed.tensors
        if self.model.table is None:
            return inputs["is_fresh"].new_zeros(0)
        mask, slots = inputs["is_written"].flatten(), inputs["slots"][inputs["fresh"]].flatten()
        rows = embedded.flatten(0, 1).to(self._rows.dtype)
        is_finite = rows.isfinite().all(1)
        write_where(mask & is_finite & self._is_finite, slots, rows, inputs["number"], self._rows, self._steps_of_rows)
        return mask & ~is_finite


def refusal(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer | None = None) -> str | None:
    """Return the reason why steps of a model cannot have fixed shapes; None if they can."""
    reason = _refusal_of_model(model, optimizer) or _refusal_of_state(model)
    return reason and f"a step of fixed shapes {reason}"


def _refusal_of_model(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer | None) -> str | None:
    """The reason, as the end of a sentence, if the model as it was made has one."""
    if not isinstance(model.encoder, nn.Module):
        return "forgets gradients of a torch.nn.Module alone, and the encoder is none"
    if model.table is None and model.estimate != "fresh":
        return "cannot encode all other segments; give the model a table, or estimate='fresh'"
    if model.table is not None and not isinstance(model.table, EmbeddingTable):
        return "is of one process; give the model an EmbeddingTable"
    if model.table is not None and (model.table.tier != "device" or model.table.capacity is not None):
        return "finds rows on the device; give the table the tier 'device' and no capacity"
    if model.estimate in ("regression", "composite"):
        return f"is for dropout or difference, not {model.estimate!r}"
    if getattr(model.head, "references", 0):
        return "has no reference configurations"
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
