"""Batches of fixed shapes: padded to one size, and copied into the tensors that an encoder reads each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.draws import Draw
from gst.method.encoding import complaints
from gst.util.packing import Packed, kinds_of

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
LOOPS_A_NODE = 64  # edges of padding, all of them from a node to itself, that a padding node has at most


class NoFixedShapes(ValueError):
    """Steps of a model cannot have fixed shapes; the message says why."""


class DoesNotFit(ValueError):
    """The plans of a batch are larger than those to which plans are padded."""


@runtime_checkable
class Plans(Protocol):
    """Makes what an encoder works out from a batch (`SegmentBatch.plans`), in tensors of fixed shapes."""

    def check(self, batch: SegmentBatch) -> None:
        """Raise `DoesNotFit` if the plans of a batch of the host, not padded, are larger than the sizes."""

    def padding(self, batch: SegmentBatch) -> float:
        """Return how many times as large plans are padded as for this batch of the host."""

    def of(self, padded: SegmentBatch) -> Mapping[Any, Any]:
        """Return the plans of a padded batch, by operations of fixed shapes on its device."""


class Sizes(NamedTuple):
    """The size to which every step of a training is padded.

    Args:
        nodes, edges, configurable, segments: of the padded batch (`SegmentBatch.padded_to`). One segment at least is
            padding, and a node for each segment of padding and for every `LOOPS_A_NODE` edges of it.
        graphs, configs: of the padded predictions.
        plans: makes the plans of an encoder that takes a `SegmentBatch`; None for other encoders.
        likely: plans fit nearly all steps; else all of the graphs that the sizes are made of.
        all_segments: of the graphs of a step together, fresh or not; one at least is padding.

    Examples:
        >>> import gst
        >>> path = gst.Graph(np.zeros((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> Sizes.of([gst.segment(path, 3, "contiguous")] * 4, num_graphs=2, num_fresh=1, num_configs=7)[:6]
        (7, 2, 0, 3, 2, 7)
    """

    nodes: int
    edges: int
    configurable: int
    segments: int
    graphs: int
    configs: int
    plans: Plans | None = None
    likely: bool = False
    all_segments: int = 1

    @staticmethod
    def of(
        graphs: Sequence[SegmentedGraph], num_graphs: int, num_fresh: int, num_configs: int, encoder: object = None,
        likely: bool = False,
    ) -> Sizes:  # fmt: skip
        """Return the size that fits every step of at most `num_graphs` of the graphs, with `num_fresh` fresh segments
        of each and at most `num_configs` configurations. An `encoder` that takes a `SegmentBatch` makes its `Plans` by
        its method `fixed_plans(sizes, graphs, num_fresh)`, which reads the edges of all segments.
        """
        most = largest_sums(graphs, num_fresh, lambda graph: np.stack(
            [np.diff(graph.row_ptr), np.diff(graph.edge_ptr), np.diff(graph.config_ptr), np.ones(graph.num_segments)], 1
        ))  # fmt: skip
        nodes, edges, configurable, segments = (num_graphs * most).tolist()  # a step may hold one graph several times
        more = segments + 1 + edges // LOOPS_A_NODE
        everything = 1 + num_graphs * max(graph.num_segments for graph in graphs)
        fresh = nodes + more, edges, configurable, segments + 1
        sizes = Sizes(*fresh, num_graphs, num_configs, None, likely, everything)
        plans = plan_maker(encoder)
        return sizes if plans is None else sizes._replace(plans=plans(sizes, graphs, num_fresh))

    def padding(self, batch: SegmentBatch) -> float:
        """Return how many times as many nodes, or rows of plans, steps have padded as this batch of the host."""
        nodes = self.nodes / batch.num_nodes
        return nodes if self.plans is None else max(nodes, self.plans.padding(batch))


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
    """A draw and its fresh segments in memory of the host, padded to the sizes; `packed` is what goes to the device."""

    draw: Draw
    batch: SegmentBatch
    packed: Packed


class FixedBatch:
    """The batch of a model that an encoder reads each time, in tensors that stay where they are.

    Args:
        model: a `GraphSegmentTraining` on its device, with its lazy layers made. A module of its encoder with a method
            `check_batch(batch)` sees each batch on the host, before it is padded, and may raise.
        others: further tensors that are copied with each batch, and `tensors` afterwards.

    Raises:
        NoFixedShapes: the encoder takes a `SegmentBatch`, and the sizes have no plans.
    """

    def __init__(self, model: Any, sizes: Sizes, others: Mapping[str, Tensor]) -> None:
        if sizes.plans is None and model.call.whole == "batch":
            raise NoFixedShapes("a step of fixed shapes needs the plans of the encoder; give it to Sizes.of")
        self.model, self.sizes, self.others = model, sizes, others
        self.tensors: dict[str, Tensor] = {}
        self._batch: SegmentBatch | None = None
        self._packed: Packed | None = None
        self._checked: list[Any] = [each for each in modules(model.encoder) if hasattr(each, "check_batch")]

    def load(self, draw: Draw, **others: Tensor) -> PaddedStep:
        """Read and pad the fresh segments of a draw, and `others`; a thread may do it ahead.

        Raises:
            ValueError: the batch is too large; of its plans, `DoesNotFit`.
            NoFixedShapes: node features need a gradient.
        """
        batch = draw.fresh_batch()
        if any(tensor.requires_grad for tensor in batch.tensors().values()):
            raise NoFixedShapes("a step of fixed shapes copies features, so they would get no gradient")
        for module in self._checked:
            module.check_batch(batch)
        if self.sizes.plans is not None:
            self.sizes.plans.check(batch)
        like = self.model.like()
        kinds = {
            name: (like.dtype if dtype.is_floating_point else dtype, shape)
            for name, (dtype, shape) in batch.padded_kinds(*self.sizes[:4]).items()
        }
        packed = Packed.empty(kinds | kinds_of(self.others), like.device)
        padded = batch.padded_to(*self.sizes[:4], packed.tensors)
        for values in (self.others, others):
            write_beginnings(packed.tensors, values)
        return PaddedStep(draw, padded, packed)

    def fill(self, step: PaddedStep) -> None:
        """Copy a batch into the tensors of the first one.

        Raises:
            NoFixedShapes: a shape changed.
        """
        if self._packed is None:
            self._packed = step.packed.to(self.model.like().device)
            places = self._packed.tensors
            self.tensors = {name: places[name] for name in self.others}
            self._batch = step.batch.placed(places.values())
        else:
            new, old = step.packed.layout, self._packed.layout
            for name in sorted(new.keys() | old.keys()):
                now, first = (each[name][1] if name in each else None for each in (new, old))
                if now != first:
                    raise NoFixedShapes(f"{name} of a step has the shape {now}, and had {first} at the first step")
            self._packed.buffer.copy_(step.packed.buffer, non_blocking=True)
        object.__setattr__(self._batch, "host", step.batch)

    def encode(self) -> Float[Tensor, "segments configs channels"]:
        """Return the embeddings of the segments, the last one of padding left out. Nothing here depends on values, and
        nothing asks for them.

        Raises:
            NoFixedShapes: the encoder made plans that are not in `sizes`: it would read them again in later steps.
        """
        batch, model = self._batch, self.model
        assert batch is not None, "fill it first"
        batch.plans.clear()
        batch.plans.update({} if self.sizes.plans is None else self.sizes.plans.of(batch))
        plans = set(batch.plans)
        kind = batch.edge_index.device.type
        # The caller's autocast, without its cache: a recording would read casts that were made before it.
        with torch.autocast(kind, enabled=torch.is_autocast_enabled(kind), cache_enabled=False):
            embedded = model.encode_batch(batch)[:-1]
        if more := set(batch.plans) - plans:
            raise NoFixedShapes(f"a step of fixed shapes has no plans but those of its sizes; the encoder made {more}")
        return embedded


def write_beginnings(places: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Write tensors to the beginnings of larger ones."""
    for name, value in values.items():
        places[name][tuple(map(slice, value.shape))] = value


def encoder_refusal(model: Any) -> str | None:
    """Return the reason why batches of an encoder cannot have fixed shapes, as the end of a sentence; or None."""
    if model.call.whole == "batch" and plan_maker(model.encoder) is None:
        return (
            "needs plans of fixed shapes of an encoder that takes a SegmentBatch; use one of gst.nn, or take "
            "(x, edge_index) in the encoder"
        )
    if not model.readout.is_plain:
        return "pools by sum, mean or max alone"
    if problems := complaints(model.encoder, model.inputs):
        return f"would count its padding: {problems[0]}"
    return None


def hook_refusal(model: Any) -> str | None:
    """The reason if a module or parameter has a hook: callbacks add them at any time."""
    for name, module in model.named_modules():
        is_lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin)  # its own hook makes its parameters
        if not is_lazy and any(getattr(module, hooks, None) for hooks in MODULE_HOOKS):
            return f"runs no hooks, and module {name!r} has one; remove it (pruning and W&B's watch add hooks)"
    for name, parameter in model.named_parameters():
        if any(getattr(parameter, hooks, None) for hooks in PARAMETER_HOOKS):
            return f"runs no hooks, and parameter {name!r} has one; remove it (W&B's watch adds hooks)"
    return None


def modules(module: object) -> Iterator[nn.Module]:
    """A module and those in it; nothing of a callable that is no module."""
    return module.modules() if isinstance(module, nn.Module) else iter(())
