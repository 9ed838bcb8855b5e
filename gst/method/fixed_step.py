"""A training step of fixed shapes: what an accelerator computes in it reads tensors that stay where they are.

Batches are padded to one size, so that the same operations on the same memory make each step, and can be recorded once
(`gst.training.recorded_step`). Draws, keys and rows of the table are the host's, before and behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from embedding_cache import EmbeddingTable
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.draws import Draw, dropout_weights
from gst.method.encoding import GraphPool, complaints, embed_segments
from gst.method.estimator import PULL_ROWS, GraphSegmentTraining
from gst.method.regression import StaleSum, readout_shares
from gst.method.sizes import NoFixedShapes, Sizes, plan_maker

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True, eq=False)
class PaddedStep:
    """A draw and its fresh segments, read and padded, in memory of the host.

    Args:
        plans: of the encoder, see `gst.method.sizes.Plans`.
    """

    draw: Draw
    batch: SegmentBatch
    plans: Mapping[Any, Any]


class FixedStep:
    """Steps of one model, each in five parts: `draw` decides which segments are fresh, `load` reads and pads them,
    `fill` copies them into the tensors that `compute` reads, `compute` is the arithmetic up to the gradients or the
    step of the optimizer, and `finish` writes the rows of the table.

    Args:
        model: in training mode, on its device, with its lazy layers made. Its encoder takes `x` and `edge_index`, PyG's
            data, or a `SegmentBatch` of which it makes the plans that are in `sizes` and no others. A module of it
            with a method `check_batch(batch)` sees each batch on the host, before it is padded, and may raise.
        loss: predictions and targets, both `(graphs, configs)` -> a number. Targets of what is padding are NaN.
        optimizer: of the model; one that counts its steps has to do so on the accelerator (`capturable=True`). None
            ends the step with the gradients, in `.grad` of the parameters.
        sizes: see `Sizes.of`.

    Attributes:
        value: the loss of the step computed last; it stays where it is.

    Raises:
        NoFixedShapes: shapes or operations of such a model change from step to step (`refusal`), or padding would
            change what it computes. `fill` raises it, too, where that comes later, and `compute`.
    """

    def __init__(
        self, model: GraphSegmentTraining, loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: torch.optim.Optimizer | None, sizes: Sizes,
    ) -> None:  # fmt: skip
        reason = refusal(model, optimizer)
        if reason is None and sizes.plans is None and model._call.whole == "batch":
            reason = "a step of fixed shapes needs the plans of the encoder; give it to Sizes.of"
        if reason is not None:
            raise NoFixedShapes(reason)
        self.model, self.loss, self.optimizer, self.sizes = model, loss, optimizer, sizes
        self.value = self._embedded = self._is_finite = torch.empty(0)
        self._inputs: dict[str, Tensor] = {}
        self._batch: SegmentBatch | None = None
        self._plans: set[Any] = set()
        self._done: tuple[Draw, Tensor, Tensor] | None = None
        self._checked: list[Any] = [each for each in _modules(model.encoder) if hasattr(each, "check_batch")]

    def draw(self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"], ahead: int = 0) -> Draw:
        """Draw the next step of the model, or the one `ahead` steps after it: `GraphSegmentTraining.draw`.

        Raises:
            ValueError: the step has more graphs or configurations than there is room for.
        """
        if len(graphs) > self.sizes.graphs or configs.shape[1] > self.sizes.configs:
            raise ValueError(
                f"a step of {len(graphs)} graphs and {configs.shape[1]} configurations does not fit into "
                f"{self.sizes.graphs} and {self.sizes.configs}; make Sizes.of the largest step"
            )
        draw = self.model.draw(graphs, pad(configs, (0, self.sizes.configs - configs.shape[1]), value=-1), ahead)
        assert draw is not None, "uniform draws do not depend on the table"
        return draw

    def load(self, draw: Draw) -> PaddedStep:
        """Read the fresh segments of a draw. It touches nothing that a step changes, so a thread may do it ahead.

        Raises:
            ValueError: they are larger than `sizes`, or a module of the encoder cannot take them.
        """
        batch = self.model._batch(draw.catalogue, draw.fresh.nonzero().squeeze(1), draw.configs)
        for module in self._checked:
            module.check_batch(batch)
        is_ahead, plans = self.model._like().device.type != "cpu", self.sizes.plans
        made = {} if plans is None else plans.of(batch, pinned=is_ahead)
        padded = batch.padded_to(*self.sizes[:4])
        return PaddedStep(draw, padded.pinned() if is_ahead else padded, made)

    def fill(self, step: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> None:
        """Copy what a step reads into the tensors that `compute` reads: those of the first step.

        Raises:
            NoFixedShapes: a tensor has another shape than at the first step; the encoder is frozen, or a module or a
                parameter has got a hook.
        """
        if reason := _refusal_of_state(self.model):
            raise NoFixedShapes(f"a step of fixed shapes {reason}")
        model, draw, device = self.model, step.draw, self.model._like().device
        catalogue, sizes = draw.catalogue, self.sizes
        model.step = draw.number
        keys, chosen = model._table_keys(catalogue, draw.configs), draw.fresh.nonzero().squeeze(1)
        weights, rest = self._weights(draw, keys)
        graphs, segments = sizes.graphs - len(catalogue.graphs), sizes.segments - 1 - len(chosen)
        configs = sizes.configs - targets.shape[1]
        inputs = {
            "weights": pad(weights[chosen], (0, 0, 0, segments)), "graph": pad(catalogue.graph[chosen], (0, segments)),
            "graph_node_counts": pad(catalogue.graph_node_counts, (0, graphs), value=1),
            "targets": pad(targets, (0, configs, 0, graphs), value=torch.nan) if graphs or configs else targets,
        }  # fmt: skip
        inputs = {name: each.to(device, non_blocking=True) for name, each in inputs.items()}
        if rest is not None:
            nothing = -torch.inf if model.pooling == "max" else 0.0
            inputs["rest"] = pad(rest, (0, 0, 0, 0, 0, graphs), value=nothing)
        self._keep(step.batch.to(device, model._like().dtype), inputs)
        assert self._batch is not None
        if sizes.plans is not None:
            sizes.plans.put(step.plans, self._batch)
            self._plans = set(step.plans)
        self._done = draw, chosen, keys

    def compute(self) -> None:
        """Encode, pool, predict, and learn from it. Nothing here depends on values, and nothing asks for them.

        Raises:
            NoFixedShapes: the encoder made plans that are not in `sizes`: it would read them again in later steps.
        """
        model, inputs, batch = self.model, self._inputs, self._batch
        assert batch is not None, "fill it first"
        for parameter in model.parameters():
            parameter.grad = None
        embedded = embed_segments(model.encoder, batch, model._call, model.pooling)[:-1]
        if more := set(batch.plans) - self._plans:
            raise NoFixedShapes(f"a step of fixed shapes has no plans but those of its sizes; the encoder made {more}")
        self._is_finite = torch.ones((), dtype=torch.bool, device=embedded.device)
        if embedded.requires_grad:
            embedded.register_hook(self._look_at)
        weights = inputs["weights"].to(embedded.dtype)
        present = torch.where(weights[..., None] > 0, embedded, 0.0)  # 0 times what is not finite would be NaN
        pool = GraphPool(inputs["graph_node_counts"], model.pooling, inputs.get("rest"))
        pool.add(present, weights, batch.node_counts[:-1], inputs["graph"])
        scores = model._predict(pool.result())
        scores = scores.squeeze(-1) if scores.dim() > inputs["targets"].dim() else scores  # some heads have done that
        value = self.loss(scores, inputs["targets"])
        value.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        self.value, self._embedded = value.detach(), embedded.detach()

    def finish(self) -> None:
        """Write the rows of the fresh segments, unless their gradient is not finite."""
        if self.model.table is not None and self._done is not None:
            draw, chosen, keys = self._done
            staged = self.model._stage(draw.catalogue, chosen, keys, self._embedded[: len(chosen)].clone())
            staged.require(self._is_finite.clone())

    def _look_at(self, gradient: Tensor) -> None:
        self._is_finite = gradient.isfinite().all()

    def _weights(self, draw: Draw, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights of fresh segments, and the part of the pooled graphs that comes from rows of the table."""
        model = self.model
        known = model._known(keys)
        if model.estimate == "difference":
            value = (draw.fresh / draw.inclusion)[:, None].expand(known.shape)
            return value, self._residuals(draw, keys, known, value[:, 0])
        weights = dropout_weights(draw.fresh, draw.inclusion, known, draw.kept, model.keep_probability)
        return weights.fresh, None if model.table is None else self._rest(draw, keys, weights.stale)

    def _rest(self, draw: Draw, keys: Tensor, weights: Tensor) -> Float[Tensor, "graphs configs channels"]:
        """Rows of stale segments, pooled: zeros, or maxima of nothing, where there are none."""
        model, table, like = self.model, self.model.table, self.model._like()
        assert isinstance(table, EmbeddingTable)
        nothing = -torch.inf if model.pooling == "max" else 0.0
        shape = (len(draw.catalogue.graphs), keys.shape[1], table.channels)
        counts = draw.catalogue.graph_node_counts.to(like.device, non_blocking=True)
        pool = GraphPool(counts, model.pooling, like.new_full(shape, nothing))
        model._add_pulled(pool, draw.catalogue, (weights > 0).any(1).nonzero().squeeze(1), keys, weights)
        assert pool.total is not None
        return pool.total

    def _residuals(
        self, draw: Draw, keys: Tensor, is_known: Tensor, value: Float[Tensor, " segments"]
    ) -> Float[Tensor, "graphs configs channels"]:
        """Rows of all segments, less what those of the fresh ones stand for: `gst.method.regression`."""
        model, table, like = self.model, self.model.table, self.model._like()
        assert isinstance(table, EmbeddingTable)
        catalogue, dtype = draw.catalogue, torch.promote_types(like.dtype, torch.float32)
        nodes_of_graph = catalogue.graph_node_counts[catalogue.graph]
        size, per_node = readout_shares(catalogue.node_counts, nodes_of_graph, model.pooling)
        residual, scale, graph = (
            each.to(like.device, each.dtype if each is catalogue.graph else dtype, non_blocking=True)
            for each in ((1 - value) * size, per_node, catalogue.graph)
        )
        stale = StaleSum(graph, residual, len(catalogue.graphs), keys.shape[1], table.channels)
        for chunk in torch.arange(len(catalogue)).split(max(1, PULL_ROWS // keys.shape[1])):
            here = chunk.to(like.device, non_blocking=True)
            rows = model._pulled(keys[chunk]) * scale[here][:, None, None]
            stale.add(here, rows, is_known[chunk].to(like.device, non_blocking=True))
        return stale.result(None)

    def _keep(self, batch: SegmentBatch, inputs: dict[str, Tensor]) -> None:
        """Copy into the tensors of the first step.

        Raises:
            NoFixedShapes: they have other shapes.
        """
        if self._batch is None:
            self._batch = batch
            self._inputs = {name: each.clone() for name, each in inputs.items()}  # targets are the caller's
            return
        new, old = {**batch.tensors(), **inputs}, {**self._batch.tensors(), **self._inputs}
        for name in sorted(new.keys() | old.keys()):
            now, first = (tuple(each[name].shape) if name in each else None for each in (new, old))
            if now != first:
                raise NoFixedShapes(f"{name} of a step has the shape {now}, and had {first} at the first step")
        for name, tensor in new.items():
            old[name].copy_(tensor, non_blocking=True)
        object.__setattr__(self._batch, "host", batch.host)


def refusal(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer | None = None) -> str | None:
    """Why steps of a model cannot have fixed shapes; None if they can."""
    reason = _refusal_of_model(model, optimizer) or _refusal_of_state(model)
    return reason and f"a step of fixed shapes {reason}"


def _refusal_of_model(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer | None) -> str | None:
    """The reason, as the end of a sentence, if the model as it was made has one."""
    if model._call.whole == "batch" and plan_maker(model.encoder) is None:
        return (
            "needs plans of fixed shapes of an encoder that takes a SegmentBatch; use one of gst.nn, or take "
            "(x, edge_index) in the encoder"
        )
    if model.table is None and not model.omit_rest:
        return "cannot encode all other segments; give the model a table, or omit_rest=True"
    if model.table is not None and not isinstance(model.table, EmbeddingTable):
        return "is of one process; give the model an EmbeddingTable"
    if model.estimate not in ("dropout", "fixed_dropout", "difference") or model.refresh != "uniform":
        return f"is for dropout or difference and uniform draws, not {model.estimate!r} and {model.refresh!r}"
    if model.estimate == "difference" and (model.debias or model.table is None):
        return "of estimate='difference' needs a table, and corrects no bias: leave out debias"
    if model.histories is not None or model.pad_to or getattr(model.head, "references", 0):
        return "has no layer histories, pad_to or reference configurations"
    if found := complaints(model.encoder, model._inputs):
        return f"would count its padding: {found[0]}"
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in _modules(model.head)):
        return "would count its padding in BatchNorm of the head; use torch.nn.LayerNorm"
    on_host = [] if optimizer is None else [each for each in optimizer.param_groups if each.get("capturable") is False]
    if on_host and model._like().device.type != "cpu":
        return f"needs {type(optimizer).__name__}(..., capturable=True), which counts its steps on the accelerator"
    return None


def _refusal_of_state(model: GraphSegmentTraining) -> str | None:
    """The reason, as the end of a sentence, if the model got one later: callbacks freeze encoders and add hooks."""
    if model.encoder_frozen:
        return "has no frozen encoder"
    for name, module in model.named_modules():
        is_lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin)  # its own hook makes its parameters
        if not is_lazy and any(getattr(module, hooks, None) for hooks in MODULE_HOOKS):
            return f"runs no hooks, and module {name!r} has one; remove it (pruning and W&B's watch add hooks)"
    for name, parameter in model.named_parameters():
        if any(getattr(parameter, hooks, None) for hooks in PARAMETER_HOOKS):
            return f"runs no hooks, and parameter {name!r} has one; remove it (W&B's watch adds hooks)"
    return None


def _modules(module: object) -> Iterator[nn.Module]:
    """A module and those in it; nothing of a callable that is no module."""
    return module.modules() if isinstance(module, nn.Module) else iter(())
