"""Layer histories: states of nodes next to cut edges, kept after chosen layers of an encoder from step to step, so that
messages cross the cut (GNNAutoScale: Fey et al., ICML 2021, arXiv 2106.05609, section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.storage import Tier
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.guards import require_finite_gradients
from gst.util.arrays import as_bytes, shortened


class _Context(NamedTuple):
    """Nodes of a graph that stand beside segments that do not own them, by ascending id, and a name that differs where
    the graph, its cut or these nodes do."""

    nodes: Int64[np.ndarray, " distinct"]
    name: str

    @staticmethod
    def of(graph: SegmentedGraph) -> _Context:
        if graph not in _of_graph:
            lengths = np.diff(graph.row_ptr)
            place = np.arange(lengths.sum()) - np.repeat(graph.row_ptr[:-1], lengths)
            nodes = np.unique(graph.node_ids[place >= np.repeat(graph.owned_counts, lengths)])
            ids = shortened(sha256(as_bytes(graph.node_ids)))  # the fingerprint says nothing of them
            _of_graph[graph] = _Context(nodes, f"{graph.fingerprint} {ids}")
        return _of_graph[graph]


_apart: ContextVar[tuple[LayerHistories, list[EmbeddingTable]] | None] = ContextVar("_apart", default=None)
_of_graph: WeakKeyDictionary[SegmentedGraph, _Context] = WeakKeyDictionary()


class _Encoding(NamedTuple):
    """What the encoder works on now."""

    batch: SegmentBatch
    encoder: object
    step: int


class LayerHistories(nn.Module):
    """States of nodes after chosen layers of an encoder: of those nodes alone that some other segment sees as context.

    After each of these layers the states of context nodes, which lack neighbours beyond the `halo` of their segment,
    are replaced by those of the last step in which the segment that owns the node was encoded; states of owned nodes
    are kept. A `halo` of one hop then hears of nodes any number of hops away, at the price of old states. Gradients do
    not cross the cut. Evaluation keeps states of its own: it encodes all segments once for each layer, from the first
    to the last, so that layers of one hop each see what they see in the whole graph.

    For a node and layer l with history H: h_v = layer(h_u of owned neighbours, H_u of context neighbours)
    (Fey et al. 2021, equation 2). States, and with them embeddings of segments, depend on all configurable nodes within
    reach, so that every configuration of a segment has rows of its own.

    Give it to one estimator: `GraphSegmentTraining(encoder, head, histories=LayerHistories(...))`. Every process keeps
    its own histories.

    Args:
        channels: width of the states after each layer, by the layer's name in the encoder (`encoder.named_modules()`),
            for all layers but the last. What a layer returns has one row for each node of every copy of the batch, or
            is what a layer of `gst.nn` returns (under more than one configuration with `share=False`).
        dtype, tier, path, capacity: of the `EmbeddingTable` of each layer.

    Raises:
        ValueError: there is no layer.

    Examples:
        >>> import gst
        >>> edges = np.array([[0, 1, 2], [1, 2, 3]])
        >>> class Sums(nn.Module):
        ...     def forward(self, x, edge_index):
        ...         return x.index_add(0, edge_index[1], x[edge_index[0]])
        >>> class Two(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.second = Sums(), Sums()
        ...     def forward(self, x, edge_index):
        ...         return self.second(self.first(x, edge_index), edge_index)
        >>> graph = gst.segment(gst.Graph(np.ones((4, 1), np.float32), edges), max_nodes=1, halo=1)
        >>> def prediction(**arguments):
        ...     return gst.GraphSegmentTraining(Two(), nn.Identity(), "sum", **arguments).exact([graph]).item()
        >>> prediction(), prediction(histories=gst.LayerHistories({"first": 1}))  # the whole graph: 1 + 3 + 4 + 4
        (10.0, 12.0)
    """

    def __init__(
        self, channels: Mapping[str, int], dtype: torch.dtype = torch.float32, tier: Tier = "device",
        path: Path | str | None = None, capacity: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not channels:
            raise ValueError("channels names no layer; give the width of each layer but the last, by its name")
        self.channels = dict(channels)
        self._options: dict[str, Any] = {"dtype": dtype, "tier": tier, "path": path, "capacity": capacity}
        self.tables = nn.ModuleList(self._empty_tables())
        self._now: _Encoding | None = None

    def attach(self, encoder: object) -> None:
        """From now on the layers of `encoder` read and write these histories while an estimator encodes.

        Raises:
            ValueError: `encoder` is no module, or lacks a layer.
        """
        inside = getattr(encoder, "_orig_mod", encoder)  # of torch.compile
        if not isinstance(inside, nn.Module):
            raise ValueError("histories follow layers of a torch.nn.Module, and the encoder is none")
        layers = dict(inside.named_modules())
        for number, name in enumerate(self.channels):
            if name not in layers:
                raise ValueError(f"the encoder has no layer {name!r}; it has {', '.join(filter(None, layers))}")
            layers[name].register_forward_hook(partial(self._cross, number))

    def keys(
        self,
        graphs: Sequence[SegmentedGraph],
        picks: Sequence[tuple[int, int]],
        configs: Int64[Tensor, "graphs configs"],
    ) -> Int64[Tensor, "nodes configs"]:
        """Keys in the tables of all nodes of a batch, -1 for those that no other segment sees; arguments as those of
        `gst.method.batch.assemble`.

        Raises:
            ValueError: a graph was cut without context.
        """
        ranges, parts = self._tables_now[0].ranges, [np.zeros((0, configs.shape[1]), np.int64)]
        slot, chosen = ranges.slot(self, 0), configs.clamp(min=0).numpy()
        for g, j in picks:
            graph = graphs[g]
            seen, name = _Context.of(graph)
            if graph.edge_cut > 0 and not len(seen):
                raise ValueError(f"graph {graph.name!r} was cut without context, which histories fill; cut with halo=1")
            about = f"{len(seen)} context nodes, {graph.num_configs} configurations"
            first = ranges.first_key(slot, name, len(seen) * graph.num_configs, about)
            nodes = graph.node_ids[graph.row_ptr[j] : graph.row_ptr[j + 1]]
            place = np.searchsorted(seen, nodes)
            is_seen = seen[np.minimum(place, len(seen) - 1)] == nodes if len(seen) else np.zeros(len(nodes), bool)
            keys = first + place[:, None] * graph.num_configs + chosen[g]
            parts.append(np.where(is_seen[:, None], keys, -1))
        return torch.from_numpy(np.concatenate(parts))

    @contextmanager
    def during(self, batch: SegmentBatch, encoder: object, step: int) -> Iterator[None]:
        """Inside, the encoder works on `batch`, and its layers read and write."""
        self._now = _Encoding(batch, encoder, step)
        try:
            yield
        finally:
            self._now = None

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, this thread has histories that are empty at first; afterwards those of before."""
        token = _apart.set((self, self._empty_tables()))
        try:
            yield
        finally:
            _apart.reset(token)

    @property
    def _tables_now(self) -> Sequence[EmbeddingTable]:
        user, tables = _apart.get() or (None, [])
        return tables if user is self else cast(list[EmbeddingTable], list(self.tables))

    def _table_on(self, device: torch.device, number: int) -> EmbeddingTable:
        """The table of a layer; one that is elsewhere is moved, with its rows, to where the layer's states are."""
        table = self._tables_now[number]
        if table.device == device:
            return table
        moved = EmbeddingTable(1, table.channels, device=device, **self._options)
        moved.set_extra_state(table.get_extra_state())
        user, tables = _apart.get() or (None, [])
        if user is self:
            tables[number] = moved
        else:
            self.tables[number] = moved
        return moved

    def _empty_tables(self) -> list[EmbeddingTable]:
        return [EmbeddingTable(1, width, **self._options) for width in self.channels.values()]

    @torch.compiler.disable
    def _cross(self, number: int, layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        """The hook of a layer: keep the states of owned nodes, and replace those of context nodes."""
        if self._now is None:
            return output
        batch, encoder, step = self._now
        assert batch.history_keys is not None
        name = list(self.channels)[number]
        if not isinstance(output, Tensor):
            raise ValueError(f"layer {name!r} returns a {type(output).__name__}; histories need a tensor of states")
        if output.shape[-1] != self.channels[name]:
            width = output.shape[-1]
            raise ValueError(f"layer {name!r} returns {width} channels, and histories say {self.channels[name]}")
        nodes, configs = _places(arguments, output, batch, name)
        keys = torch.where(nodes < 0, -1, batch.history_keys[nodes, configs])
        owned = batch.owned[nodes] & (keys >= 0)
        context = ~batch.owned[nodes] & (keys >= 0)
        table, num_keys = self._table_on(output.device, number), self._tables_now[0].ranges.num_keys
        if num_keys > table.num_keys:
            table.resize(num_keys)
        old, is_known = _spread(table, keys, context, output)
        mine = _first_of_each(keys, owned)
        if output.requires_grad:
            staged = table.stage(keys[mine], output.detach()[mine], step)
            require_finite_gradients(output, encoder, staged.require)
        else:
            table.push(keys[mine], output.detach()[mine], step)
        return torch.where(is_known[:, None], old, output)


def _places(
    arguments: tuple[Any, ...], output: Tensor, batch: SegmentBatch, name: str
) -> tuple[Int64[Tensor, " rows"], Int64[Tensor, " rows"]]:
    """The node (-1: none) and configuration of each row that a layer returned."""
    count, configs, device = batch.num_nodes, batch.num_configs, output.device
    level = arguments[1].levels[arguments[2] + 1] if len(arguments) > 2 and hasattr(arguments[1], "levels") else None
    if level is not None and len(level.config_of_row) == count * configs:
        unused = len(output) - count * configs
        node = np.concatenate([level.node_of_row(), np.full(unused, -1)])
        config = np.concatenate([level.config_of_row, np.zeros(unused, np.int64)])
        return torch.from_numpy(node).to(device, non_blocking=True), torch.from_numpy(config).to(
            device, non_blocking=True
        )
    if level is not None:
        raise ValueError(f"layer {name!r} has one row for several configurations; histories need share=False")
    if len(output) != count * configs:
        raise ValueError(
            f"layer {name!r} returns {len(output)} rows for {count} nodes under {configs} configurations; histories "
            "need one row for each node of every copy"
        )
    place = torch.arange(len(output), device=device)
    return place % count, place // count


def _spread(
    table: EmbeddingTable, keys: Int64[Tensor, " rows"], chosen: Bool[Tensor, " rows"], like: Tensor
) -> tuple[Float[Tensor, "rows channels"], Bool[Tensor, " rows"]]:
    """Rows of the table where `chosen`, and where there are any."""
    places = chosen.nonzero().squeeze(1)
    rows, _, is_known = table.pull(keys[places])
    wide = torch.zeros_like(like).index_copy(0, places, rows.to(like))
    return wide, torch.zeros_like(chosen).index_copy(0, places, is_known.to(chosen.device))


def _first_of_each(keys: Int64[Tensor, " rows"], chosen: Bool[Tensor, " rows"]) -> Int64[Tensor, " distinct"]:
    """Where each key comes first among the `chosen`: a graph may be in a step twice, or a configuration."""
    places = chosen.nonzero().squeeze(1)
    distinct, inverse = keys[places].unique(return_inverse=True)
    first = torch.full_like(distinct, len(keys)).scatter_reduce(0, inverse, places, "amin")
    return first.sort().values
