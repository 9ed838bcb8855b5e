"""Training steps of fixed shapes: each runs the same operations on the same memory, and can be recorded once.

The host draws segments and moves rows of the table before and after the arithmetic (`gst.training.recorded_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from embedding_cache import EmbeddingTable
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.draws import Draw, dropout_weights
from gst.method.encoding import apply_head, complaints, embed_segments
from gst.method.estimator import GraphSegmentTraining
from gst.method.readouts import GraphPool
from gst.method.regression import stale_sum
from gst.method.rows import StepRows
from gst.util.packing import Packed

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
LOOPS_A_NODE = 64  # edges of padding, all of them from a node to itself, that a padding node has at most


class NoFixedShapes(ValueError):
    """Steps of a model cannot have fixed shapes; the message says why."""


@runtime_checkable
class Plans(Protocol):
    """Makes what an encoder works out from a batch (`SegmentBatch.plans`), in tensors of fixed shapes."""

    def check(self, batch: SegmentBatch) -> None:
        """Raise ValueError if the plans of a batch, which is on the host and not padded, may not fit the sizes."""

    def of(self, padded: SegmentBatch) -> Mapping[Any, Any]:
        """Return the plans of a padded batch, by operations of fixed shapes on its device."""


class Sizes(NamedTuple):
    """The size to which every step of a training is padded.

    Args:
        nodes, edges, configurable, segments: of the padded batch (`SegmentBatch.padded_to`). One segment at least is
            padding, and a node for each segment of padding and for every `LOOPS_A_NODE` edges of it.
        graphs, configs: of the padded predictions.
        plans: makes the plans of an encoder that takes a `SegmentBatch`; None for other encoders.

    Examples:
        >>> import gst
        >>> path = gst.Graph(np.zeros((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> Sizes.of([gst.segment(path, 3, "contiguous")] * 4, num_graphs=2, num_fresh=1, num_configs=7)
        Sizes(nodes=7, edges=2, configurable=0, segments=3, graphs=2, configs=7, plans=None)
    """

    nodes: int
    edges: int
    configurable: int
    segments: int
    graphs: int
    configs: int
    plans: Plans | None = None

    @staticmethod
    def of(
        graphs: Sequence[SegmentedGraph], num_graphs: int, num_fresh: int, num_configs: int, encoder: object = None
    ) -> Sizes:
        """Return the size that fits every step of at most `num_graphs` of the graphs, with `num_fresh` fresh segments
        of each and at most `num_configs` configurations. An `encoder` that takes a `SegmentBatch` makes its `Plans` by
        its method `fixed_plans(sizes, graphs, num_fresh)`, which reads the edges of all segments.

        Raises:
            NoFixedShapes: the shapes of a layer of the encoder change from step to step.
        """
        most = largest_sums(graphs, num_fresh, lambda graph: np.stack(
            [np.diff(graph.row_ptr), np.diff(graph.edge_ptr), np.diff(graph.config_ptr), np.ones(graph.num_segments)], 1
        ))  # fmt: skip
        nodes, edges, configurable, segments = (num_graphs * most).tolist()  # a step may hold one graph several times
        padding = segments + 1 + edges // LOOPS_A_NODE
        sizes = Sizes(nodes + padding, edges, configurable, segments + 1, num_graphs, num_configs)
        plans = plan_maker(encoder)
        return sizes if plans is None else sizes._replace(plans=plans(sizes, graphs, num_fresh))


def plan_maker(encoder: object) -> Callable[[Sizes, Sequence[SegmentedGraph], int], Plans] | None:
    """The method `fixed_plans` of an encoder, also of a compiled one; None if it has none."""
    return getattr(getattr(encoder, "_orig_mod", encoder), "fixed_plans", None)


def largest_sums(
    graphs: Sequence[SegmentedGraph], num_fresh: int, counts: Callable[[SegmentedGraph], np.ndarray]
) -> Int64[np.ndarray, " counts"]:
    """Return bounds of what the fresh segments of one graph have together; `counts` gives (segments, counts)."""
    return np.max(
        [np.sort(counts(graph), axis=0)[-num_fresh:].sum(axis=0) for graph in graphs], axis=0
    ).astype(np.int64)  # fmt: skip


@dataclass(frozen=True, eq=False)
class PaddedStep:
    """A draw and its fresh segments, read and padded, in memory of the host; `packed` is what goes to the device."""

    draw: Draw
    batch: SegmentBatch
    packed: Packed


class StepResults(NamedTuple):
    """The loss of a step, the embeddings of its segments, and whether these got a finite gradient."""

    value: Float[Tensor, ""]
    embedded: Float[Tensor, "segments configs channels"]
    is_finite: Bool[Tensor, ""]


class FixedStep:
    """Steps of one model in five parts: `draw` decides which segments are fresh, `load` reads and pads them, `fill`
    copies them, at once, into the tensors that `compute` reads, `compute` is the arithmetic, and `finish` writes rows.

    Args:
        model: in training mode, on its device, with its lazy layers made. A module of its encoder with a method
            `check_batch(batch)` sees each batch on the host, before it is padded, and may raise.
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
        reason = refusal(model, optimizer)
        if reason is None and sizes.plans is None and model.takes_batches:
            reason = "a step of fixed shapes needs the plans of the encoder; give it to Sizes.of"
        if reason is not None:
            raise NoFixedShapes(reason)
        self.model, self.loss, self.optimizer, self.sizes = model, loss, optimizer, sizes
        self._is_finite = nothing = torch.empty(0)
        self.results = StepResults(nothing, nothing, nothing)
        self._inputs: dict[str, Tensor] = {}
        self._batch: SegmentBatch | None = None
        self._packed: Packed | None = None
        self._done: tuple[StepRows | None, Tensor] | None = None
        self._checked: list[Any] = [each for each in _modules(model.encoder) if hasattr(each, "check_batch")]
        self._nothing = {
            "weights": torch.zeros(sizes.segments - 1, sizes.configs, dtype=torch.float64),
            "graph": torch.zeros(sizes.segments - 1, dtype=torch.int64),
            "graph_node_counts": torch.ones(sizes.graphs, dtype=torch.int64),
            "targets": torch.full((sizes.graphs, sizes.configs), torch.nan, dtype=torch.float64),
        }  # fmt: skip

    def draw(self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"], ahead: int = 0) -> Draw:
        """Draw the next step, or the one `ahead` steps after it; ValueError if it does not fit into `sizes`."""
        if len(graphs) > self.sizes.graphs or configs.shape[1] > self.sizes.configs:
            raise ValueError(
                f"a step of {len(graphs)} graphs and {configs.shape[1]} configurations does not fit into "
                f"{self.sizes.graphs} and {self.sizes.configs}; make Sizes.of the largest step"
            )
        return self.model.draw(graphs, pad(configs, (0, self.sizes.configs - configs.shape[1]), value=-1), ahead)

    def load(self, draw: Draw) -> PaddedStep:
        """Read and pad the fresh segments of a draw; a thread may do it ahead. ValueError if they do not fit."""
        batch, like = self.model.fresh_batch(draw), self.model.like()
        for module in self._checked:
            module.check_batch(batch)
        if self.sizes.plans is not None:
            self.sizes.plans.check(batch)
        padded = batch.padded_to(*self.sizes[:4]).to(torch.device("cpu"), like.dtype)
        packed = Packed.of({**padded.tensors(), **self._nothing}, like.device)
        return PaddedStep(draw, padded, packed)

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
        _write(step.packed.tensors(), given | here)
        self._keep(step)
        _write(self._inputs, there)
        if rest is not None:
            nothing = -torch.inf if model.pooling == "max" else 0.0
            rest = pad(rest, (0, 0, 0, 0, 0, self.sizes.graphs - len(rest)), value=nothing)
            self._inputs.setdefault("rest", torch.empty_like(rest)).copy_(rest)
        self._done = rows, chosen

    def compute(self) -> None:
        """Encode, pool, predict, and learn from it. Nothing here depends on values, and nothing asks for them.

        Raises:
            NoFixedShapes: the encoder made plans that are not in `sizes`: it would read them again in later steps.
        """
        model, inputs, batch = self.model, self._inputs, self._batch
        assert batch is not None, "fill it first"
        for parameter in model.parameters():
            parameter.grad = None
        batch.plans.clear()
        batch.plans.update({} if self.sizes.plans is None else self.sizes.plans.of(batch))
        plans = set(batch.plans)
        kind = batch.edge_index.device.type
        # The caller's autocast, without its cache: a recording would read casts that were made before it.
        with torch.autocast(kind, enabled=torch.is_autocast_enabled(kind), cache_enabled=False):
            embedded = embed_segments(model.encoder, batch, model._call, model.pooling)[:-1]
        if more := set(batch.plans) - plans:
            raise NoFixedShapes(f"a step of fixed shapes has no plans but those of its sizes; the encoder made {more}")
        self._is_finite = torch.ones((), dtype=torch.bool, device=embedded.device)
        if embedded.requires_grad:
            embedded.register_hook(self._look_at)
        weights = inputs["weights"].to(embedded.dtype)
        present = torch.where(weights[..., None] > 0, embedded, 0.0)  # 0 times what is not finite would be NaN
        pool = GraphPool(inputs["graph_node_counts"], model.pooling, inputs.get("rest"))
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

    def _keep(self, step: PaddedStep) -> None:
        """Copy into the tensors of the first step."""
        if self._packed is None:
            self._packed = step.packed.to(self.model.like().device)
            places = self._packed.tensors()
            self._inputs = {name: places[name] for name in self._nothing}
            self._batch = step.batch.placed(places.values())
        else:
            new, old = step.packed.layout, self._packed.layout
            for name in sorted(new.keys() | old.keys()):
                now, first = (each[name][1] if name in each else None for each in (new, old))
                if now != first:
                    raise NoFixedShapes(f"{name} of a step has the shape {now}, and had {first} at the first step")
            self._packed.buffer.copy_(step.packed.buffer, non_blocking=True)
        object.__setattr__(self._batch, "host", step.batch)


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
    if model.takes_batches and plan_maker(model.encoder) is None:
        return (
            "needs plans of fixed shapes of an encoder that takes a SegmentBatch; use one of gst.nn, or take "
            "(x, edge_index) in the encoder"
        )
    if model.table is None and model.estimate != "fresh":
        return "cannot encode all other segments; give the model a table, or estimate='fresh'"
    if model.table is not None and not isinstance(model.table, EmbeddingTable):
        return "is of one process; give the model an EmbeddingTable"
    if model.estimate in ("regression", "composite"):
        return f"is for dropout or difference, not {model.estimate!r}"
    if not model.readout.is_plain:
        return "pools by sum, mean or max alone"
    if getattr(model.head, "references", 0):
        return "has no reference configurations"
    if problems := complaints(model.encoder, model.inputs):
        return f"would count its padding: {problems[0]}"
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in _modules(model.head)):
        return "would count its padding in BatchNorm of the head; use torch.nn.LayerNorm"
    on_host = [] if optimizer is None else [each for each in optimizer.param_groups if each.get("capturable") is False]
    if on_host and model.like().device.type != "cpu":
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
