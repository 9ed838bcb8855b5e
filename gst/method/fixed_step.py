"""Training steps of fixed shapes: each runs the same operations on the same memory, and can be recorded once.

The host draws segments and moves rows of the table before and after the arithmetic (`gst.method.recorded`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from embedding_cache import EmbeddingTable
from gst.graphs.segments import SegmentedGraph
from gst.method.draws import Draw, dropout_weights
from gst.method.encoding import apply_head
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import FixedBatch, NoFixedShapes, PaddedBatch, Sizes, encoder_refusal, hook_refusal, modules
from gst.method.readouts import GraphPool
from gst.method.regression import stale_sum
from gst.method.rows import StepRows


@dataclass(frozen=True, eq=False)
class PaddedStep:
    """A draw and its fresh segments, read and padded, in memory of the host."""

    draw: Draw
    padded: PaddedBatch


class StepResults(NamedTuple):
    """The loss of a step, the embeddings of its segments, and whether these got a finite gradient."""

    value: Float[Tensor, ""]
    embedded: Float[Tensor, "segments configs channels"]
    is_finite: Bool[Tensor, ""]


class FixedStep:
    """Steps of one model in five parts: `draw` decides which segments are fresh, `load` reads and pads them, `fill`
    copies them, at once, into the tensors that `compute` reads, `compute` is the arithmetic, and `finish` writes rows.

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
        self.results = StepResults(nothing, nothing, nothing)
        self._rest: Tensor | None = None
        self._done: tuple[StepRows | None, Tensor] | None = None
        self._fixed = FixedBatch(model, sizes, {
            "weights": torch.zeros(sizes.segments - 1, sizes.configs, dtype=torch.float64),
            "graph": torch.zeros(sizes.segments - 1, dtype=torch.int64),
            "graph_node_counts": torch.ones(sizes.graphs, dtype=torch.int64),
            "targets": torch.full((sizes.graphs, sizes.configs), torch.nan, dtype=torch.float64),
        })  # fmt: skip

    def draw(self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"], ahead: int = 0) -> Draw:
        """Draw the next step, or the one `ahead` steps after it; ValueError if it does not fit into `sizes`."""
        if len(graphs) > self.sizes.graphs or configs.shape[1] > self.sizes.configs:
            raise ValueError(
                f"a step of {len(graphs)} graphs and {configs.shape[1]} configurations does not fit into "
                f"{self.sizes.graphs} and {self.sizes.configs}; make Sizes.of the largest step"
            )
        return self.model.draw(graphs, pad(configs, (0, self.sizes.configs - configs.shape[1]), value=-1), ahead)

    def load(self, draw: Draw) -> PaddedStep:
        """Read and pad the fresh segments of a draw; a thread may do it ahead. Raises what `FixedBatch.load` does."""
        return PaddedStep(draw, self._fixed.load(self.model.fresh_batch(draw)))

    def fill(self, step: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> None:
        """Copy what a step reads into the tensors of the first step, which `compute` reads.

        Raises:
            NoFixedShapes: a shape changed, the encoder is frozen, or a module or parameter has a hook.
        """
        if reason := _refusal_of_state(self.model):
            raise NoFixedShapes(f"a step of fixed shapes {reason}")
        model, draw, catalogue = self.model, step.draw, step.draw.catalogue
        model.step, self._kind = draw.number, targets.dtype
        rows, chosen = model.rows_of(draw), draw.fresh.nonzero().squeeze(1)
        weights, rest = self._weights(draw, rows)
        given = {"weights": weights[chosen], "graph": catalogue.graph[chosen]}
        given["graph_node_counts"] = catalogue.graph_node_counts
        here, there = ({"targets": targets}, {}) if targets.device.type == "cpu" else ({}, {"targets": targets})
        _write(step.padded.packed.tensors(), given | here)
        self._fixed.fill(step.padded)
        _write(self._fixed.tensors, there)
        if rest is not None:
            nothing = -torch.inf if model.pooling == "max" else 0.0
            rest = pad(rest, (0, 0, 0, 0, 0, self.sizes.graphs - len(rest)), value=nothing)
            self._rest = rest.clone() if self._rest is None else self._rest.copy_(rest)
        self._done = rows, chosen

    def compute(self) -> None:
        """Encode, pool, predict, and learn from it. Nothing here depends on values, and nothing asks for them.

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
        weights = inputs["weights"].to(embedded.dtype)
        present = torch.where(weights[..., None] > 0, embedded, 0.0)  # 0 times what is not finite would be NaN
        pool = GraphPool(inputs["graph_node_counts"], model.pooling, self._rest)
        pool.add(present, weights, batch.node_counts[:-1], inputs["graph"])
        scores = apply_head(model.head, pool.result())
        targets = inputs["targets"].to(self._kind)
        scores = scores.squeeze(-1) if scores.dim() > targets.dim() else scores  # some heads have done that
        value = self.loss(scores, targets)
        value.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        self.results = StepResults(value.detach(), embedded.detach(), self._is_finite)

    def finish(self) -> None:
        """Write the rows of the fresh segments, unless their gradient is not finite."""
        rows, chosen = self._done or (None, torch.empty(0))
        if rows is not None:
            results = self.results
            rows.push(results.embedded[: len(chosen)].clone(), chosen).require(results.is_finite.clone())

    def _look_at(self, gradient: Tensor) -> None:
        self._is_finite = gradient.isfinite().all()

    def _weights(self, draw: Draw, rows: StepRows | None) -> tuple[Tensor, Tensor | None]:
        """Return the weights of fresh segments, and the part of the pooled graphs that comes from rows of the table."""
        model, like = self.model, self.model.like()
        known = model.is_known(draw, rows)
        if model.estimate == "difference":
            assert rows is not None and model.table is not None
            value = (draw.fresh / draw.inclusion)[:, None].expand(known.shape)
            like = like.new_empty(0, model.table.channels, dtype=torch.promote_types(like.dtype, torch.float32))
            return value, stale_sum(draw, value[:, 0], rows, known, model.pooling, like)[0].result(None)
        weights = dropout_weights(draw.fresh, draw.inclusion, known, draw.kept, model.keep_probability)
        if rows is None:
            return weights.fresh, None
        assert model.table is not None
        nothing = -torch.inf if model.pooling == "max" else 0.0  # in place of rows, where a graph has none
        shape = (len(draw.catalogue.graphs), known.shape[1], model.table.channels)
        counts = draw.catalogue.graph_node_counts.to(like.device, non_blocking=True)
        pool = GraphPool(counts, model.pooling, like.new_full(shape, nothing))
        model.add_rows(pool, draw.catalogue, (weights.stale > 0).any(1).nonzero().squeeze(1), rows, weights.stale)
        return weights.fresh, pool.total


def _write(places: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Write tensors to the beginnings of larger ones."""
    for name, value in values.items():
        places[name][tuple(map(slice, value.shape))] = value


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
