"""Graph Segment Training (Cao et al., NeurIPS 2023): learn from whole graphs, backpropagate through parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from gst.graphs.config_classes import config_classes, with_references
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import SegmentBatch, assemble
from gst.method.draws import (
    ALL_ROWS,
    Catalogue,
    Draw,
    DrawnAges,
    Estimate,
    Peers,
    Refresh,
    checked_configs,
    checked_estimate,
    draw_segments,
    dropout_weights,
    scale_gradient,
    uniform_gradient,
)  # fmt: skip
from gst.method.encoding import (
    GraphPool,
    Inputs,
    Pooling,
    apply_head,
    call_of,
    check_reducer,
    embed_segments,
    encode_segments,
    evaluating,
    parameter_of,
    pooling_name,
    rank,
    version,
    warn_about,
)  # fmt: skip
from gst.method.exchange import SharedRows
from gst.method.regression import RowRegression, composite_weights, stale_sum
from gst.method.rows import Known, ModelKeys, OwnRows, PrefetchedStep, StepRows, require_finite_gradients, row_chunks

STATE_VERSION = 3  # of checkpoints: rows of 1 belong to names of graphs, of 2 to numbers of configurations


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
            (`gst.nn.CrossConfigHead`) gets the embeddings of so many reference configurations of each graph first.
        pooling: `sum`, `mean` (over nodes) or `max`.
        num_fresh: S, segments encoded with gradient per graph and step.
        keep_probability: p of Stale Embedding Dropout.
        table: keeps embeddings of segments between steps; a `ShardedTable` where several processes train.
        max_rows: encode at most so many (node, configuration) pairs at once where no gradient is needed, a single
            segment under a single configuration being the least. It bounds the memory of `exact`.
        seed: with the number of the step it decides the draws of segments.
        refresh: draw of the fresh segments: `uniform` (the paper), or `age`, with probabilities proportional to their
            nodes times the steps since they were last fresh (needs a table). Values are weighed by the exact
            probabilities (Horvitz and Thompson 1952), and gradients such that they are on average those of `uniform`.
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

    Raises:
        ValueError: an argument is out of range, or two of them exclude each other.
    """

    def __init__(
        self,
        encoder: Callable[..., Tensor],
        head: Callable[[Tensor], Tensor],
        pooling: Pooling | Callable[..., Any] = "mean",
        num_fresh: int = 1,
        keep_probability: float = 1.0,
        table: EmbeddingTable | ShardedTable | None = None,
        max_rows: int = 1 << 18,
        seed: int = 0,
        refresh: Refresh = "uniform",
        estimate: Estimate = "auto",
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__()
        self.pooling = pooling_name(pooling)
        has_table = table is not None
        self.estimate = checked_estimate(self.pooling, num_fresh, keep_probability, has_table, refresh, estimate)
        self.encoder, self.head, self.table, self.inputs = encoder, head, table, inputs
        self.num_fresh, self.keep_probability, self.max_rows = num_fresh, keep_probability, max_rows
        self.refresh, self.seed, self.step = refresh, seed, 0
        self.encoder_frozen = False
        self._ages = DrawnAges()
        self._regression = RowRegression() if self.estimate in ("regression", "composite") else None
        self._keys = None if table is None else ModelKeys(table, by_class=self.estimate in ALL_ROWS)
        self._rows_type = SharedRows if isinstance(table, ShardedTable) else OwnRows
        self._frozen_version: tuple[Any, ...] | None = None
        self._call = call_of(encoder, inputs)
        self._copies: torch.Stream | None = None
        self.register_load_state_dict_post_hook(_after_loading)
        warn_about(encoder, inputs)

    @torch.compiler.disable(recursive=False)  # torch.compile(model) compiles the encoder and the head
    def forward(
        self,
        graphs: Sequence[SegmentedGraph] | None = None,
        configs: Int64[Tensor, "graphs configs"] | None = None,
        prefetched: PrefetchedStep | None = None,
    ) -> Tensor:
        """Predict for `configs` of each graph: -1 is padding with a meaningless prediction; None stands for all. In
        training mode this is one step of the method and writes the table; in evaluation mode `exact`. A step that is
        read already, `load(draw(graphs, configs))`, may be given as `prefetched` instead."""
        if prefetched is None:
            assert graphs is not None, "give graphs, or the result of load()"
            if not self.training:
                return self.exact(graphs, configs)
        step = self._begin(graphs, configs, prefetched)
        if step.batch is None:
            return apply_head(self.head, self._embed_frozen(step))
        if step.rows is not None:
            step.rows.begin()
        embedded = self._encode_batch(step.batch)  # while rows of other processes travel
        if self._keys is not None:
            self._keys.check_width(embedded.shape[-1])
        return apply_head(self.head, self._estimate(step.draw, embedded, step.rows))

    @torch.compiler.disable
    def _begin(
        self, graphs: Sequence[SegmentedGraph] | None, configs: Tensor | None, prefetched: PrefetchedStep | None
    ) -> PrefetchedStep:
        """Return a step whose segments are read."""
        if prefetched is None:
            assert graphs is not None
            prefetched = self.load(self.draw(graphs, configs))
        self.step = prefetched.draw.number
        if prefetched.arrived is not None and prefetched.batch is not None:
            stream = torch.accelerator.current_stream(self.like().device)
            stream.wait_event(prefetched.arrived)
            prefetched.batch.record_stream(stream)
        return prefetched

    def draw(
        self,
        graphs: Sequence[SegmentedGraph],
        configs: Int64[Tensor, "graphs configs"] | None = None,
        ahead: int = 0,
        peers: Peers | None = None,
    ) -> Draw:
        """Draw the segments of the next step, or of the one `ahead` steps after it; of a shared step this process's."""
        if peers is not None:
            graphs, configs = peers.graphs, peers.configs
        catalogue, configs = Catalogue.of(graphs), self._with_references(graphs, configs)
        number, keys, scores = self.step + 1 + ahead, None, None
        if self.refresh == "age" and not self.encoder_frozen:
            assert self._keys is not None
            keys = self._keys.of(catalogue, configs)
            scores = self._ages.at(keys, number).double().mean(1) * catalogue.node_counts
        draw = draw_segments(
            catalogue, configs, number, self.seed, self.num_fresh, self.keep_probability, scores, self.estimate,
            rank=rank() if peers is None else 0,
        )  # fmt: skip
        if keys is not None:
            self._ages.record(keys[draw.fresh], number)
        return replace(draw, keys=keys) if peers is None else draw.part_of(peers)

    def load(self, draw: Draw) -> PrefetchedStep:
        """Read the fresh segments of a draw; a thread may do it ahead, since it touches nothing that a step changes."""
        rows = self.rows_of(draw)
        if self.encoder_frozen:
            return PrefetchedStep(draw, None, rows)
        like, batch = self.like(), self.fresh_batch(draw)
        if like.device.type in ("cpu", "mps", "meta"):  # which have no streams
            return PrefetchedStep(draw, batch.to(like.device, like.dtype), rows)
        here = self._copies = self._copies or torch.Stream(like.device)
        # The same stream by an object of its own: PyTorch notes on the object what to go back to, for one thread.
        own = torch.Stream(stream_id=here.stream_id, device_index=here.device_index, device_type=here.device_type)
        with own as copies:
            copied = batch.pinned().to(like.device, like.dtype)
            return PrefetchedStep(draw, copied, rows, copies.record_event())

    def rows_of(self, draw: Draw) -> StepRows | None:
        """Return access to the rows of a step; None without a table. A frozen encoder needs all rows."""
        all_rows = self.encoder_frozen or self.estimate in ALL_ROWS
        return None if self._keys is None else self._rows_type(self._keys, draw, self.like, all_rows)

    @torch.compiler.disable
    def exact(self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"] | None = None) -> Tensor:
        """Predict from all segments, encoded now without gradient and in evaluation mode, within `max_rows`."""
        with torch.no_grad(), evaluating(self.encoder, self.head):
            return apply_head(self.head, self.embed(graphs, self._with_references(graphs, configs)))

    def scores(
        self, graph: SegmentedGraph, configs: Int64[Tensor, " configs"] | None = None, configs_at_once: int = 64
    ) -> Tensor:
        """Return `exact` predictions for `configs` of one graph (all if not given): the head takes so many at a time.

        A segment is encoded once for all configurations that are alike on it (`config_classes`).
        """
        chosen = torch.arange(graph.num_configs) if configs is None else configs
        parts = [self._with_references([graph], part[None])[0] for part in chosen.split(configs_at_once)]
        catalogue, together = Catalogue.of([graph]), torch.cat(parts)
        pool, weights = self._pool(catalogue), torch.ones(1, len(together))
        with torch.no_grad(), evaluating(self.encoder, self.head):
            for place, classes in enumerate(config_classes(graph).of(together.numpy())):
                _, first, class_of = np.unique(classes, return_index=True, return_inverse=True)
                segment = torch.tensor([place])
                rows = self._encode(catalogue, segment, together[first][None])
                self._add(pool, catalogue, segment, rows[:, torch.from_numpy(class_of).to(rows.device)], weights)
            lengths = [len(part) for part in parts]
            return torch.cat([apply_head(self.head, part)[0] for part in pool.result().split(lengths, dim=1)])

    def exact_over_cuts(
        self, graphs: Sequence[Graph], configs: Int64[Tensor, "graphs configs"] | None = None, cuts: int = 4,
        max_nodes: int = 1000, method: str = "metis", halo: int = 0, seed: int = 0,
    ) -> Tensor:  # fmt: skip
        """Return the mean of `exact` over `cuts` cuts of each graph, by the partitioner's seeds `seed`, `seed` + 1, ...

        An edge that one cut drops is inside a segment of others, so that a prediction depends less on the cut. Graphs
        are not cut yet; `max_nodes`, `method` and `halo` (`gst.segment`) are best those of training.

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
        """Return the pooled embeddings of `configs`, from all segments, encoded now without gradient."""
        catalogue, checked = Catalogue.of(graphs), checked_configs(graphs, configs)
        pool, everything = self._pool(catalogue), torch.arange(len(catalogue))
        with evaluating(self.encoder):
            self._add_encoded(pool, catalogue, everything, checked, torch.ones(len(catalogue), checked.shape[1]))
        return pool.result()

    def channels(self, graph: SegmentedGraph) -> int:
        """Return the width of the embedding of a segment: one is encoded, under the first configuration."""
        catalogue = Catalogue.of([graph])
        one = torch.argmax(catalogue.configurable.long())[None]  # the first that has configurable nodes, if any has
        with evaluating(self.encoder):
            return int(self._encode(catalogue, one, torch.zeros(1, 1, dtype=torch.int64)).shape[-1])

    def register(self, graphs: Iterable[SegmentedGraph]) -> None:
        """Allocate the table keys of all `graphs` now: processes that share a table need the same keys."""
        if self._keys is not None:
            for graph in graphs:
                self._keys.of(Catalogue.of([graph]), torch.zeros(1, 1, dtype=torch.int64))

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
        for parameter in self.encoder.parameters() if isinstance(self.encoder, nn.Module) else ():
            if not nn.parameter.is_lazy(parameter):
                parameter.requires_grad_(False)
                parameter.grad = None  # else an optimizer would go on by it

    def _forget_rows(self) -> None:
        if self._keys is not None:
            self._keys.forget()
        self._frozen_version = version(self.encoder)

    # The estimate --------------------------------------------------------------------------------------------------

    @torch.compiler.disable
    def _estimate(self, draw: Draw, embedded: Tensor, rows: StepRows | None) -> Tensor:
        """Return the pooled embeddings of the graphs; `embedded` are the fresh segments."""
        catalogue, pool, chosen = draw.catalogue, self._pool(draw.catalogue), draw.fresh.nonzero().squeeze(1)
        if self.estimate in ALL_ROWS and rows is not None:
            return self._corrected(draw, chosen, embedded, rows)
        if self.estimate in ALL_ROWS:  # rows of now: the value is exact, the gradient that of the fresh
            inverse = (1 / draw.inclusion)[:, None].expand(-1, draw.configs.shape[1])
            embedded, ones = scale_gradient(embedded, inverse[chosen]), torch.ones_like(inverse)
            self._add(pool, catalogue, chosen, embedded, ones[chosen])
            self._add_encoded(pool, catalogue, (~draw.fresh).nonzero().squeeze(1), draw.configs, ones)
            return pool.result()
        is_known = self.is_known(draw, rows)
        weights = dropout_weights(draw.fresh, draw.inclusion, is_known, draw.kept, self.keep_probability)
        if self.refresh != "uniform":
            factors = uniform_gradient(draw, is_known, self.num_fresh, self.keep_probability)
            embedded = scale_gradient(embedded, factors[chosen])
        self._add(pool, catalogue, chosen, embedded, weights.fresh[chosen])
        used = (weights.stale > 0).any(1).nonzero().squeeze(1)
        if rows is None:
            self._add_encoded(pool, catalogue, used, draw.configs, weights.stale)
        else:
            self.add_rows(pool, catalogue, used, rows, weights.stale)
            require_finite_gradients(embedded, self.encoder, rows.push(embedded, chosen).require)
        return pool.result()

    def _corrected(self, draw: Draw, chosen: Tensor, embedded: Tensor, rows: StepRows) -> Tensor:
        """Return the estimate of `gst.method.regression`: rows of all segments, corrected by the fresh ones."""
        is_known, catalogue, pool = rows.is_known(), draw.catalogue, self._pool(draw.catalogue)
        value = weights = (draw.fresh / draw.inclusion)[:, None].expand(is_known.shape)
        if self.estimate == "composite":
            assert self._regression is not None
            value = composite_weights(catalogue.graph, draw.fresh, weights, is_known, self._regression.common)
            embedded = scale_gradient(embedded, (weights / value)[chosen])
        self._add(pool, catalogue, chosen, embedded, value[chosen])
        stale, fresh_rows = stale_sum(draw, value[:, 0], rows, is_known, self.pooling, embedded.detach())
        result = pool.result() + stale.result(self._regression)
        if self._regression is not None:
            with_products = self.estimate == "composite"
            self._regression.learn(draw, fresh_rows, embedded, is_known, self.pooling, rows.summed, with_products)
        require_finite_gradients(embedded, self.encoder, rows.push(embedded, chosen).require)
        return result

    def is_known(self, draw: Draw, rows: StepRows | None) -> Known:
        """Mark the pairs of a segment and a configuration that can be stale: without a table, all or none."""
        if rows is not None:
            return rows.is_known()
        return torch.full((len(draw.catalogue), draw.configs.shape[1]), self.estimate != "fresh")

    @torch.compiler.disable
    def _embed_frozen(self, step: PrefetchedStep) -> Tensor:
        """Return exact pooled embeddings, so the encoder is in evaluation mode."""
        check_reducer()
        if self._frozen_version == ():
            self._frozen_version = version(self.encoder)
        elif self._frozen_version != version(self.encoder):
            self._freeze()  # lazy layers may have taken their widths since
            self._forget_rows()
        catalogue, configs, rows = step.draw.catalogue, step.draw.configs, step.rows
        everything, weights = torch.arange(len(catalogue)), torch.ones(len(catalogue), configs.shape[1])
        pool = self._pool(catalogue)
        with evaluating(self.encoder):
            if rows is None:
                self._add_encoded(pool, catalogue, everything, configs, weights)
                return pool.result()
            rows.begin()
            missing = (~rows.is_known() & (configs[catalogue.graph] >= 0)).any(1)
            self.add_rows(pool, catalogue, everything[~missing], rows, weights)
            encoded = self._add_encoded(pool, catalogue, everything[missing], configs, weights)
            rows.push_missing(encoded, everything[missing])  # after the others were pulled: a full table evicts them
        return pool.result()

    # Pooling, a bounded number of segments at a time -----------------------------------------------------------------

    def _pool(self, catalogue: Catalogue) -> GraphPool:
        return GraphPool(catalogue.graph_node_counts.to(self.like().device, non_blocking=True), self.pooling)

    def _add(self, pool: GraphPool, catalogue: Catalogue, segments: Tensor, embedded: Tensor, weights: Tensor) -> None:
        counts = catalogue.node_counts[segments].to(embedded.device, non_blocking=True)
        graphs = catalogue.graph[segments].to(embedded.device, non_blocking=True)
        pool.add(embedded, weights.to(embedded, non_blocking=True), counts, graphs)

    def _add_encoded(
        self, pool: GraphPool, catalogue: Catalogue, segments: Tensor, configs: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """Encode `segments` without gradient, add them to the pool, and return their embeddings."""
        encoded = []
        for chunk in catalogue.chunks(segments, configs.shape[1], self.max_rows):
            encoded.append(self._encode(catalogue, chunk, configs))
            self._add(pool, catalogue, chunk, encoded[-1], weights[chunk])
        return encoded

    def add_rows(
        self, pool: GraphPool, catalogue: Catalogue, segments: Tensor, rows: StepRows, weights: Tensor
    ) -> None:
        """Add the rows of `segments` to the pool."""
        for chunk in row_chunks(segments, weights.shape[1]):
            self._add(pool, catalogue, chunk, rows.of(chunk), weights[chunk])

    # The encoder and the head --------------------------------------------------------------------------------------

    def _encode(
        self, catalogue: Catalogue, segments: Int64[Tensor, " chosen"], configs: Int64[Tensor, "graphs configs"]
    ) -> Float[Tensor, "chosen configs channels"]:
        """Encode segments without gradient."""
        return encode_segments(self._encode_batch, catalogue, segments, configs, self.max_rows, self.like())

    def fresh_batch(self, draw: Draw) -> SegmentBatch:
        """Read the fresh segments of a draw, in memory of the host."""
        catalogue = draw.catalogue
        return assemble(catalogue.graphs, catalogue.picks(draw.fresh.nonzero().squeeze(1)), draw.configs)

    @torch.compiler.disable(recursive=False)
    def _encode_batch(self, batch: SegmentBatch) -> Float[Tensor, "segments configs channels"]:
        return embed_segments(self.encoder, batch, self._call, self.pooling)

    def _with_references(self, graphs: Sequence[SegmentedGraph], configs: Tensor | None) -> Tensor:
        """Return `configs`, after the reference configurations of the head if it has any."""
        references, checked = getattr(self.head, "references", 0), checked_configs(graphs, configs)
        return with_references(graphs, checked, references) if references else checked

    @property
    def takes_batches(self) -> bool:
        """True if the encoder takes a `SegmentBatch`."""
        return self._call.whole == "batch"

    def like(self) -> Tensor:
        """Return a tensor on the device and in the dtype of the model."""
        return parameter_of(self, torch.empty(0))

    # Saving --------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION, "step": self.step, "seed": self.seed, "encoder_frozen": self.encoder_frozen,
            "slot": None if self._keys is None else self._keys.slot,
            "regression": None if self._regression is None else self._regression.state_dict(),
        } | ({"ages": self._ages.state_dict()} if self.refresh == "age" else {})  # fmt: skip

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if state.get("version", 1) != STATE_VERSION and self.table is not None:
            raise ValueError(
                f"the checkpoint is of version {state.get('version', 1)}, and rows of a table have other keys in "
                f"version {STATE_VERSION}: train again, or load it into a model without a table"
            )
        self.step, self.seed = state["step"], state["seed"]
        if self._keys is not None:
            self._keys.slot = state.get("slot")
        if "ages" in state:
            self._ages.load_state_dict(state["ages"])
        if self._regression is not None and state.get("regression") is not None:
            self._regression.load_state_dict(state["regression"])
        if state["encoder_frozen"]:
            self._freeze()
            self._frozen_version = ()  # set by `_after_loading`, once encoder and table are loaded too

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`, without streams; rows of a frozen encoder stay exact."""
        frozen_version = () if self.encoder_frozen else None
        return self.__dict__ | {"_copies": None, "_frozen_version": frozen_version}


def _after_loading(model: GraphSegmentTraining, incompatible: object) -> None:
    """Keep the rows of an encoder that was saved frozen; forget those of one that was frozen here."""
    if model.encoder_frozen and model._frozen_version == ():
        model._freeze()
        model._frozen_version = version(model.encoder)
    elif model.encoder_frozen:
        model._forget_rows()
