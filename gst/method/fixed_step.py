"""A training step of fixed shapes: what an accelerator computes in it reads tensors that stay where they are.

Batches are padded to one size, so that the same operations on the same memory make each step, and can be recorded once
(`gst.training.recorded_step`). Draws, keys and rows of the table are the host's, before and behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from embedding_cache import EmbeddingTable
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.draws import Draw, dropout_weights
from gst.method.encoding import GraphPool, embed_segments
from gst.method.estimator import GraphSegmentTraining


class Sizes(NamedTuple):
    """To which the fresh segments of a step are padded.

    Examples:
        >>> import gst
        >>> path = gst.Graph(np.zeros((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> Sizes.of([gst.segment(path, 3, "contiguous")] * 4, num_graphs=2, num_fresh=1)
        Sizes(nodes=5, edges=2, configurable=0)
    """

    nodes: int
    edges: int
    configurable: int

    @staticmethod
    def of(graphs: Sequence[SegmentedGraph], num_graphs: int, num_fresh: int) -> Sizes:
        """Into which every step of so many of the graphs fits, with one node that is padding."""

        def most(pointers: Sequence[np.ndarray]) -> int:
            of_graph = [int(np.sort(np.diff(each))[-num_fresh:].sum()) for each in pointers]
            return num_graphs * max(of_graph)  # a step may hold one graph several times

        return Sizes(
            most([graph.row_ptr for graph in graphs]) + 1, most([graph.edge_ptr for graph in graphs]),
            most([graph.config_ptr for graph in graphs]),
        )  # fmt: skip


class FixedStep:
    """Steps of one model: `fill` for the data of a step, `compute` for its arithmetic, `finish` for the table.

    Args:
        model: in training mode, on its device, with its lazy layers made. Its encoder takes `x` and `edge_index` or
            PyG's data; one that takes a `SegmentBatch` makes plans on the host, which have other sizes in each step.
        loss: predictions and targets, both `(graphs, configs)` -> a number.
        optimizer: of the model; one that counts its steps has to do so on the accelerator (`capturable=True`).
        sizes: see `Sizes.of`.

    Attributes:
        value: the loss of the step computed last; it stays where it is.

    Raises:
        ValueError: shapes or operations of such a model change from step to step.
    """

    def __init__(
        self, model: GraphSegmentTraining, loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: torch.optim.Optimizer, sizes: Sizes,
    ) -> None:  # fmt: skip
        if refusal := _refusal(model, optimizer):
            raise ValueError(f"a step of fixed shapes {refusal}")
        self.model, self.loss, self.optimizer, self.sizes = model, loss, optimizer, sizes
        self.value = self._embedded = self._is_finite = torch.empty(0)
        self._inputs: dict[str, Tensor] = {}
        self._batch: SegmentBatch | None = None
        self._done: tuple[Draw, Tensor, Tensor] | None = None

    def fill(
        self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"],
        targets: Float[Tensor, "graphs configs"],
    ) -> None:  # fmt: skip
        """Draw the next step of the model, and put what it reads where `compute` reads it.

        Raises:
            ValueError: the step has other shapes than the one before.
        """
        model = self.model
        draw = model.draw(graphs, configs)
        assert draw is not None, "uniform draws do not depend on the table"
        model.step = draw.number
        catalogue, like = draw.catalogue, model._like()
        keys, chosen = model._table_keys(catalogue, draw.configs), draw.fresh.nonzero().squeeze(1)
        known = model._known(keys)
        weights = dropout_weights(draw.fresh, draw.inclusion, known, draw.kept, model.keep_probability)
        batch = model._batch(catalogue, chosen, draw.configs).padded_to(*self.sizes)
        batch = (batch if like.device.type == "cpu" else batch.pinned()).to(like.device, like.dtype)
        inputs = {
            "weights": weights.fresh[chosen], "graph": catalogue.graph[chosen],
            "graph_node_counts": catalogue.graph_node_counts, "targets": targets,
        }  # fmt: skip
        inputs = {name: each.to(like.device, non_blocking=True) for name, each in inputs.items()}
        if model.table is not None:
            inputs["rest"] = self._rest(draw, keys, weights.stale)
        self._keep(batch, inputs)
        self._done = draw, chosen, keys

    def compute(self) -> None:
        """Encode, pool, predict, and learn from it. Nothing here depends on values, and nothing asks for them."""
        model, inputs, batch = self.model, self._inputs, self._batch
        assert batch is not None, "fill it first"
        self.optimizer.zero_grad(set_to_none=True)
        embedded = embed_segments(model.encoder, batch, model._call, model.pooling)[:-1]
        embedded.register_hook(self._look_at)
        pool = GraphPool(inputs["graph_node_counts"], model.pooling, inputs.get("rest"))
        pool.add(embedded, inputs["weights"].to(embedded.dtype), batch.node_counts[:-1], inputs["graph"])
        scores = model._predict(pool.result())
        scores = scores.squeeze(-1) if scores.dim() > inputs["targets"].dim() else scores  # some heads have done that
        value = self.loss(scores, inputs["targets"])
        value.backward()
        self.optimizer.step()
        self.value, self._embedded = value.detach(), embedded.detach()

    def finish(self) -> None:
        """Write the rows of the fresh segments, unless their gradient is not finite."""
        if self.model.table is not None and self._done is not None:
            draw, chosen, keys = self._done
            staged = self.model._stage(draw.catalogue, chosen, keys, self._embedded.clone())
            staged.require(self._is_finite.clone())

    def _look_at(self, gradient: Tensor) -> None:
        self._is_finite = gradient.isfinite().all()

    def _rest(self, draw: Draw, keys: Tensor, weights: Tensor) -> Float[Tensor, "graphs configs channels"]:
        """What rows of the table give the graphs: zeros, or maxima of nothing, where there are none."""
        model, table, like = self.model, self.model.table, self.model._like()
        assert isinstance(table, EmbeddingTable)
        nothing = -torch.inf if model.pooling == "max" else 0.0
        shape = (len(draw.catalogue.graphs), keys.shape[1], table.channels)
        counts = draw.catalogue.graph_node_counts.to(like.device, non_blocking=True)
        pool = GraphPool(counts, model.pooling, like.new_full(shape, nothing))
        model._add_pulled(pool, draw.catalogue, (weights > 0).any(1).nonzero().squeeze(1), keys, weights)
        assert pool.total is not None
        return pool.total

    def _keep(self, batch: SegmentBatch, inputs: dict[str, Tensor]) -> None:
        """Copy into the tensors of the first step."""
        if self._batch is None:
            self._batch = batch
            self._inputs = {name: each.clone() for name, each in inputs.items()}  # targets are the caller's
            return
        new, old = {**batch.tensors(), **inputs}, {**self._batch.tensors(), **self._inputs}
        for name, tensor in new.items():
            if tensor.shape != old[name].shape:
                raise ValueError(
                    f"{name} of this step is {tuple(tensor.shape)}, and {tuple(old[name].shape)} was that of the "
                    "first; give every step as many graphs and configurations, each graph of num_fresh segments or more"
                )
        for name, tensor in new.items():
            old[name].copy_(tensor, non_blocking=True)


def _refusal(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer) -> str | None:
    """Why steps of a model cannot have fixed shapes."""
    if model._call.whole == "batch":
        return "cannot hold plans of an encoder that takes a SegmentBatch; take (x, edge_index) in the encoder"
    if model.table is None and not model.omit_rest:
        return "cannot encode all other segments; give the model a table, or omit_rest=True"
    if model.table is not None and not isinstance(model.table, EmbeddingTable):
        return "is of one process; give the model an EmbeddingTable"
    if model.estimate not in ("dropout", "fixed_dropout") or model.refresh != "uniform":
        return f"is for estimate='dropout' and uniform draws, not {model.estimate!r} and {model.refresh!r}"
    if model.histories is not None or model.encoder_frozen or model.pad_to or getattr(model.head, "references", 0):
        return "has no layer histories, frozen encoder, pad_to or reference configurations"
    on_host = [group for group in optimizer.param_groups if group.get("capturable") is False]
    if on_host and model._like().device.type != "cpu":
        return f"needs {type(optimizer).__name__}(..., capturable=True), which counts its steps on the accelerator"
    return None
