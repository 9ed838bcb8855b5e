"""Graph Segment Training (Cao et al., NeurIPS 2023): learn from whole graphs, backpropagate through parts of them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from gst.batch import SegmentBatch
from gst.dropout import segment_weights
from gst.pooling import Pooling, check_pooling, pool_nodes, pool_segments
from gst.sampling import choose_fresh
from gst.segments import SegmentedGraph, assemble

Picks = list[tuple[int, int]]  # (position of a graph in the batch, segment of that graph)
Known = Bool[Tensor, "segments configs"]


class GraphSegmentTraining(nn.Module):
    """An encoder and a head under Graph Segment Training. In training mode `forward` estimates the prediction from a
    few fresh segments per graph; in evaluation mode it is `exact`. What stands for the other segments:

    | variant | arguments |
    |---|---|
    | GST-One | `omit_rest=True, num_fresh=1`: nothing; one segment speaks for its graph |
    | GST     | the defaults: they are encoded too, without gradient |
    | GST+E   | `table=EmbeddingTable(...)`: their last embedding, however old |
    | +D      | `keep_probability` < 1: a random share of them is dropped, the fresh ones weigh more |
    | +F      | call `freeze_encoder()`: from then on only the head learns, on embeddings of the frozen encoder |

    Args:
        encoder: takes a `SegmentBatch`, or `(x, edge_index)` like any PyG model (recognised by its two required
            arguments; it then sees one copy of the batch per configuration, `SegmentBatch.expanded`). Returns
            embeddings of the nodes `(nodes, [configs,] channels)` or of the segments `(segments, [configs,] channels)`.
        head: pooled embeddings `(graphs, configs, channels)` -> prediction.
        pooling: `sum`, `mean` (over nodes) or `max`.
        num_fresh: S, segments encoded with gradient per graph and step.
        keep_probability: p of Stale Embedding Dropout.
        table: where embeddings of segments are kept between steps.
        omit_rest: leave the other segments out.
        max_rows: encode at most so many (node, configuration) pairs at once where no gradient is needed; it bounds the
            memory of `exact`, a single segment under a single configuration being the least.
        seed: of the draws of segments; their state is saved with the module.
    """

    def __init__(
        self,
        encoder: Callable[..., Tensor],
        head: Callable[[Tensor], Tensor],
        pooling: Pooling = "mean",
        num_fresh: int = 1,
        keep_probability: float = 1.0,
        table: EmbeddingTable | None = None,
        omit_rest: bool = False,
        max_rows: int = 1 << 18,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_pooling(pooling)
        if num_fresh < 1:
            raise ValueError(f"num_fresh is {num_fresh}; a step needs at least one fresh segment per graph")
        if not 0.0 <= keep_probability <= 1.0:
            raise ValueError(f"keep_probability is {keep_probability}; it is a probability, from 0 to 1")
        if omit_rest and table is not None:
            raise ValueError("omit_rest leaves out what the table would give; use one of the two")
        self.encoder, self.head, self.table = encoder, head, table
        self.pooling, self.num_fresh, self.keep_probability = pooling, num_fresh, keep_probability
        self.omit_rest, self.max_rows = omit_rest, max_rows
        self.encoder_frozen = False
        self.step = 0
        self._first_key: dict[str, tuple[int, int]] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._takes_edges = _takes_edges(encoder)
        if isinstance(encoder, nn.Module) and any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in encoder.modules()
        ):
            warnings.warn(
                "the encoder holds BatchNorm: its statistics come from the few fresh segments of a step and couple "
                "segments of one batch; LayerNorm or GraphNorm per node does neither",
                stacklevel=2,
            )

    def forward(
        self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"] | None = None
    ) -> Tensor:
        """Predictions for `configs` of each graph (-1 = padding, its prediction means nothing; all of the only graph if
        not given). In training mode this is one step of the method and writes the table; in evaluation mode `exact`."""
        if not self.training:
            return self.exact(graphs, configs)
        configs = _checked_configs(graphs, configs)
        self.step += 1
        if self.encoder_frozen:
            with torch.no_grad():
                embedded = self._embed_frozen(graphs, configs)
        else:
            embedded = self._estimate(graphs, configs)
        return self.head(embedded)

    def exact(self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"] | None = None) -> Tensor:
        """Predictions from all segments, encoded now, in memory bounded by `max_rows`. Without gradient."""
        with torch.no_grad():
            return self.head(self.embed(graphs, configs))

    def embed(
        self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"] | None = None
    ) -> Float[Tensor, "graphs configs channels"]:
        """The pooled embeddings that `exact` gives to the head. Without gradient."""
        with torch.no_grad():
            return self._embed_exactly(graphs, _checked_configs(graphs, configs))

    def freeze_encoder(self) -> None:
        """Finetuning (+F): stop learning the encoder and forget what it said when it was younger. From now on every
        segment is encoded once, when it is first needed, and its table row is exact."""
        self.encoder_frozen = True
        if isinstance(self.encoder, nn.Module):
            self.encoder.requires_grad_(False)
        if self.table is not None:
            self.table.clear()

    # The estimate --------------------------------------------------------------------------------------------------

    def _estimate(self, graphs: Sequence[SegmentedGraph], configs: Tensor) -> Tensor:
        picks = _all_segments(graphs)
        fresh_by_graph = [choose_fresh(graph.num_segments, self.num_fresh, self._generator) for graph in graphs]
        fresh = torch.cat(fresh_by_graph)
        keys = self._keys(graphs, picks, configs)
        known = self._known(keys)
        counts = [graph.num_segments for graph in graphs]
        weights = torch.cat([
            segment_weights(*each, self.keep_probability, self._generator)
            for each in zip(fresh_by_graph, known.split(counts), strict=True)
        ])  # fmt: skip
        embedded = self._encode(graphs, _select(picks, fresh), configs)
        used = ~fresh & (weights > 0).any(1)
        rest = self._rest(graphs, _select(picks, used), configs, keys[used])
        if self.table is not None:
            self._push(keys[fresh], embedded)
        order = torch.cat([fresh.nonzero(), used.nonzero()]).squeeze(1)
        together = torch.cat([embedded, rest]) if used.any() else embedded
        return self._pool(graphs, together, [picks[i] for i in order.tolist()], weights[order])

    def _known(self, keys: Int64[Tensor, "segments configs"]) -> Known:
        """For which segments something stands in when they are stale."""
        if self.table is None:
            return torch.full(keys.shape, not self.omit_rest)
        return (keys >= 0) & self.table.known(keys.clamp(min=0).flatten()).cpu().view_as(keys)

    def _rest(self, graphs: Sequence[SegmentedGraph], picks: Picks, configs: Tensor, keys: Tensor) -> Tensor:
        if self.table is not None:
            rows = self.table.pull(keys.clamp(min=0).flatten())[0]
            return rows.view(*keys.shape, rows.shape[1]).to(self._like())
        with torch.no_grad():
            return self._encode_in_chunks(graphs, picks, configs)

    def _embed_frozen(self, graphs: Sequence[SegmentedGraph], configs: Tensor) -> Tensor:
        if self.table is None:
            return self._embed_exactly(graphs, configs)
        picks = _all_segments(graphs)
        keys = self._keys(graphs, picks, configs)
        missing = (~self._known(keys) & (keys >= 0)).any(1)
        if missing.any():
            self._push(keys[missing], self._encode_in_chunks(graphs, _select(picks, missing), configs))
        rows = self._rest(graphs, picks, configs, keys)
        return self._pool(graphs, rows, picks, torch.ones(keys.shape))

    def _embed_exactly(self, graphs: Sequence[SegmentedGraph], configs: Tensor) -> Tensor:
        picks = _all_segments(graphs)
        embedded = self._encode_in_chunks(graphs, picks, configs)
        return self._pool(graphs, embedded, picks, torch.ones(len(picks), configs.shape[1]))

    def _pool(self, graphs: Sequence[SegmentedGraph], embedded: Tensor, picks: Picks, weights: Tensor) -> Tensor:
        device = embedded.device
        node_counts = torch.tensor([int(graphs[g].owned_counts[j]) for g, j in picks], device=device)
        graph_of_segment = torch.tensor([g for g, _ in picks], dtype=torch.long, device=device)
        graph_nodes = torch.tensor([graph.num_nodes for graph in graphs], device=device)
        weights = weights.to(embedded)
        return pool_segments(embedded, weights, node_counts, graph_of_segment, graph_nodes, self.pooling)

    # The encoder ---------------------------------------------------------------------------------------------------

    def _encode(
        self, graphs: Sequence[SegmentedGraph], picks: Picks, configs: Tensor
    ) -> Float[Tensor, "segments configs channels"]:
        batch = assemble(graphs, picks, configs)
        like = self._like()
        return self._encode_batch(batch.to(like.device, like.dtype))

    def _like(self) -> Tensor:
        """Something on the device and in the dtype of the model."""
        return next((p for p in self.parameters() if not nn.parameter.is_lazy(p)), torch.empty(0))

    def _encode_batch(self, batch: SegmentBatch) -> Tensor:
        configs = batch.num_configs
        if self._takes_edges:
            x, edge_index = batch.expanded()
            embedded = self.encoder(x, edge_index)
            if len(embedded) != len(x):
                raise ValueError(
                    f"the encoder returned {len(embedded)} rows for {len(x)} nodes; "
                    f"it has to return one row for each node"
                )
            embedded = embedded.view(configs, -1, embedded.shape[-1]).transpose(0, 1)
        else:
            embedded = self.encoder(batch)
        if embedded.dim() == 2:
            embedded = embedded[:, None].expand(-1, configs, -1)
        if len(embedded) == batch.num_nodes:
            return pool_nodes(embedded, batch.segment_of_node, batch.owned, batch.node_counts, self.pooling)
        if len(embedded) == batch.num_segments:
            return embedded
        raise ValueError(
            f"the encoder returned {len(embedded)} rows for a batch of {batch.num_nodes} nodes in {batch.num_segments} "
            f"segments; it has to return one row for each node or one for each segment"
        )

    def _encode_in_chunks(self, graphs: Sequence[SegmentedGraph], picks: Picks, configs: Tensor) -> Tensor:
        pieces: list[Tensor] = []
        for chunk in self._chunks(graphs, picks, configs.shape[1]):
            rows = sum(int(graphs[g].row_ptr[j + 1] - graphs[g].row_ptr[j]) for g, j in chunk)
            width = max(1, self.max_rows // rows)
            pieces.append(torch.cat([self._encode(graphs, chunk, part) for part in configs.split(width, dim=1)], dim=1))
        return torch.cat(pieces) if pieces else torch.empty(0)

    def _chunks(self, graphs: Sequence[SegmentedGraph], picks: Picks, num_configs: int) -> Iterator[Picks]:
        chunk: Picks = []
        rows = 0
        for g, j in picks:
            more = int(graphs[g].row_ptr[j + 1] - graphs[g].row_ptr[j])
            if chunk and (rows + more) * num_configs > self.max_rows:
                yield chunk
                chunk, rows = [], 0
            chunk.append((g, j))
            rows += more
        if chunk:
            yield chunk

    # The table -----------------------------------------------------------------------------------------------------

    def _keys(
        self, graphs: Sequence[SegmentedGraph], picks: Picks, configs: Tensor
    ) -> Int64[Tensor, "segments configs"]:
        """One key for every (segment, configuration) of the data; -1 for padding."""
        for graph in graphs:
            size = graph.num_segments * graph.num_configs
            _, seen = self._first_key.setdefault(graph.name, (sum(s for _, s in self._first_key.values()), size))
            if seen != size:
                raise ValueError(
                    f"two graphs are named {graph.name!r} ({seen} and {size} table rows); the table tells graphs "
                    f"apart by their names, so give each its own"
                )
        first_keys = torch.tensor([self._first_key[graphs[g].name][0] + j * graphs[g].num_configs for g, j in picks])
        of_segment = configs[[g for g, _ in picks]]
        keys = torch.where(of_segment >= 0, first_keys[:, None] + of_segment, -1)
        num_keys = sum(size for _, size in self._first_key.values())
        if self.table is not None and num_keys > self.table.num_keys:
            self.table.resize(num_keys)
        return keys

    def _push(self, keys: Int64[Tensor, "segments configs"], embedded: Tensor) -> None:
        assert self.table is not None
        real = keys >= 0
        self.table.push(keys[real], embedded.detach()[real.to(embedded.device)], self.step)

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "encoder_frozen": self.encoder_frozen,
            "first_key": {name: list(entry) for name, entry in self._first_key.items()},
            "generator": self._generator.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self._first_key = {name: (entry[0], entry[1]) for name, entry in state["first_key"].items()}
        self._generator.set_state(state["generator"].cpu())
        if state["encoder_frozen"] and not self.encoder_frozen:
            self.encoder_frozen = True
            if isinstance(self.encoder, nn.Module):
                self.encoder.requires_grad_(False)


def _all_segments(graphs: Sequence[SegmentedGraph]) -> Picks:
    return [(g, j) for g, graph in enumerate(graphs) for j in range(graph.num_segments)]


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


def _select(picks: Picks, mask: Tensor) -> Picks:
    return [pick for pick, chosen in zip(picks, mask.tolist(), strict=True) if chosen]


def _takes_edges(encoder: Callable[..., Tensor]) -> bool:
    call = encoder.forward if isinstance(encoder, nn.Module) else encoder
    parameters = inspect.signature(call).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True  # e.g. PyG's Sequential
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) >= 2
