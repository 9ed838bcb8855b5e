"""Graph Segment Training (Cao et al., NeurIPS 2023): learn from whole graphs, backpropagate through parts of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from gst.graphs.config_classes import config_classes
from gst.graphs.segments import SegmentedGraph
from gst.method import draws, encoding
from gst.method.batch import SegmentBatch
from gst.method.draws import Catalogue, checked_configs
from gst.method.estimates import Estimate, Part, RowsOfNow, Sample, checked_estimate, combine, pool_all
from gst.method.exchange import SharedRows
from gst.method.first_look import FirstLook
from gst.method.readouts import Rows, readout_of
from gst.method.rows import (
    ModelKeys,
    OwnRows,
    PrefetchedStep,
    RowsVersion,
    StepRows,
    after_loading,
    before_loading,
    embed_frozen,
    forget_rows,
    freeze,
    make_table,
    make_table_of,
    require_finite_gradients,
    restore,
    state_of,
)
from gst.util.progress import Progress, no_progress


class GraphSegmentTraining(nn.Module):
    """Graph Segment Training of an encoder and a head. In training mode `forward` estimates the prediction from a
    few fresh segments per graph; in evaluation mode it is `exact`. Variants differ in the other segments:

    | variant | arguments |
    |---|---|
    | GST-One | `estimate="fresh", num_fresh=1`: left out |
    | GST     | the defaults: encoded too, without gradient |
    | GST+E   | `table=True, estimate="dropout"`: their last embedding, however old |
    | +D      | `keep_probability` < 1: a random share of them is dropped, the fresh ones weigh more |
    | ours    | `table=True`: their last embedding; the sum is corrected by the fresh ones |
    | +F      | call `freeze_encoder()`: from then on only the head learns, on embeddings of the frozen encoder |

    Args:
        encoder: takes a `SegmentBatch`, or `(x, edge_index)` and more like any PyG model, or PyG's `data`
            (`gst.method.encoding.call_of`; the latter two see one copy of the batch per configuration). Returns
            `NodeStates`, or embeddings `(nodes or segments, [configs,] channels)`; of a tuple the first.
        head: pooled embeddings `(graphs, configs, channels)` -> prediction.
        pooling: readout of the embeddings h of the nodes: `sum`, `mean`, `max`, `attention` (mean weighted by exp of a
            learned linear gate), `softmax` (by exp(h), for each channel), `std`, PyG's aggregations of these kinds, or
            several of the first three joined, as in `mean+max`, which make the head's input as many times as wide.
            All are exact in evaluation; under sampling all but `sum` and `mean` have a bias, which vanishes as
            `num_fresh` grows.
        num_fresh: segments encoded with gradient per graph and step.
        keep_probability: share of rows that Stale Embedding Dropout keeps.
        table: keeps embeddings of segments between steps: True (made in the first step), an `EmbeddingTable`, or a
            `ShardedTable` where several processes train.
        max_rows: most (node, configuration) pairs encoded at once without gradient; it bounds the memory of `exact`.
        seed: with the number of the step it decides the draws of segments.
        estimate: an `Estimate`, or its name in `gst.method.estimates.ESTIMATES`. `auto` is `difference` with a table,
            unless `keep_probability` < 1 or pooling by maximum ask for `dropout`, the paper's.
        inputs: source of the encoder's arguments, where its signature does not name them: `batch`, `data`, or a
            mapping from each argument to a field (`x`, `edge_index`, `batch`, `opcodes`, a name in `node_data` or
            `edge_data`) or to a function of the `ExpandedBatch`.
        readout: two functions (phi, rho) in place of `pooling`: rho(sum of phi(h)), of `(nodes, channels)` and
            `(graphs, numbers)`; consistent. Rows of a table then hold sums of phi(h).
        max_nodes: of `gst.segment`, for PyG's `Data` that is given in place of segmented graphs.
        check_encoder: before the first step refuse an encoder that remembers a segment, or whose rows depend on the
            order of edges or on other segments of a batch; found by some encodings of small segments.

    Raises:
        ValueError: an argument is out of range, or two of them exclude each other.
    """

    def __init__(
        self,
        encoder: Callable[..., Tensor],
        head: Callable[[Tensor], Tensor],
        pooling: str | Callable[..., Any] = "mean",
        num_fresh: int = 1,
        keep_probability: float = 1.0,
        table: EmbeddingTable | ShardedTable | bool | None = None,
        max_rows: int = 1 << 18,
        seed: int = 0,
        estimate: str | Estimate = "auto",
        inputs: encoding.Inputs | None = None,
        readout: tuple[Rows, Rows] | None = None,
        max_nodes: int = 1000,
        check_encoder: bool = True,
    ) -> None:
        super().__init__()
        self.readout = readout_of(pooling if readout is None else readout)
        self.pooling = self.readout.combine
        self.estimate = checked_estimate(self.pooling, num_fresh, keep_probability, bool(table), estimate)
        self.encoder, self.head, self.inputs = encoder, head, inputs
        self.num_fresh, self.keep_probability, self.max_rows = num_fresh, keep_probability, max_rows
        self.seed, self.step = seed, 0
        self.call = encoding.call_of(encoder, inputs)
        self.learned = None if self.estimate.learns is None else self.estimate.learns()
        self.encoder_frozen, self.rows_version = False, RowsVersion()
        self.makes_table = table is True
        self.table = None if isinstance(table, bool) else table
        self.keys = None if self.table is None else ModelKeys(self.table, by_class=self.estimate.reads == "all")
        self._copies: torch.Stream | None = None
        self._entrance, self._first_look = draws.Entrance(max_nodes), FirstLook(check_encoder)
        self.register_load_state_dict_pre_hook(before_loading)
        self.register_load_state_dict_post_hook(after_loading)
        for complaint in encoding.complaints(encoder, inputs):
            warnings.warn(complaint, stacklevel=2)

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
        gradient if gradients are on. `graphs` are segmented, or PyG's `Data` or a batch of its `DataLoader`. A step
        that is read already, `load(draw(graphs, configs))`, may be given as `prefetched` instead."""
        draws.refuse_transforms()
        if prefetched is None and not self.training:
            return self._evaluate(graphs, configs, torch.is_grad_enabled())
        step = self._begin(graphs, configs, prefetched)
        embedded = None if step.batch is None else self.encode_batch(step.batch)  # while rows of other processes travel
        pooled = embed_frozen(self, step) if embedded is None else self._estimate(step, embedded)
        return self._predict(pooled, step.draw.catalogue.graphs, configs)

    @torch.compiler.disable
    def _begin(self, graphs: Any, configs: Tensor | None, prefetched: PrefetchedStep | None) -> PrefetchedStep:
        """Return a step whose segments are read."""
        step = prefetched or self.load(self.draw(graphs, configs))
        if self.encoder_frozen and step.batch is not None:  # read before freeze_encoder(): for other rows
            step = self.load(step.draw)
        self.step = step.draw.number
        if step.batch is None:
            make_table_of(self, step.draw.catalogue.graphs[0])
        else:
            self._first_look(self, step.draw.catalogue, step.draw.configs)
            step.begin(self.like().device)
        return step

    @torch.compiler.disable
    def _estimate(self, step: PrefetchedStep, embedded: Tensor) -> Tensor:
        """Return estimates of the pooled embeddings, and write the rows of the fresh segments."""
        make_table(self, embedded)
        draw, rows = step.draw, step.rows or self.rows_of(step.draw)
        if self.keys is not None:
            self.keys.check_width(embedded.shape[-1])
        encode = partial(self.encoded, draw.catalogue, configs=draw.configs)
        source = rows or RowsOfNow(encode, len(draw.catalogue), draw.configs.shape[1])
        segments = draw.catalogue
        sample = Sample(
            draw.fresh, draw.inclusion, draw.kept, source.ages(), segments.graph, segments.node_counts,
            segments.graph_node_counts, self.keep_probability, self.learned,
        )  # fmt: skip
        fresh = draw.fresh.nonzero().squeeze(1)
        pooled = combine(self.estimate, sample, fresh, embedded, self.pooling, source)
        if rows is not None:
            require_finite_gradients(embedded, self.encoder, rows.push(embedded, fresh, sample.is_known[fresh]))
        return pooled

    def _predict(
        self, pooled: Float[Tensor, "graphs configs numbers"], graphs: Iterable[SegmentedGraph], configs: Tensor | None
    ) -> Tensor:
        """Return predictions with an axis of configurations if some are asked for, or a graph has any."""
        prediction = encoding.apply_head(self.head, self.readout.finish(pooled))
        has_configs = configs is not None or any(graph.has_configs for graph in graphs)
        return prediction if has_configs else encoding.without_configs(prediction)

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
        graphs = self._entrance(graphs)
        draw = draws.draw_segments(
            draws.Catalogue.of(graphs), draws.checked_configs(graphs, configs), self.step + 1 + ahead,
            self.seed, self.num_fresh, self.keep_probability, rank=encoding.rank() if peers is None else 0,
        )  # fmt: skip
        return draw if peers is None else draw.part_of(peers)

    def load(self, draw: draws.Draw) -> PrefetchedStep:
        """Read the fresh segments of a draw; a thread may do it ahead, since it touches nothing that a step changes."""
        rows = self.rows_of(draw)
        if self.encoder_frozen:
            return PrefetchedStep(draw, None, rows)
        like, batch = self.like(), draw.fresh_batch()
        if like.device.type in ("cpu", "mps", "meta"):  # which have no streams
            return PrefetchedStep(draw, batch.to(like.device, like.dtype), rows)
        self._copies = self._copies or torch.Stream(like.device)
        copied, arrived = batch.copied_by(self._copies, like)
        return PrefetchedStep(draw, copied, rows, arrived)

    def rows_of(self, draw: draws.Draw) -> StepRows | None:
        """Return access to the rows of a step; None without a table. A frozen encoder needs all rows."""
        if self.keys is None:
            return None
        if isinstance(self.table, ShardedTable):
            return SharedRows(self.keys, draw, self.like, self.encoder_frozen or self.estimate.reads == "all")
        return OwnRows(self.keys, draw, self.like)

    def exact(self, graphs: Any, configs: Int64[Tensor, "graphs configs"] | None = None) -> Tensor:
        """Predict from all segments, encoded now without gradient and in evaluation mode, within `max_rows`."""
        return self._evaluate(graphs, configs, with_gradient=False)

    @torch.compiler.disable
    def _evaluate(self, graphs: Any, configs: Tensor | None, with_gradient: bool) -> Tensor:
        graphs = self._entrance(graphs)
        with torch.set_grad_enabled(with_gradient), encoding.evaluating(self.encoder, self.head, self.readout):
            pooled = self._embed(graphs, configs, with_gradient)
            return self._predict(pooled, graphs, configs)

    def scores(
        self, graph: SegmentedGraph, configs: Int64[Tensor, " configs"] | None = None, configs_at_once: int = 64,
        progress: Progress = no_progress,
    ) -> Tensor:  # fmt: skip
        """Return `exact` predictions for `configs` of one graph (all if not given): the head takes so many at a time.
        A segment is encoded once for all configurations that are alike on it (`gst.method.estimator`)."""
        chosen = torch.arange(graph.num_configs) if configs is None else configs
        with torch.no_grad(), encoding.evaluating(self.encoder, self.head, self.readout):
            parts = scores_of(self, graph, chosen, configs_at_once, progress)
            return torch.cat([self._predict(part, [graph], chosen)[0] for part in parts])

    def embed(
        self, graphs: Any, configs: Int64[Tensor, "graphs configs"] | None = None
    ) -> Float[Tensor, "graphs configs channels"]:
        """Return the pooled embeddings of `configs`, from all segments, encoded now without gradient."""
        with torch.no_grad(), encoding.evaluating(self.readout):
            return self.readout.finish(self._embed(self._entrance(graphs), configs))

    def _embed(self, graphs: Any, configs: Tensor | None, with_gradient: bool = False) -> Tensor:
        catalogue, checked = draws.Catalogue.of(graphs), draws.checked_configs(graphs, configs)
        with encoding.evaluating(self.encoder):
            self._first_look(self, catalogue, checked)
            parts = self.encoded(catalogue, torch.arange(len(catalogue)), checked, with_gradient)
            return pool_all(catalogue, checked.shape[1], parts, self.pooling, self.like().device)

    def channels(self, graph: SegmentedGraph) -> int:
        """Return the width of the embedding of a segment: one is encoded, under the first configuration."""
        catalogue = draws.Catalogue.of([graph])
        one = torch.argmax(catalogue.configurable.long())[None]  # the first that has configurable nodes, if any has
        with encoding.evaluating(self.encoder):
            return int(self.encode(catalogue, one, torch.zeros(1, 1, dtype=torch.int64)).shape[-1])

    def clear_graphs(self) -> None:
        """Free the memory of PyG's `Data` that was cut, up to 1 GiB; graphs that come again are cut again."""
        self._entrance = draws.Entrance(self._entrance.max_nodes)

    def register(self, graphs: Iterable[SegmentedGraph]) -> None:
        """Allocate the table keys of all `graphs` now: processes that share a table need the same keys."""
        for graph in graphs:
            make_table_of(self, graph)
            if self.keys is not None:
                self.keys.register(graph)

    def freeze_encoder(self) -> None:
        """Stop training the encoder (finetuning, +F) and forget its rows, which come from older weights.

        From now on, with a table, every segment is encoded once, when it is first needed, and its row is exact. A
        `DistributedDataParallel` around the model has to be made anew."""
        freeze(self)
        forget_rows(self)

    def keep_frozen_rows(self) -> None:
        """Take the rows of a frozen encoder for exact at the next step, although its parameters were wrapped since."""
        self.rows_version.is_trusted |= self.encoder_frozen

    def encoded(
        self, catalogue: draws.Catalogue, segments: Tensor, configs: Tensor, with_gradient: bool = False
    ) -> Iterator[Part]:
        """Encode segments, at most `max_rows` pairs at a time; with a gradient the backward pass encodes them anew."""
        again = partial(checkpoint, self.encode, use_reentrant=False)
        encode = again if with_gradient else torch.no_grad()(self.encode)
        for chunk in catalogue.chunks(segments, configs.shape[1], self.max_rows):
            yield chunk, encode(catalogue, chunk, configs)

    def encode(
        self, catalogue: draws.Catalogue, segments: Int64[Tensor, " chosen"], configs: Int64[Tensor, "graphs configs"]
    ) -> Float[Tensor, "chosen configs channels"]:
        """Read and encode segments."""
        modules = self.before_rows if torch.is_grad_enabled() else ()  # a backward pass may come after train()
        with encoding.evaluating(*modules):
            return encoding.encode_segments(self.encode_batch, catalogue, segments, configs, self.max_rows, self.like())

    @torch.compiler.disable(recursive=False)
    def encode_batch(self, batch: SegmentBatch) -> Float[Tensor, "segments configs channels"]:
        """Encode segments that are read, and pool their nodes."""
        return encoding.embed_segments(self.encoder, batch, self.call, self.pooling, self.readout.phi)

    @property
    def before_rows(self) -> tuple[object, object]:
        """The modules that compute rows of the table."""
        return self.encoder, self.readout.phi

    def like(self) -> Tensor:
        """Return a tensor on the device and in the dtype of the model."""
        return encoding.parameter_of(self, torch.empty(0))

    get_extra_state, set_extra_state = state_of, restore

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`, without streams; rows of a frozen encoder stay exact."""
        return self.__dict__ | {"_copies": None, "rows_version": RowsVersion(is_trusted=self.encoder_frozen)}


def scores_of(
    model: Any, graph: SegmentedGraph, configs: Int64[Tensor, " configs"], configs_at_once: int, progress: Progress
) -> Sequence[Float[Tensor, "1 part channels"]]:
    """Return the pooled embeddings of configurations, in parts for the head."""
    catalogue, together = Catalogue.of([graph]), checked_configs([graph], configs[None])[0]

    def encoded() -> Iterator[Part]:
        began = time.perf_counter()
        for place, classes in enumerate(config_classes(graph).of(together.numpy())):
            rate = len(together) * place / graph.num_segments / (time.perf_counter() - began)
            progress(f"scoring, {rate:,.0f} configurations a second", place, graph.num_segments)
            _, first, class_of = np.unique(classes, return_index=True, return_inverse=True)
            segment = torch.tensor([place])
            rows = model.encode(catalogue, segment, together[first][None])
            yield segment, rows[:, torch.from_numpy(class_of).to(rows.device)]

    pooled = pool_all(catalogue, len(together), encoded(), model.pooling, model.like().device)
    progress("scoring", graph.num_segments, graph.num_segments)
    return pooled.split(configs_at_once, dim=1)
