"""Graph Segment Training (Cao et al., NeurIPS 2023): learn from whole graphs, backpropagate through parts of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from gst.graphs.config_classes import config_classes, with_references
from gst.graphs.segments import SegmentedGraph
from gst.method import draws, encoding
from gst.method.batch import SegmentBatch, assemble
from gst.method.entering import Entrance, have_configs
from gst.method.exchange import SharedRows
from gst.method.forgetting import FirstLook
from gst.method.loading import after_loading, before_loading, restore, state_of
from gst.method.readouts import GraphPool, ReadoutName, Rows, readout_of
from gst.method.regression import RowRegression, composite_weights, stale_sum
from gst.method.rows import Known, ModelKeys, OwnRows, PrefetchedStep, StepRows, require_finite_gradients, row_chunks
from gst.method.scoring import recorded_encoding
from gst.util.packing import sent
from gst.util.progress import Progress, no_progress


class GraphSegmentTraining(nn.Module):
    """Graph Segment Training of an encoder and a head. In training mode `forward` estimates the prediction from a
    few fresh segments per graph; in evaluation mode it is `exact`. Variants differ in the other segments:

    | variant | arguments |
    |---|---|
    | GST-One | `estimate="fresh", num_fresh=1`: left out |
    | GST     | the defaults: encoded too, without gradient |
    | GST+E   | `table=EmbeddingTable(...), estimate="dropout"`: their last embedding, however old |
    | +D      | `keep_probability` < 1: a random share of them is dropped, the fresh ones weigh more |
    | ours    | `table=EmbeddingTable(...)`: their last embedding; the sum is corrected by the fresh ones |
    | +F      | call `freeze_encoder()`: from then on only the head learns, on embeddings of the frozen encoder |

    Args:
        encoder: takes a `SegmentBatch`, or `(x, edge_index)` and more like any PyG model, or PyG's `data`
            (`gst.method.encoding.call_of`; the latter two see one copy of the batch per configuration). Returns
            `NodeStates`, embeddings of the nodes `(nodes, [configs,] channels)` or of the segments
            `(segments, [configs,] channels)`; of a tuple the first.
        head: pooled embeddings `(graphs, configs, channels)` -> prediction. A head with an attribute `references`
            gets the embeddings of so many reference configurations of each graph first.
        pooling: readout of a graph from the embeddings h of its nodes: `sum`, `mean`, `max`, `attention` (mean weighted
            by exp of a learned linear gate), `softmax` (by exp(h), for each channel), `std`, or PyG's aggregations of
            these kinds, `AttentionalAggregation(gate)` and `PowerMeanAggregation(p)` among them. All are exact in
            evaluation. Under sampling `sum` and `mean` have no bias, and neither has the gradient of a linear head. The
            others are functions of sums: value and gradient are consistent, their bias vanishes as `num_fresh` grows.
        readout: two functions (phi, rho) in place of `pooling`: rho(sum of phi(h)), of `(nodes, channels)` and
            `(graphs, numbers)`; consistent. Rows of a table then hold sums of phi(h).
        num_fresh: S, segments encoded with gradient per graph and step.
        keep_probability: p of Stale Embedding Dropout.
        table: keeps embeddings of segments between steps; a `ShardedTable` where several processes train.
        max_rows: encode at most so many (node, configuration) pairs at once where no gradient is needed, a single
            segment under a single configuration being the least. It bounds the memory of `exact`.
        seed: with the number of the step it decides the draws of segments.
        estimate: estimate of a graph from fresh segments and rows. `dropout` is the paper's: each row is kept or not
            independently (at `keep_probability` 1 all are: +E); `fixed_dropout` keeps the same number in every step.
            `difference` uses all rows and corrects their sum by the errors of the fresh segments' rows; `regression`
            does so with rows that a learned linear map brings up to date. Both have no bias however old the rows are.
            `composite` applies only the part of that correction which segments of a graph have in common; it has the
            smallest error, and a bias where the map is wrong (`gst.method.regression`). `fresh` leaves the other
            segments out. The gradient of the encoder always comes from the fresh segments alone. `auto` is
            `difference` with a table, unless `keep_probability` < 1 or pooling by maximum ask for `dropout`.
        inputs: source of the encoder's arguments, where its signature does not name them: `batch`, `data`, or a
            mapping from each argument to a field (`x`, `edge_index`, `batch`, `opcodes`, a name in `node_data` or
            `edge_data`) or to a function of the `ExpandedBatch`.

        max_nodes: of `gst.segment`, for PyG's `Data` that is given in place of segmented graphs.
        check_encoder: refuse an encoder that remembers a segment, such as `GCNConv(cached=True)`: seven encodings of
            segments before the first step, in two orders.

    Raises:
        ValueError: an argument is out of range, or two of them exclude each other.
    """

    def __init__(
        self,
        encoder: Callable[..., Tensor],
        head: Callable[[Tensor], Tensor],
        pooling: ReadoutName | Callable[..., Any] = "mean",
        num_fresh: int = 1,
        keep_probability: float = 1.0,
        table: EmbeddingTable | ShardedTable | None = None,
        max_rows: int = 1 << 18,
        seed: int = 0,
        estimate: draws.Estimate = "auto",
        inputs: encoding.Inputs | None = None,
        readout: tuple[Rows, Rows] | None = None,
        max_nodes: int = 1000,
        check_encoder: bool = True,
    ) -> None:
        super().__init__()
        self.readout = readout_of(pooling if readout is None else readout)
        self.pooling = self.readout.combine
        has_table = table is not None
        self.estimate = draws.checked_estimate(self.pooling, num_fresh, keep_probability, has_table, estimate)
        self.encoder, self.head, self.table, self.inputs = encoder, head, table, inputs
        self.num_fresh, self.keep_probability, self.max_rows = num_fresh, keep_probability, max_rows
        self.seed, self.step = seed, 0
        self.encoder_frozen = False
        self._regression = RowRegression() if self.estimate in ("regression", "composite") else None
        self._keys = None if table is None else ModelKeys(table, by_class=self.estimate in draws.ALL_ROWS)
        self._rows_type = SharedRows if isinstance(table, ShardedTable) else OwnRows
        self._frozen_version: tuple[Any, ...] | None = None
        self._call = encoding.call_of(encoder, inputs)
        self._copies: torch.Stream | None = None
        self._entered, self._first_look = Entrance(max_nodes), FirstLook(check_encoder)
        self.register_load_state_dict_pre_hook(before_loading)
        self.register_load_state_dict_post_hook(after_loading)
        encoding.warn_about(encoder, inputs)

    @torch.compiler.disable(recursive=False)  # torch.compile(model) compiles the encoder and the head
    def forward(
        self,
        graphs: Any = None,
        configs: Int64[Tensor, "graphs configs"] | None = None,
        prefetched: PrefetchedStep | None = None,
    ) -> Tensor:
        """Predict `(graphs, outputs)`, or `(graphs,)` for one output. With `configs`, or if a graph has any, it is
        `(graphs, configs, outputs)`; -1 is padding with a meaningless prediction, and None stands for all.

        In training mode this is one step of the method and writes the table; in evaluation mode it is `exact`, with a
        gradient if gradients are on: the backward pass encodes the segments again, within `max_rows`. `graphs` are
        segmented, or PyG's `Data` or a batch of its `DataLoader`: these are cut once and found again by their content.
        A step that is read already, `load(draw(graphs, configs))`, may be given as `prefetched` instead."""
        if prefetched is None and not self.training:
            return self._evaluate(graphs, configs, torch.is_grad_enabled())
        step = self._begin(graphs, configs, prefetched)
        has_configs = have_configs(step.draw.catalogue.graphs, configs)
        if step.batch is None:
            return self._predict(self._embed_frozen(step), has_configs)
        if step.rows is not None:
            step.rows.begin()
        embedded = self._encode_batch(step.batch)  # while rows of other processes travel
        if self._keys is not None:
            self._keys.check_width(embedded.shape[-1])
        return self._predict(self._estimate(step.draw, embedded, step.rows), has_configs)

    def _predict(self, pooled: Float[Tensor, "graphs configs numbers"], has_configs: bool) -> Tensor:
        prediction = encoding.apply_head(self.head, self.readout.finish(pooled))
        return prediction if has_configs else encoding.without_configs(prediction)

    @torch.compiler.disable
    def _begin(self, graphs: Any, configs: Tensor | None, prefetched: PrefetchedStep | None) -> PrefetchedStep:
        """Return a step whose segments are read."""
        prefetched = prefetched or self.load(self.draw(graphs, configs))
        self.step = prefetched.draw.number
        if prefetched.batch is not None:
            self._first_look(self, prefetched.draw.catalogue, prefetched.draw.configs)
        if prefetched.arrived is not None and prefetched.batch is not None:
            stream = torch.accelerator.current_stream(self.like().device)
            stream.wait_event(prefetched.arrived)
            prefetched.batch.record_stream(stream)
        return prefetched

    def draw(
        self,
        graphs: Any,
        configs: Int64[Tensor, "graphs configs"] | None = None,
        ahead: int = 0,
        peers: draws.Peers | None = None,
    ) -> draws.Draw:
        """Draw the segments of the next step, or of the one `ahead` steps after it; of a shared step this process's."""
        if peers is not None:
            graphs, configs = peers.graphs, peers.configs
        graphs = self._entered(graphs)
        catalogue, configs = draws.Catalogue.of(graphs), self._with_references(graphs, configs)
        draw = draws.draw_segments(
            catalogue, configs, self.step + 1 + ahead, self.seed, self.num_fresh, self.keep_probability, self.estimate,
            rank=encoding.rank() if peers is None else 0,
        )  # fmt: skip
        return draw if peers is None else draw.part_of(peers)

    def load(self, draw: draws.Draw) -> PrefetchedStep:
        """Read the fresh segments of a draw; a thread may do it ahead, since it touches nothing that a step changes."""
        rows = self.rows_of(draw)
        if self.encoder_frozen:
            return PrefetchedStep(draw, None, rows)
        like, batch = self.like(), self.fresh_batch(draw)
        if like.device.type in ("cpu", "mps", "meta"):  # which have no streams
            return PrefetchedStep(draw, batch.to(like.device, like.dtype), rows)
        self._copies = self._copies or torch.Stream(like.device)
        copied, arrived = batch.copied_by(self._copies, like)
        return PrefetchedStep(draw, copied, rows, arrived)

    def rows_of(self, draw: draws.Draw) -> StepRows | None:
        """Return access to the rows of a step; None without a table. A frozen encoder needs all rows."""
        all_rows = self.encoder_frozen or self.estimate in draws.ALL_ROWS
        return None if self._keys is None else self._rows_type(self._keys, draw, self.like, all_rows)

    def exact(self, graphs: Any, configs: Int64[Tensor, "graphs configs"] | None = None) -> Tensor:
        """Predict from all segments, encoded now without gradient and in evaluation mode, within `max_rows`."""
        return self._evaluate(graphs, configs, with_gradient=False)

    @torch.compiler.disable
    def _evaluate(self, graphs: Any, configs: Tensor | None, with_gradient: bool) -> Tensor:
        graphs = self._entered(graphs)
        with torch.set_grad_enabled(with_gradient), encoding.evaluating(self.encoder, self.head, self.readout):
            pooled = self._embed(graphs, self._with_references(graphs, configs), with_gradient)
            return self._predict(pooled, have_configs(graphs, configs))

    def scores(
        self, graph: SegmentedGraph, configs: Int64[Tensor, " configs"] | None = None, configs_at_once: int = 64,
        progress: Progress = no_progress,
    ) -> Tensor:  # fmt: skip
        """Return `exact` predictions for `configs` of one graph (all if not given): the head takes so many at a time.

        A segment is encoded once for all configurations that are alike on it (`config_classes`), on an accelerator by
        one recorded graph for all segments (`gst.method.scoring`).
        """
        chosen = torch.arange(graph.num_configs) if configs is None else configs
        parts = [self._with_references([graph], part[None])[0] for part in chosen.split(configs_at_once)]
        catalogue, together = draws.Catalogue.of([graph]), torch.cat(parts)
        pool, weights = self._pool(catalogue), torch.ones(1, len(together))
        with torch.no_grad(), encoding.evaluating(self.encoder, self.head, self.readout):
            begun, encode = time.perf_counter(), recorded_encoding(self, graph, len(together)) or self._encode
            for place, classes in enumerate(config_classes(graph).of(together.numpy())):
                rate = len(together) * place / graph.num_segments / (time.perf_counter() - begun)
                progress(f"scoring, {rate:,.0f} configurations a second", place, graph.num_segments)
                _, first, class_of = np.unique(classes, return_index=True, return_inverse=True)
                segment = torch.tensor([place])
                rows = encode(catalogue, segment, together[first][None])
                self._add(pool, catalogue, segment, rows[:, torch.from_numpy(class_of).to(rows.device)], weights)
            progress("scoring", graph.num_segments, graph.num_segments)
            lengths = [len(part) for part in parts]
            return torch.cat([self._predict(part, has_configs=True)[0] for part in pool.result().split(lengths, dim=1)])

    def embed(
        self, graphs: Any, configs: Int64[Tensor, "graphs configs"] | None = None
    ) -> Float[Tensor, "graphs configs channels"]:
        """Return the pooled embeddings of `configs`, from all segments, encoded now without gradient."""
        with torch.no_grad(), encoding.evaluating(self.readout):
            return self.readout.finish(self._embed(self._entered(graphs), configs, with_gradient=False))

    def _embed(self, graphs: Sequence[SegmentedGraph], configs: Tensor | None, with_gradient: bool) -> Tensor:
        catalogue, checked = draws.Catalogue.of(graphs), draws.checked_configs(graphs, configs)
        pool, everything = self._pool(catalogue), torch.arange(len(catalogue))
        ones = torch.ones(len(catalogue), checked.shape[1])
        with encoding.evaluating(self.encoder):
            self._first_look(self, catalogue, checked)
            self._add_encoded(pool, catalogue, everything, checked, ones, with_gradient)
        return pool.result()

    def channels(self, graph: SegmentedGraph) -> int:
        """Return the width of the embedding of a segment: one is encoded, under the first configuration."""
        catalogue = draws.Catalogue.of([graph])
        one = torch.argmax(catalogue.configurable.long())[None]  # the first that has configurable nodes, if any has
        with encoding.evaluating(self.encoder):
            return int(self._encode(catalogue, one, torch.zeros(1, 1, dtype=torch.int64)).shape[-1])

    def register(self, graphs: Iterable[SegmentedGraph]) -> None:
        """Allocate the table keys of all `graphs` now: processes that share a table need the same keys."""
        if self._keys is not None:
            for graph in graphs:
                self._keys.register(graph)

    def freeze_encoder(self) -> None:
        """Stop training the encoder (finetuning, +F) and forget its rows, which come from older weights.

        From now on, with a table, every segment is encoded once, when it is first needed, and its row is exact; if the
        weights of the encoder change all the same, all rows are computed anew. A `DistributedDataParallel` around the
        model has to be made anew."""
        self._freeze()
        self._forget_rows()

    def keep_frozen_rows(self) -> None:
        """Take the rows of a frozen encoder for exact at the next step, although its parameters were wrapped since."""
        if self.encoder_frozen:
            self._frozen_version = ()

    def _freeze(self) -> None:
        self.encoder_frozen = True
        for parameter in [p for m in self._before_rows() if isinstance(m, nn.Module) for p in m.parameters()]:
            if not nn.parameter.is_lazy(parameter):
                parameter.requires_grad_(False)
                parameter.grad = None  # else an optimizer would go on by it

    def _before_rows(self) -> tuple[object, object]:
        """Return the modules that rows of the table come from."""
        return self.encoder, self.readout.phi

    def _rows_version(self) -> tuple[Any, ...]:
        return tuple(map(encoding.version, self._before_rows()))

    def _forget_rows(self) -> None:
        if self._keys is not None:
            self._keys.forget()
        self._frozen_version = self._rows_version()

    # The estimate --------------------------------------------------------------------------------------------------

    @torch.compiler.disable
    def _estimate(self, draw: draws.Draw, embedded: Tensor, rows: StepRows | None) -> Tensor:
        """Return the pooled embeddings of the graphs; `embedded` are the fresh segments."""
        catalogue, pool, chosen = draw.catalogue, self._pool(draw.catalogue), draw.fresh.nonzero().squeeze(1)
        if self.estimate in draws.ALL_ROWS and rows is not None:
            return self._corrected(draw, chosen, embedded, rows)
        if self.estimate in draws.ALL_ROWS:  # rows of now: the value is exact, the gradient that of the fresh
            inverse = (1 / draw.inclusion)[:, None].expand(-1, draw.configs.shape[1])
            embedded, ones = draws.scale_gradient(embedded, inverse[chosen]), torch.ones_like(inverse)
            self._add(pool, catalogue, chosen, embedded, ones[chosen])
            self._add_encoded(pool, catalogue, (~draw.fresh).nonzero().squeeze(1), draw.configs, ones)
            return pool.result()
        is_known = self._is_known(draw, rows)
        weights = draws.dropout_weights(draw.fresh, draw.inclusion, is_known, draw.kept, self.keep_probability)
        self._add(pool, catalogue, chosen, embedded, weights.fresh[chosen])
        used = (weights.stale > 0).any(1).nonzero().squeeze(1)
        if rows is None:
            self._add_encoded(pool, catalogue, used, draw.configs, weights.stale)
        else:
            self._add_rows(pool, catalogue, used, rows, weights.stale)
            require_finite_gradients(embedded, self.encoder, rows.push(embedded, chosen).require)
        return pool.result()

    def _corrected(self, draw: draws.Draw, chosen: Tensor, embedded: Tensor, rows: StepRows) -> Tensor:
        """Return the estimate of `gst.method.regression`: rows of all segments, corrected by the fresh ones."""
        is_known, catalogue, pool = rows.is_known(), draw.catalogue, self._pool(draw.catalogue)
        value = weights = (draw.fresh / draw.inclusion)[:, None].expand(is_known.shape)
        if self.estimate == "composite":
            assert self._regression is not None
            value = composite_weights(catalogue.graph, draw.fresh, weights, is_known, self._regression.common)
            embedded = draws.scale_gradient(embedded, (weights / value)[chosen])
        self._add(pool, catalogue, chosen, embedded, value[chosen])
        stale, fresh_rows = stale_sum(draw, value[:, 0], rows, is_known, self.pooling, embedded.detach())
        result = pool.result() + stale.result(self._regression)
        if self._regression is not None:
            with_products = self.estimate == "composite"
            self._regression.learn(draw, fresh_rows, embedded, is_known, self.pooling, rows.summed, with_products)
        require_finite_gradients(embedded, self.encoder, rows.push(embedded, chosen).require)
        return result

    def _is_known(self, draw: draws.Draw, rows: StepRows | None) -> Known:
        """Mark the pairs of a segment and a configuration that can be stale: without a table, all or none."""
        if rows is not None:
            return rows.is_known()
        return torch.full((len(draw.catalogue), draw.configs.shape[1]), self.estimate != "fresh")

    @torch.compiler.disable
    def _embed_frozen(self, step: PrefetchedStep) -> Tensor:
        """Return exact pooled embeddings, so the encoder is in evaluation mode."""
        encoding.check_reducer()
        if self._frozen_version == ():
            self._frozen_version = self._rows_version()
        elif self._frozen_version != self._rows_version():
            self._freeze()  # lazy layers may have taken their widths since
            self._forget_rows()
        catalogue, configs, rows = step.draw.catalogue, step.draw.configs, step.rows
        everything, weights = torch.arange(len(catalogue)), torch.ones(len(catalogue), configs.shape[1])
        pool = self._pool(catalogue)
        with encoding.evaluating(*self._before_rows()):
            if rows is None:
                self._add_encoded(pool, catalogue, everything, configs, weights)
                return pool.result()
            rows.begin()
            missing = (~rows.is_known() & (configs[catalogue.graph] >= 0)).any(1)
            self._add_rows(pool, catalogue, everything[~missing], rows, weights)
            encoded = self._add_encoded(pool, catalogue, everything[missing], configs, weights)
            rows.push_missing(encoded, everything[missing])  # after the others were pulled: a full table evicts them
        return pool.result()

    # Pooling, a bounded number of segments at a time -----------------------------------------------------------------

    def _pool(self, catalogue: draws.Catalogue) -> GraphPool:
        return GraphPool(catalogue.graph_node_counts.to(self.like().device, non_blocking=True), self.pooling)

    def _add(
        self, pool: GraphPool, catalogue: draws.Catalogue, segments: Tensor, embedded: Tensor, weights: Tensor
    ) -> None:
        weights = weights.to(embedded.dtype)
        given = {"weights": weights, "counts": catalogue.node_counts[segments], "graph": catalogue.graph[segments]}
        pool.add(embedded, *sent(given, embedded.device).values())

    def _add_encoded(
        self, pool: GraphPool, catalogue: draws.Catalogue, segments: Tensor, configs: Tensor, weights: Tensor,
        with_gradient: bool = False,
    ) -> list[Tensor]:  # fmt: skip
        """Encode `segments`, add them to the pool, and return their embeddings; the backward pass encodes them anew."""
        encoded = []
        encode = (
            partial(checkpoint, self._encode, use_reentrant=False) if with_gradient else torch.no_grad()(self._encode)
        )
        for chunk in catalogue.chunks(segments, configs.shape[1], self.max_rows):
            encoded.append(encode(catalogue, chunk, configs))
            self._add(pool, catalogue, chunk, encoded[-1], weights[chunk])
        return encoded

    def _add_rows(
        self, pool: GraphPool, catalogue: draws.Catalogue, segments: Tensor, rows: StepRows, weights: Tensor
    ) -> None:
        """Add the rows of `segments` to the pool."""
        for chunk in row_chunks(segments, weights.shape[1]):
            self._add(pool, catalogue, chunk, rows.of(chunk), weights[chunk])

    # The encoder and the head --------------------------------------------------------------------------------------

    def _encode(
        self, catalogue: draws.Catalogue, segments: Int64[Tensor, " chosen"], configs: Int64[Tensor, "graphs configs"]
    ) -> Float[Tensor, "chosen configs channels"]:
        like = self.like()
        if not torch.is_grad_enabled():
            return encoding.encode_segments(self._encode_batch, catalogue, segments, configs, self.max_rows, like)
        with encoding.evaluating(*self._before_rows()):  # a backward pass may come after train()
            return encoding.encode_segments(self._encode_batch, catalogue, segments, configs, self.max_rows, like)

    def fresh_batch(self, draw: draws.Draw) -> SegmentBatch:
        """Read the fresh segments of a draw, in memory of the host."""
        catalogue = draw.catalogue
        return assemble(catalogue.graphs, catalogue.picks(draw.fresh.nonzero().squeeze(1)), draw.configs)

    @torch.compiler.disable(recursive=False)
    def _encode_batch(self, batch: SegmentBatch) -> Float[Tensor, "segments configs channels"]:
        return encoding.embed_segments(self.encoder, batch, self._call, self.pooling, self.readout.phi)

    def _with_references(self, graphs: Sequence[SegmentedGraph], configs: Tensor | None) -> Tensor:
        """Return `configs`, after the reference configurations of the head if it has any."""
        references, checked = getattr(self.head, "references", 0), draws.checked_configs(graphs, configs)
        return with_references(graphs, checked, references) if references else checked

    @property
    def takes_batches(self) -> bool:
        """True if the encoder takes a `SegmentBatch`."""
        return self._call.whole == "batch"

    def like(self) -> Tensor:
        """Return a tensor on the device and in the dtype of the model."""
        return encoding.parameter_of(self, torch.empty(0))

    # Saving --------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return state_of(self)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        restore(self, state)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`, without streams; rows of a frozen encoder stay exact."""
        frozen_version = () if self.encoder_frozen else None
        return self.__dict__ | {"_copies": None, "_frozen_version": frozen_version}
