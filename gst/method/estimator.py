"""Graph Segment Training (Cao et al., NeurIPS 2023): learn from whole graphs, backpropagate through parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from embedding_cache.table import Staged
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.ages import DrawnAges
from gst.method.batch import SegmentBatch, assemble
from gst.method.draws import (
    REFRESH_BY_ROWS,
    Catalogue,
    Draw,
    Estimate,
    PrefetchedStep,
    Refresh,
    draw_segments,
    dropout_weights,
    resolved,
    table_keys,
)
from gst.method.encoding import GraphPool, Inputs, Pooling, call_of, embed_segments, pooling_name, warn_about
from gst.method.exchange import Peers, PendingRows, Traffic
from gst.method.guards import (
    check_reducer,
    evaluating,
    rank,
    report,
    require_finite_gradients,
    scale_gradient,
    version,
)
from gst.method.histories import LayerHistories
from gst.method.references import with_references
from gst.method.regression import (
    RowRegression,
    StaleSum,
    composite_weights,
    deviations,
    moments,
    readout_shares,
    residual_products,
)

Known = Bool[Tensor, "segments configs"]
STATE_VERSION = 3  # of checkpoints: rows of 1 belong to names of graphs, of 2 to numbers of configurations
PULL_ROWS = 1 << 13  # (segment, configuration) pairs taken from the table at once


class GraphSegmentTraining(nn.Module):
    """Graph Segment Training of an encoder and a head. In training mode `forward` estimates the prediction from a
    few fresh segments per graph; in evaluation mode it is `exact`. What stands for the other segments:

    | variant | arguments |
    |---|---|
    | GST-One | `omit_rest=True, num_fresh=1`: nothing; one segment speaks for its graph |
    | GST     | the defaults: they are encoded too, without gradient |
    | GST+E   | `table=EmbeddingTable(...), estimate="dropout"`: their last embedding, however old |
    | +D      | `keep_probability` < 1: a random share of them is dropped, the fresh ones weigh more |
    | ours    | `table=EmbeddingTable(...)`: their last embedding; the sum is corrected by the fresh ones |
    | +F      | call `freeze_encoder()`: from then on only the head learns, on embeddings of the frozen encoder |

    Args:
        encoder: takes a `SegmentBatch`, or `(x, edge_index)` and more like any PyG model, or PyG's `data` (recognised
            by the names of its required arguments, `gst.method.encoding.call_of`; the latter two see one copy of the
            batch per configuration, `SegmentBatch.expanded`). Returns `NodeStates`, embeddings of the nodes
            `(nodes, [configs,] channels)` or of the segments `(segments, [configs,] channels)`; of a tuple the first.
        head: pooled embeddings `(graphs, configs, channels)` -> prediction. One with an attribute `references`
            (`gst.nn.CrossConfigHead`) gets the embeddings of so many reference configurations of each graph first, and
            says nothing of them.
        pooling: `sum`, `mean` (over nodes) or `max`.
        num_fresh: S, segments encoded with gradient per graph and step.
        keep_probability: p of Stale Embedding Dropout.
        estimate: how fresh segments and rows of the table make the estimate of a graph. `dropout` is the paper's, each
            row kept or not independently of the others (at `keep_probability` 1 all are: +E); `fixed_dropout` keeps the
            same number of rows in every step. `difference` uses all rows and corrects their sum by how far those of the
            fresh segments are off; `regression` does the same with rows that a learned linear map brings up to date.
            Both are without bias however old the rows are, and their error is smaller. `composite` applies only that
            part of the correction of `regression` which segments of a graph have in common; it has the smallest error,
            and a bias where the map is wrong (`gst.method.regression`). In all five the gradient of the encoder comes
            from the fresh segments alone; in the last three its expectation is the gradient of the sum over all
            segments. `auto` is `difference` with a table, unless `keep_probability` < 1 or pooling by maximum ask for
            `dropout`.
        table: where embeddings of segments are kept between steps; a `ShardedTable` where several processes train.
        refresh: which segments are fresh. `uniform` draws them all alike (the paper). `size` and `order` are
            stratified: segments sorted by the nodes they own, or by the smallest node id among them, are cut into S
            strata of equally many, and one of each is drawn (`choose_by_strata`). The others draw S segments with
            probabilities in proportion to a score: `age`, the nodes of a segment times the steps since its rows were
            written (`gst.method.ages`; a table); `drift`, how far its rows are expected to have moved
            (`embedding_cache.refresh`; a table with `track_drift`); `gradient`, the norm of its gradient
            (`_gradient_norms`). Whatever the draw, values are weighed by its exact probabilities (Horvitz and Thompson
            1952), and gradients such that they are on average those of `uniform`. `drift` and `gradient` look at rows
            that the previous step wrote, so the segments of a step cannot be loaded in advance; they need an
            `EmbeddingTable`.
        omit_rest: leave the other segments out.
        max_rows: encode at most so many (node, configuration) pairs at once where no gradient is needed; it bounds the
            memory of `exact`, a single segment under a single configuration being the least.
        inputs: how a batch becomes the encoder's arguments, where its signature does not say so: `batch` for the
            `SegmentBatch`, `data` for something with the attributes of PyG's `Data`, or a mapping from the name of each
            argument to a field (`x`, `edge_index`, `batch`, `opcodes`, a name in `node_data` or `edge_data`) or to a
            function of the `ExpandedBatch`.
        pad_to: pad nodes and edges of what is encoded to multiples of so many, so that `torch.compile` sees few shapes.
        push_momentum: m of an exponential moving average of rows: a fresh embedding h makes m x + (1 - m) h of the
            row x, instead of taking its place; a segment without a row gets h. Needs an `EmbeddingTable`. Rows of a
            frozen encoder are exact whatever it is.
        debias: take from predictions what the error of the difference estimate adds to those of a head that is not
            linear, to second order (delta method): half the second differences of the head along vectors whose squares
            add up to the estimated covariance (`gst.method.regression.deviations`). Value and gradient of a quadratic
            head are then without bias; a step calls the head 1 + 2 S times, and predictions scatter more. For heads
            without dropout; needs `estimate="difference"`, a table, uniform draws and num_fresh >= 2.
        histories: states after layers of the encoder of nodes next to cut edges, so that messages cross the cut
            (GNNAutoScale). For graphs cut with `halo=1`, a `torch.nn.Module` as encoder, and training without
            `freeze_encoder`.
        seed: of the draws of segments; with the number of the step it decides them.
    """

    def __init__(
        self,
        encoder: Callable[..., Tensor],
        head: Callable[[Tensor], Tensor],
        pooling: Pooling | Callable[..., Any] = "mean",
        num_fresh: int = 1,
        keep_probability: float = 1.0,
        table: EmbeddingTable | ShardedTable | None = None,
        omit_rest: bool = False,
        max_rows: int = 1 << 18,
        seed: int = 0,
        refresh: Refresh = "uniform",
        estimate: Estimate = "auto",
        inputs: Inputs | None = None,
        pad_to: int | None = None,
        push_momentum: float = 0.0,
        debias: bool = False,
        histories: LayerHistories | None = None,
    ) -> None:
        super().__init__()
        pooling = pooling_name(pooling)
        if num_fresh < 1:
            raise ValueError(f"num_fresh is {num_fresh}; a step needs at least one fresh segment per graph")
        if pad_to is not None and pad_to < 1:
            raise ValueError(f"pad_to is {pad_to}; it counts nodes, from 1; leave it out for no padding")
        if not 0.0 <= keep_probability <= 1.0:
            raise ValueError(f"keep_probability is {keep_probability}; it is a probability, from 0 to 1")
        if omit_rest and table is not None:
            raise ValueError("omit_rest leaves out what the table would give; use one of the two")
        if refresh == "drift" and (table is None or not table.track_drift):
            raise ValueError("refresh='drift' needs table=EmbeddingTable(..., track_drift=True), which learns it")
        if refresh not in get_args(Refresh):
            raise ValueError(f"refresh is {refresh!r}; use one of {', '.join(get_args(Refresh))}")
        if refresh == "age" and table is None:
            raise ValueError("refresh='age' goes by the ages of rows of a table; add table=EmbeddingTable(...)")
        if refresh in REFRESH_BY_ROWS and not isinstance(table, EmbeddingTable):
            raise ValueError(f"refresh={refresh!r} looks at rows of a table; add table=EmbeddingTable(...)")
        if not 0.0 <= push_momentum < 1.0:
            raise ValueError(f"push_momentum is {push_momentum}; it is the share that a row keeps, from 0 to below 1")
        if push_momentum and not isinstance(table, EmbeddingTable):
            raise ValueError(f"push_momentum is {push_momentum}, of rows of a table; add table=EmbeddingTable(...)")
        if estimate not in get_args(Estimate):
            raise ValueError(f"estimate is {estimate!r}; use one of {', '.join(get_args(Estimate))}")
        estimate = resolved(estimate, table is not None, keep_probability, pooling)
        if debias and (estimate, refresh, table is None) != ("difference", "uniform", False):
            raise ValueError("debias needs a table, estimate='difference' and refresh='uniform'; leave it out")
        if debias and num_fresh < 2:
            raise ValueError(f"debias needs num_fresh of at least 2, to estimate a variance; it is {num_fresh}")
        self._uses_all_rows = estimate in ("difference", "regression", "composite")
        if self._uses_all_rows and keep_probability < 1:
            raise ValueError(f"keep_probability is {keep_probability}; estimate={estimate!r} uses all rows: leave it 1")
        if self._uses_all_rows and pooling == "max":
            raise ValueError(f"estimate={estimate!r} corrects a sum, and pooling='max' is none; use 'sum' or 'mean'")
        self.encoder, self.head, self.table, self.refresh = encoder, head, table, refresh
        self.estimate, self.push_momentum = estimate, push_momentum
        self._ages = DrawnAges()
        self._regression = RowRegression() if estimate in ("regression", "composite") else None
        self.pooling, self.num_fresh, self.keep_probability = pooling, num_fresh, keep_probability
        self.omit_rest, self.max_rows = omit_rest, max_rows
        self.encoder_frozen = False
        self.step = 0
        self.seed = seed
        self.debias = debias
        self._deviations: list[Tensor] = []  # of the step under way
        self._slot: int | None = None  # of the table, which several estimators may share
        self._frozen_version: tuple[Any, ...] | None = None
        self.pad_to = pad_to
        self._call, self._inputs = call_of(encoder, inputs), inputs
        self._copies: torch.Stream | None = None
        self.register_load_state_dict_post_hook(_after_loading)
        self.histories = histories
        if histories is not None:
            histories.attach(encoder)
        warn_about(encoder, inputs)

    @torch.compiler.disable(recursive=False)  # torch.compile(model) compiles the encoder and the head
    def forward(
        self,
        graphs: Sequence[SegmentedGraph] | None = None,
        configs: Int64[Tensor, "graphs configs"] | None = None,
        prefetched: PrefetchedStep | None = None,
    ) -> Tensor:
        """Predictions for `configs` of each graph: -1 is padding, and its prediction is meaningless; None = all
        configurations of each graph, padded to the same number. In training mode this is one step of the method and
        writes the table; in evaluation mode `exact`.

        Args:
            prefetched: a loaded step, `load(draw(graphs, configs))`, instead of graphs and configs.
        """
        if prefetched is None:
            assert graphs is not None, "give graphs, or what load() made of them"
            if not self.training:
                return self.exact(graphs, configs)
        prefetched = self._begin(graphs, configs, prefetched)
        if prefetched.batch is None:
            return self._predict(self._embed_frozen(prefetched))
        pending = self._request(prefetched)
        embedded = self._encode_batch(prefetched.batch)  # while rows of other processes travel
        self._check_width(embedded.shape[-1])
        pooled = self._estimate(prefetched.draw, embedded, pending)
        prediction, deviations = self._predict(pooled), self._deviations
        if not deviations:
            return prediction
        self._deviations = []
        return prediction - sum(  # g(s) - g''(s) E e^2 / 2, by second differences
            (self._predict(pooled + each) + self._predict(pooled - each)) / 2 - prediction for each in deviations
        )

    @torch.compiler.disable
    def _begin(
        self, graphs: Sequence[SegmentedGraph] | None, configs: Tensor | None, prefetched: PrefetchedStep | None
    ) -> PrefetchedStep:
        """A step whose segments are there."""
        if prefetched is None:
            assert graphs is not None
            draw = self.draw(graphs, configs)
            assert draw is not None, "only what lies ahead may be undecided"
            prefetched = self.load(draw)
        self.step = prefetched.draw.number
        if prefetched.arrived is not None and prefetched.batch is not None:
            stream = torch.accelerator.current_stream(self._like().device)
            stream.wait_event(prefetched.arrived)
            prefetched.batch.record_stream(stream)
        return prefetched

    def draw(
        self,
        graphs: Sequence[SegmentedGraph],
        configs: Int64[Tensor, "graphs configs"] | None = None,
        ahead: int = 0,
        peers: Peers | None = None,
    ) -> Draw | None:
        """Draw the segments of the next step, or of the one `ahead` steps after it. None if the draw depends on table
        writes not yet made (`refresh` by rows): a training resumed between the two steps would draw otherwise. Where
        `peers` share the step, all of it is drawn, and this process's part returned."""
        by_rows = self.refresh in REFRESH_BY_ROWS and not self.encoder_frozen
        if by_rows and ahead:
            return None
        if peers is not None:
            graphs, configs = peers.graphs, peers.configs
        catalogue, configs = self._catalogue(graphs), self._with_references(graphs, configs)
        number, keys = self.step + 1 + ahead, None
        scores = self._scores(catalogue, configs) if by_rows else None
        if self.refresh == "age" and not self.encoder_frozen:
            keys = self._table_keys(catalogue, configs)
            scores = self._ages.at(keys, number).double().mean(1) * catalogue.node_counts
        draw = draw_segments(
            catalogue, configs, number, self.seed, self.num_fresh, self.keep_probability, scores, self.estimate,
            rank=rank() if peers is None else 0, strata_by=self._strata_by(catalogue),
        )  # fmt: skip
        if keys is not None:
            self._ages.record(keys[draw.fresh], number)
        return replace(draw, keys=keys) if peers is None else draw.part_of(peers)

    def load(self, draw: Draw) -> PrefetchedStep:
        """Read the fresh segments of a draw. It touches nothing that a step changes, so a thread may do it ahead; on
        its way to an accelerator the batch is pinned and copied on a stream of its own."""
        traffic = self._traffic(draw)
        if self.encoder_frozen:
            return PrefetchedStep(draw, None, traffic)
        like = self._like()
        batch = self._batch(draw.catalogue, draw.fresh.nonzero().squeeze(1), draw.configs)
        if like.device.type in ("cpu", "mps", "meta"):  # which have no streams
            return PrefetchedStep(draw, batch.to(like.device, like.dtype), traffic)
        here = self._copies = self._copies or torch.Stream(like.device)
        # The same stream by an object of its own: PyTorch notes on the object what to go back to, for one thread.
        own = torch.Stream(stream_id=here.stream_id, device_index=here.device_index, device_type=here.device_type)
        with own as copies:
            copied = batch.pinned().to(like.device, like.dtype)
            return PrefetchedStep(draw, copied, traffic, copies.record_event())

    @torch.compiler.disable
    def exact(self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"] | None = None) -> Tensor:
        """Predictions from all segments, encoded now, in memory bounded by `max_rows`. Without gradient, encoder
        and head in evaluation mode."""
        with torch.no_grad(), evaluating(self.encoder, self.head):
            return self._predict(self.embed(graphs, self._with_references(graphs, configs)))

    def scores(
        self, graph: SegmentedGraph, configs: Int64[Tensor, " configs"] | None = None, configs_at_once: int = 64
    ) -> Tensor:
        """What `exact` says of `configs` of one graph (all if not given), so many of them at a time."""
        chosen = torch.arange(graph.num_configs) if configs is None else configs
        return torch.cat([self.exact([graph], part[None])[0] for part in chosen.split(configs_at_once)])

    def exact_over_cuts(
        self, graphs: Sequence[Graph], configs: Int64[Tensor, "graphs configs"] | None = None, cuts: int = 4,
        max_nodes: int = 1000, method: str = "metis", halo: int = 0, seed: int = 0,
    ) -> Tensor:  # fmt: skip
        """The mean of `exact` over several cuts of each graph, by the partitioner's seeds `seed`, `seed` + 1, ...: an
        edge that one cut drops is inside a segment of others, so that a prediction depends less on the cut.

        Args:
            graphs: not cut.
            cuts: how many, each as costly as `exact` and `gst.segment`.
            max_nodes, method, halo: as in `gst.segment`, and best those of training. A method without a random part
                (`contiguous`) cuts alike each time.

        Examples:
            >>> import numpy as np
            >>> edges = np.array([[0, 1, 2], [1, 2, 3]])
            >>> graph = Graph(np.arange(4, dtype=np.float32)[:, None], edges)
            >>> model = GraphSegmentTraining(lambda x, edge_index: x, nn.Identity(), "sum")
            >>> model.exact_over_cuts([graph], cuts=3, max_nodes=2).tolist()
            [[[6.0]]]
        """
        if cuts < 1:
            raise ValueError(f"cuts is {cuts}; a prediction needs at least one cut of each graph")
        predictions = [
            self.exact([segment(graph, max_nodes, method, halo, seed + cut) for graph in graphs], configs)
            for cut in range(cuts)
        ]
        return torch.stack(predictions).mean(0)

    def embed(
        self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"] | None = None
    ) -> Float[Tensor, "graphs configs channels"]:
        """The pooled embeddings of `configs`, from all segments, encoded now. `exact` puts those of reference
        configurations before them if the head wants any. Without gradient, and with the encoder in evaluation mode."""
        catalogue, checked = self._catalogue(graphs), _checked_configs(graphs, configs)
        pool = self._pool(catalogue)
        everything = torch.arange(len(catalogue))
        with evaluating(self.encoder), nullcontext() if self.histories is None else self.histories.apart():
            for _ in () if self.histories is None else self.histories.channels:  # what the next layer hears is there
                for chunk in catalogue.chunks(everything, checked.shape[1], self.max_rows):
                    self._encode(catalogue, chunk, checked)
            self._add_encoded(pool, catalogue, everything, checked, torch.ones(len(catalogue), checked.shape[1]))
        return pool.result()

    def channels(self, graph: SegmentedGraph) -> int:
        """Width of the embedding of a segment: one is encoded, under the first configuration."""
        catalogue = self._catalogue([graph])
        one = torch.argmax(catalogue.configurable.long())[None]  # the first that has configurable nodes, if any has
        with evaluating(self.encoder), nullcontext() if self.histories is None else self.histories.apart():
            return int(self._encode(catalogue, one, torch.zeros(1, 1, dtype=torch.int64)).shape[-1])

    def register(self, graphs: Iterable[SegmentedGraph]) -> None:
        """Allocate table keys for all segments of `graphs` now rather than at first use, so that processes that share
        a table have the same keys."""
        if self.table is not None:
            for graph in graphs:
                self._table_keys(self._catalogue([graph]), torch.zeros(1, 1, dtype=torch.int64))

    def freeze_encoder(self) -> None:
        """Finetuning (+F): stop training the encoder and forget its rows, which come from older weights. From now on,
        with a table, every segment is encoded once, when it is first needed, and its row is exact; if the weights of
        the encoder change all the same (`load_state_dict`), all rows are computed anew. An optimizer may go on: without
        gradients it leaves the encoder alone, whatever momentum it has. A `DistributedDataParallel` around the model
        has to be made anew.

        Raises:
            ValueError: there are layer histories: embeddings would be exact only once all of these were.
        """
        if self.histories is not None:
            raise ValueError("embeddings with layer histories are never exact; train without freeze_encoder()")
        self._freeze()
        self._forget_rows()

    def _freeze(self) -> None:
        self.encoder_frozen = True
        for parameter in self.encoder.parameters() if isinstance(self.encoder, nn.Module) else ():
            if not nn.parameter.is_lazy(parameter):
                parameter.requires_grad_(False)
                parameter.grad = None  # else an optimizer would go on by it

    def _forget_rows(self) -> None:
        """Another estimator may share the table; then this one takes new keys, and leaves its old rows unread."""
        if self.table is not None and self.table.ranges.num_slots > 1:
            self._slot = self.table.ranges.slot(self)
        elif self.table is not None:
            self.table.clear()
        self._frozen_version = version(self.encoder)

    # The estimate --------------------------------------------------------------------------------------------------

    @torch.compiler.disable
    def _estimate(self, draw: Draw, embedded: Tensor, pending: PendingRows | None) -> Tensor:
        """The pooled embeddings of the graphs, of which `embedded` are the fresh segments."""
        catalogue, fresh = draw.catalogue, draw.fresh
        keys = self._table_keys(catalogue, draw.configs) if draw.keys is None else draw.keys
        is_known = self._known(keys) if pending is None else pending.is_known()
        chosen = fresh.nonzero().squeeze(1)
        if self._uses_all_rows:
            return self._corrected(draw, chosen, embedded, keys, is_known, pending)
        weights = dropout_weights(fresh, draw.inclusion, is_known, draw.kept, self.keep_probability)
        pool = self._pool(catalogue)
        if self.refresh != "uniform":
            embedded = scale_gradient(embedded, self._gradient_weights(draw, is_known)[chosen])
        self._add(pool, catalogue, chosen, embedded, weights.fresh[chosen])
        used = (weights.stale > 0).any(1).nonzero().squeeze(1)
        if self.table is None:
            self._add_encoded(pool, catalogue, used, draw.configs, weights.stale)
        elif pending is not None:
            self._add(pool, catalogue, used, pending.rows(used, self._like()), weights.stale[used])
            pushed = pending.push_fresh(embedded, chosen, self.step, partial(report, catalogue))
            require_finite_gradients(embedded, self.encoder, pushed.require)
        else:
            self._add_pulled(pool, catalogue, used, keys, weights.stale)
            self._stage(catalogue, chosen, keys, embedded)
        return pool.result()

    def _corrected(
        self, draw: Draw, chosen: Tensor, embedded: Tensor, keys: Tensor, is_known: Known, pending: PendingRows | None
    ) -> Tensor:
        """The estimate of `gst.method.regression`: rows of all segments, corrected by the fresh ones."""
        catalogue, pool, device = draw.catalogue, self._pool(draw.catalogue), embedded.device
        weights = (draw.fresh / draw.inclusion)[:, None].expand(is_known.shape)
        if self.table is None and not self.omit_rest:  # rows of now: the value is exact, the gradient that of the fresh
            ones = torch.ones_like(weights)
            self._add(pool, catalogue, chosen, scale_gradient(embedded, weights[chosen]), ones[chosen])
            self._add_encoded(pool, catalogue, (~draw.fresh).nonzero().squeeze(1), draw.configs, ones)
            return pool.result()
        if self.table is None:
            self._add(pool, catalogue, chosen, embedded, weights[chosen])
            return pool.result()
        value = weights
        if self.estimate == "composite":
            assert self._regression is not None
            value = composite_weights(catalogue.graph, draw.fresh, weights, is_known, self._regression.common)
            embedded = scale_gradient(embedded, (weights / value)[chosen])
        self._add(pool, catalogue, chosen, embedded, value[chosen])
        nodes_of_graph = catalogue.graph_node_counts[catalogue.graph]
        size, per_node = readout_shares(catalogue.node_counts, nodes_of_graph, self.pooling)
        scale = per_node.to(embedded.detach(), non_blocking=True)[:, None, None]
        residual = ((1 - value[:, 0]) * size).to(embedded.detach(), non_blocking=True)
        graphs = catalogue.graph.to(device, non_blocking=True)
        stale = StaleSum(graphs, residual, len(catalogue.graphs), keys.shape[1], embedded.shape[-1])
        fresh_rows, fresh_filled = [], []
        for chunk in torch.arange(len(catalogue)).split(max(1, PULL_ROWS // keys.shape[1])):
            rows = self._pulled(keys[chunk]) if pending is None else pending.rows(chunk, self._like())
            here = chunk.to(device, non_blocking=True)
            fresh_here = draw.fresh[chunk].nonzero().squeeze(1).to(device, non_blocking=True)
            scaled = rows * scale[here]
            filled = stale.add(here, scaled, is_known[chunk].to(device, non_blocking=True))
            fresh_filled.append(filled[fresh_here])
            fresh_rows.append(scaled[fresh_here])
        at, result = chosen.to(device, non_blocking=True), pool.result() + stale.result(self._regression)
        if self.debias:
            graph = graphs[at]
            has_row = is_known[chosen].any(1).to(device, non_blocking=True)[:, None, None]
            rows = torch.where(has_row, torch.cat(fresh_filled), stale.mean_rows()[graph][:, None])
            residuals = (embedded * scale[at] - rows) * size[chosen].to(rows, non_blocking=True)[:, None, None]
            counts = torch.tensor([each.num_segments for each in catalogue.graphs])
            self._deviations = deviations(residuals, catalogue.graph[chosen], counts)
        if self._regression is not None:
            rows, now = torch.cat(fresh_rows), embedded.detach() * scale[at]
            known = is_known[chosen].to(device, non_blocking=True)
            places = tuple(each.to(device, non_blocking=True) for each in is_known[chosen].nonzero(as_tuple=True))
            pairs = moments(rows[places], now[places])
            products = pairs.new_zeros(0)
            if self.estimate == "composite":
                residuals = (now - self._regression(rows)) * size[chosen].to(now, non_blocking=True)[:, None, None]
                graph = graphs[at]
                products = residual_products(residuals, known, graph, len(catalogue.graphs))
            sums = torch.cat([pairs.flatten(), products])
            sums = sums if pending is None else pending.summed(sums)
            self._regression.observe(sums[: pairs.numel()].view_as(pairs), sums[pairs.numel() :])
        if pending is None:
            self._stage(catalogue, chosen, keys, embedded)
        else:
            pushed = pending.push_fresh(embedded, chosen, self.step, partial(report, catalogue))
            require_finite_gradients(embedded, self.encoder, pushed.require)
        return result

    def _strata_by(self, catalogue: Catalogue) -> Int64[Tensor, " segments"] | None:
        if self.refresh == "size":
            return catalogue.node_counts
        return catalogue.first_nodes if self.refresh == "order" else None

    def _scores(self, catalogue: Catalogue, configs: Tensor) -> Float[Tensor, " segments"]:
        """What segments are drawn in proportion to: how far their rows are expected to be from the truth as the readout
        weighs them, or their `_gradient_norms`."""
        assert isinstance(self.table, EmbeddingTable)
        keys = self._table_keys(catalogue, configs)
        if self.refresh == "gradient":
            return self._gradient_norms(catalogue, keys)
        scores = self.table.expected_drift(keys.clamp(min=0).flatten()).view_as(keys)
        scores = (scores * (keys >= 0)).mean(1)
        return scores * catalogue.node_counts if self.pooling == "mean" else scores

    def _gradient_norms(self, catalogue: Catalogue, keys: Tensor) -> Float[Tensor, " segments"]:
        """Norm of the gradient that each segment gives to a last linear layer of the encoder, up to a factor common to
        its graph: for h_j = a_j W, dL/dW = a_j' g with g = dL/dh_j, of norm |a_j| |g|, and g is the same for all
        segments of a sum (times their nodes, of a mean). It bounds the gradient of the layers before (Katharopoulos and
        Fleuret, Not all samples are created equal, ICML 2018, section 3.2). The row of the table stands for a_j; a
        segment without a row has the mean norm of its graph, or 1 if its graph has none."""
        assert isinstance(self.table, EmbeddingTable)
        chunks = keys.clamp(min=0).flatten().split(PULL_ROWS)
        norms = torch.cat([self.table.pull(chunk)[0].double().norm(dim=1).cpu() for chunk in chunks]).view_as(keys)
        is_known = self._known(keys)
        number = is_known.sum(1)
        score = (norms * is_known).sum(1) / number.clamp(min=1)
        if self.pooling == "mean":
            score = score * catalogue.node_counts
        has_row, graph = number > 0, catalogue.graph
        sums = torch.zeros(len(catalogue.graphs), 2, dtype=torch.float64)
        sums.index_add_(0, graph, torch.stack([score * has_row, has_row.double()], 1))
        mean = torch.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1].clamp(min=1), 1.0)
        return torch.where(has_row, score, mean[graph])

    def _gradient_weights(self, draw: Draw, is_known: Known) -> Float[Tensor, "segments configs"]:
        """What makes the expected gradient that of uniform draws: (p S / J + 1 - p) / q over p + (1 - p) / q for known
        segments; unknown ones weigh 1 / q already."""
        p = self.keep_probability
        counts = torch.tensor([graph.num_segments for graph in draw.catalogue.graphs], dtype=torch.float64)
        counts = counts[draw.catalogue.graph]
        uniform = (self.num_fresh / counts).clamp(max=1)
        ratio = (p * uniform + 1 - p) / (p * draw.inclusion + 1 - p)
        return torch.where(is_known, ratio[:, None], torch.ones_like(ratio[:, None]))

    def _known(self, keys: Int64[Tensor, "segments configs"]) -> Known:
        """For which segments something stands in when they are stale."""
        if self.table is None:
            return torch.full(keys.shape, not self.omit_rest)
        if not isinstance(self.table, EmbeddingTable):
            raise ValueError(
                "a ShardedTable needs the graphs of all processes in every step: draw(graphs, configs, peers=...), "
                "then load; or give each process an EmbeddingTable of its own"
            )
        return (keys >= 0) & self.table.is_known(keys.clamp(min=0).flatten()).cpu().view_as(keys)

    @torch.compiler.disable
    def _embed_frozen(self, prefetched: PrefetchedStep) -> Tensor:
        """Exact, so the encoder is in evaluation mode: what it drops out would be dropped for good."""
        check_reducer()
        if self._frozen_version == ():
            self._frozen_version = version(self.encoder)
        elif self._frozen_version != version(self.encoder):
            self._freeze()  # lazy layers may have taken their widths since
            self._forget_rows()
        with evaluating(self.encoder):
            return self._embed_from_table(prefetched)

    def _embed_from_table(self, prefetched: PrefetchedStep) -> Tensor:
        catalogue, configs = prefetched.draw.catalogue, prefetched.draw.configs
        everything = torch.arange(len(catalogue))
        weights = torch.ones(len(catalogue), configs.shape[1])
        pool = self._pool(catalogue)
        if self.table is None:
            self._add_encoded(pool, catalogue, everything, configs, weights)
            return pool.result()
        keys = self._table_keys(catalogue, configs)
        pending = self._request(prefetched)
        is_known = self._known(keys) if pending is None else pending.is_known()
        missing = (~is_known & (keys >= 0)).any(1)
        if pending is None:
            self._add_pulled(pool, catalogue, everything[~missing], keys, weights)
        else:
            rows = pending.rows(everything[~missing], self._like())
            self._add(pool, catalogue, everything[~missing], rows, weights[~missing])
        made: list[Tensor] = []
        for chunk in catalogue.chunks(everything[missing], configs.shape[1], self.max_rows):
            embedded = self._encode(catalogue, chunk, configs)
            self._add(pool, catalogue, chunk, embedded, weights[chunk])
            if pending is None:
                # After the others were pulled: a full table may evict them.
                self._stage(catalogue, chunk, keys, embedded)
            else:
                made.append(embedded)
        if pending is not None:
            empty = torch.zeros(0, configs.shape[1], pending.channels, device=self._like().device)
            unknown = everything[missing]
            pending.push_unknown(torch.cat(made or [empty]), unknown, self.step, partial(report, catalogue))
        return pool.result()

    # Pooling, a bounded number of segments at a time -----------------------------------------------------------------

    def _pool(self, catalogue: Catalogue) -> GraphPool:
        return GraphPool(catalogue.graph_node_counts.to(self._like().device, non_blocking=True), self.pooling)

    def _add(self, pool: GraphPool, catalogue: Catalogue, segments: Tensor, embedded: Tensor, weights: Tensor) -> None:
        device = embedded.device
        counts = catalogue.node_counts[segments].to(device, non_blocking=True)
        graphs = catalogue.graph[segments].to(device, non_blocking=True)
        pool.add(embedded, weights.to(embedded, non_blocking=True), counts, graphs)

    def _add_encoded(
        self, pool: GraphPool, catalogue: Catalogue, segments: Tensor, configs: Tensor, weights: Tensor
    ) -> None:
        for chunk in catalogue.chunks(segments, configs.shape[1], self.max_rows):
            self._add(pool, catalogue, chunk, self._encode(catalogue, chunk, configs), weights[chunk])

    def _add_pulled(
        self, pool: GraphPool, catalogue: Catalogue, segments: Tensor, keys: Tensor, weights: Tensor
    ) -> None:
        for chunk in segments.split(max(1, PULL_ROWS // keys.shape[1])):
            self._add(pool, catalogue, chunk, self._pulled(keys[chunk]), weights[chunk])

    def _pulled(self, keys: Int64[Tensor, "chunk configs"]) -> Float[Tensor, "chunk configs channels"]:
        assert isinstance(self.table, EmbeddingTable)
        like = self._like()
        ahead = like.device.type != "cpu"  # a host may not read what is still on its way to it
        summed_as = torch.promote_types(like.dtype, torch.float32)  # half precision would lose what is added to a sum
        rows = self.table.pull(keys.clamp(min=0).flatten())[0].to(like.device, summed_as, non_blocking=ahead)
        return rows.view(*keys.shape, rows.shape[1])

    # The encoder and the head --------------------------------------------------------------------------------------

    @torch.no_grad()
    def _encode(
        self, catalogue: Catalogue, segments: Int64[Tensor, " chosen"], configs: Int64[Tensor, "graphs configs"]
    ) -> Float[Tensor, "chosen configs channels"]:
        """Embeddings without gradient. Configuration-independent segments are encoded once and broadcast."""
        varied = catalogue.configurable[segments] | (configs.shape[1] == 1)
        pieces = [
            self._encode_under(catalogue, segments[chosen], configs[:, :width]).expand(-1, configs.shape[1], -1)
            for chosen, width in ((varied, configs.shape[1]), (~varied, 1))
            if chosen.any()
        ]
        together = torch.cat(pieces)
        order = torch.cat([varied.nonzero(), (~varied).nonzero()]).squeeze(1)
        return together[torch.argsort(order).to(together.device, non_blocking=True)]

    def _encode_under(self, catalogue: Catalogue, segments: Tensor, configs: Tensor) -> Tensor:
        """A single segment too large for `max_rows` meets its configurations a few at a time."""
        width = max(1, self.max_rows // int(catalogue.rows[segments].sum()))
        parts = configs.split(width, dim=1)
        return torch.cat([self._encode_batch(self._assemble(catalogue, segments, part)) for part in parts], dim=1)

    def _assemble(self, catalogue: Catalogue, segments: Tensor, configs: Tensor) -> SegmentBatch:
        like = self._like()
        return self._batch(catalogue, segments, configs).to(like.device, like.dtype)

    def _catalogue(self, graphs: Sequence[SegmentedGraph]) -> Catalogue:
        """With layer histories, a segment depends on configurable nodes of others."""
        return Catalogue.of(graphs, all_configurable=self.histories is not None)

    def _batch(self, catalogue: Catalogue, segments: Tensor, configs: Tensor) -> SegmentBatch:
        picks = catalogue.picks(segments)
        batch = assemble(catalogue.graphs, picks, configs)
        if self.histories is not None:
            batch = replace(batch, history_keys=self.histories.keys(catalogue.graphs, picks, configs))
        return batch.padded(self.pad_to) if self.pad_to else batch

    @torch.compiler.disable(recursive=False)
    def _encode_batch(self, batch: SegmentBatch) -> Float[Tensor, "segments configs channels"]:
        writing = nullcontext() if self.histories is None else self.histories.during(batch, self.encoder, self.step)
        with writing:
            embedded = embed_segments(self.encoder, batch, self._call, self.pooling)
        return embedded[:-1] if self.pad_to else embedded

    def _with_references(self, graphs: Sequence[SegmentedGraph], configs: Tensor | None) -> Tensor:
        """What is asked for, after what the head compares it with, if it does."""
        references = getattr(self.head, "references", 0)
        checked = _checked_configs(graphs, configs)
        return with_references(graphs, checked, references) if references else checked

    @torch.compiler.disable(recursive=False)
    def _predict(self, embedded: Tensor) -> Tensor:
        """The head sees what bf16 would blur: differences between configurations of one graph. Pooled embeddings
        are of float32 at least; a head in half precision, as after `.half()`, gets them in its own."""
        if isinstance(self.head, nn.Module):
            dtype = _weights_of(self.head, embedded).dtype
            if embedded.dtype == torch.promote_types(dtype, torch.float32):
                embedded = embedded.to(dtype)
        with torch.autocast(embedded.device.type, enabled=False):
            try:
                return self.head(embedded)
            except RuntimeError as error:
                if "shapes cannot be multiplied" not in str(error):
                    raise
                raise ValueError(f"the head refuses embeddings of {embedded.shape[-1]} numbers: {error}") from error

    def _check_width(self, width: int) -> None:
        """Refuse a table with rows of another width than the embeddings.

        Raises:
            ValueError: it is one.
        """
        if self.table is not None and (rows := self.table.channels) != width:
            made = f"EmbeddingTable({self.table.num_keys}, {width})"
            made = f"ShardedTable({made})" if isinstance(self.table, ShardedTable) else made
            raise ValueError(f"the table holds rows of {rows} numbers, and the encoder returns {width}: make it {made}")

    def _like(self) -> Tensor:
        """Something on the device and in the dtype of the model."""
        return _weights_of(self, torch.empty(0))

    # The table -----------------------------------------------------------------------------------------------------

    def _traffic(self, draw: Draw) -> Traffic | None:
        """What all processes ask of a table they share, and write: once the encoder is frozen they need all rows."""
        if draw.peers is None or draw.whole is None or self.table is None:
            return None
        whole, registered = draw.whole, self.table.ranges.num_keys
        keys = self._table_keys(whole.catalogue, whole.configs)
        if self.table.ranges.num_keys != registered:
            raise ValueError("a step holds graphs without keys; register(graphs) on every process before the first")
        every = self.encoder_frozen or self._uses_all_rows
        wanted = torch.ones_like(whole.fresh) if every else ~whole.fresh & whole.kept
        return Traffic.of(draw.peers, keys, whole.catalogue.graph, whole.catalogue.configurable, wanted, whole.fresh)

    @torch.compiler.disable
    def _request(self, prefetched: PrefetchedStep) -> PendingRows | None:
        """Rows of a table that processes share, on their way."""
        if prefetched.traffic is None:
            return None
        assert isinstance(self.table, ShardedTable)
        return prefetched.traffic.request(self.table)

    def _table_keys(
        self, catalogue: Catalogue, configs: Int64[Tensor, "graphs configs"]
    ) -> Int64[Tensor, "segments configs"]:
        """Keys of all segments, for which the table has room from now on; zeros without a table."""
        if self.table is None:
            return torch.zeros(len(catalogue), configs.shape[1], dtype=torch.int64)
        ranges = self.table.ranges
        self._slot = ranges.slot(self, self._slot)
        by_class = self._uses_all_rows and self.histories is None
        keys = table_keys(catalogue, configs, ranges, self._slot, by_class)
        if ranges.num_keys > self.table.num_keys:
            self.table.resize(ranges.num_keys)
        return keys

    def _stage(
        self, catalogue: Catalogue, chosen: Int64[Tensor, " chosen"], keys: Int64[Tensor, "segments configs"],
        embedded: Float[Tensor, "chosen configs channels"],
    ) -> Staged:  # fmt: skip
        """Write the rows of `chosen` segments, unless a gradient turns out not to be finite: a step that `GradScaler`
        skips leaves the table as it was. A key that comes more than once (it stands for all configurations, or its
        graph is here twice) is written once."""
        assert isinstance(self.table, EmbeddingTable)
        flat = keys[chosen].flatten()
        distinct, inverse = flat.unique(return_inverse=True)
        first = torch.full_like(distinct, len(flat)).scatter_reduce(0, inverse, torch.arange(len(flat)), "amin")
        first = first[distinct >= 0].sort().values
        rows = embedded.detach().flatten(0, 1)[first.to(embedded.device, non_blocking=True)]
        if self.push_momentum and not self.encoder_frozen:
            old, _, is_known = self.table.pull(flat[first])
            ahead = rows.device.type != "cpu"
            moved = torch.lerp(rows, old.to(rows, non_blocking=ahead), self.push_momentum)
            rows = torch.where(is_known.to(rows.device, non_blocking=ahead)[:, None], moved, rows)
        warn = partial(report, catalogue, chosen[first // keys.shape[1]], self.step)
        staged = self.table.stage(flat[first], rows, self.step, warn)
        require_finite_gradients(embedded, self.encoder, staged.require)
        return staged

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION, "step": self.step, "seed": self.seed, "encoder_frozen": self.encoder_frozen,
            "slot": self._slot, "regression": None if self._regression is None else self._regression.state_dict(),
        } | ({"ages": self._ages.state_dict()} if self.refresh == "age" else {})  # fmt: skip

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if state.get("version", 1) != STATE_VERSION and self.table is not None:
            raise ValueError(
                f"the checkpoint is of version {state.get('version', 1)}, and rows of a table have other keys in "
                f"version {STATE_VERSION}: train again, or load it into a model without a table"
            )
        self.step, self.seed, self._slot = state["step"], state["seed"], state.get("slot")
        if "ages" in state:
            self._ages.load_state_dict(state["ages"])
        if self._regression is not None and state.get("regression") is not None:
            self._regression.load_state_dict(state["regression"])
        if state["encoder_frozen"]:
            self._freeze()
            self._frozen_version = ()  # set by `_after_loading`, once encoder and table are loaded too

    def __getstate__(self) -> dict[str, Any]:
        """For `copy` and `pickle`: streams stay behind, and rows of a frozen encoder stay exact."""
        version = () if self.encoder_frozen else None
        return self.__dict__ | {"_copies": None, "_frozen_version": version}


def _after_loading(model: GraphSegmentTraining, incompatible: object) -> None:
    """Rows of a frozen encoder are those of the checkpoint, if it was saved frozen; otherwise its rows are stale."""
    if model.encoder_frozen and model._frozen_version == ():
        model._freeze()
        model._frozen_version = version(model.encoder)
    elif model.encoder_frozen:
        model._forget_rows()


def _checked_configs(graphs: Sequence[SegmentedGraph], configs: Tensor | None) -> Tensor:
    if configs is None:
        return _all_configs(graphs)
    if len(configs) != len(graphs):
        raise ValueError(f"configs has {len(configs)} rows for {len(graphs)} graphs; give one row for each")
    for graph, row in zip(graphs, configs, strict=True):
        if int(row.max()) >= graph.num_configs:
            raise ValueError(f"configuration {int(row.max())} of {graph.name!r}, which has {graph.num_configs}")
    return configs.cpu()


def _all_configs(graphs: Sequence[SegmentedGraph]) -> Tensor:
    width = max(graph.num_configs for graph in graphs)
    every = torch.arange(width).repeat(len(graphs), 1)
    return torch.where(every < torch.tensor([[graph.num_configs] for graph in graphs]), every, -1)


def _weights_of(module: nn.Module, otherwise: Tensor) -> Tensor:
    """The first parameter that has a shape and holds floats: quantized weights say nothing of the dtype of inputs."""
    floats = (p for p in module.parameters() if not nn.parameter.is_lazy(p) and p.is_floating_point())
    return next(floats, otherwise)
