"""Inputs and outputs of encoders: joined segments with their configurations, and the states of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from gst.graphs.graph import DATA, NAMES_TAKEN
from gst.graphs.segments import SegmentedGraph
from gst.util.arrays import PackedArray
from gst.util.copies import Array, FarArray, fetch_together
from gst.util.packing import Kind, sent


@dataclass(frozen=True, eq=False)
class SegmentBatch:
    """Input of an encoder: segments as one disconnected graph. No edge joins two segments.

    Args:
        node_features: features that do not depend on the configuration; floats have the dtype of the model.
        edge_index: producers, then consumers (PyG's `source_to_target`), sorted by consumer.
        segment_of_node: segment of each node.
        owned: False for context nodes (`halo` of `gst.segment`), which send messages and are not pooled.
        node_counts: owned nodes of each segment.
        config_features: features that each configuration gives each of `config_nodes`. Segments of different graphs
            hold the configurations of their own graph in the same column.
        node_data, edge_data: further tensors by name, one row for each node or edge (`Graph.node_data`).
        plans: results that encoders derive from the batch alone.
        host: the batch in memory of the host, if this one is on an accelerator; plans are made from it.
    """

    node_features: Shaped[Tensor, "nodes features"]
    opcodes: Int64[Tensor, " nodes"]
    edge_index: Int64[Tensor, "2 edges"]
    segment_of_node: Int64[Tensor, " nodes"]
    owned: Bool[Tensor, " nodes"]
    node_counts: Int64[Tensor, " segments"]
    config_nodes: Int64[Tensor, " configurable"]
    config_features: Float[Tensor, "configurable configs channels"]
    node_data: Mapping[str, Tensor] = field(default_factory=dict)
    edge_data: Mapping[str, Tensor] = field(default_factory=dict)
    plans: dict[Any, Any] = field(default_factory=dict, init=False)
    host: SegmentBatch | None = field(default=None, init=False)

    @property
    def num_nodes(self) -> int:
        return len(self.node_features)

    @property
    def num_segments(self) -> int:
        return len(self.node_counts)

    @property
    def num_configs(self) -> int:
        return self.config_features.shape[1]

    @property
    def has_context(self) -> bool:
        """True if a segment with nodes of its own has context nodes too; False without a copy on the host."""
        host = self.on_host
        if host.owned.device.type != "cpu":
            return False
        is_real = torch.zeros(host.num_segments, dtype=torch.bool)
        is_real[host.segment_of_node[host.owned]] = True  # others are padding
        return bool((is_real[host.segment_of_node] & ~host.owned).any())

    def to(self, device: torch.device, dtype: torch.dtype) -> SegmentBatch:
        """The same batch on `device`, its features as `dtype`. An accelerator gets it by one copy; no host waits."""

        def move(tensor: Tensor, device: torch.device = device) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True)

        if device.type == "cpu" or self.edge_index.device.type != "cpu":
            return self.placed(map(move, self.tensors().values()))
        here = self.placed(move(each, self.edge_index.device) for each in self.tensors().values())
        moved = here.placed(sent(here.tensors(), device).values())
        object.__setattr__(moved, "host", self)
        return moved

    @property
    def on_host(self) -> SegmentBatch:
        """This batch, or its original if it is a copy on a device."""
        return self.host or self

    def copied_by(self, stream: Any, like: Any) -> tuple[SegmentBatch, torch.Event]:
        """Copy the batch to where `like` is, on a stream of its own; return the copy and the event of its end."""
        # The same stream by an object of its own: PyTorch notes on the object what to go back to, for one thread.
        own = torch.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
        with own as copies:
            return self.to(like.device, like.dtype), copies.record_event()

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name, those of `node_data` and `edge_data` too."""
        every: dict[str, Tensor] = {}
        for entry in fields(self):
            if entry.name in DATA:
                every |= {f"{entry.name}.{key}": each for key, each in getattr(self, entry.name).items()}
            elif entry.init:
                every[entry.name] = getattr(self, entry.name)
        return every

    def placed(self, tensors: Iterable[Tensor]) -> SegmentBatch:
        """The same batch, made of these copies of its `tensors()`, in their order."""
        each, made = iter(tensors), dict[str, Any]()
        for entry in fields(self):
            if entry.name in DATA:
                made[entry.name] = {key: next(each) for key in getattr(self, entry.name)}
            elif entry.init:
                made[entry.name] = next(each)
        return SegmentBatch(**made)

    def expanded(self) -> ExpandedBatch:
        """One copy of the batch for each configuration, for a GNN that knows no configurations."""
        return ExpandedBatch(self)

    def padded_kinds(self, nodes: int, edges: int, configurable: int, segments: int) -> dict[str, Kind]:
        """Return dtype and shape of each tensor of the padded batch, by name."""
        lengths = {"edge_index": edges, "node_counts": segments}
        lengths |= dict.fromkeys(("config_nodes", "config_features"), configurable)
        lengths |= {f"edge_data.{name}": edges for name in self.edge_data}
        return {
            name: (each.dtype, (2, edges) if name == "edge_index" else (lengths.get(name, nodes), *each.shape[1:]))
            for name, each in self.tensors().items()
        }

    def padded_to(
        self, nodes: int, edges: int, configurable: int, segments: int | None = None,
        places: Mapping[str, Tensor] | None = None,
    ) -> SegmentBatch:  # fmt: skip
        """Return the batch with further segments of unowned nodes: one node in each, and the rest in the last.

        Further edges join these nodes to themselves, equally many to each; further configurable nodes are the last
        node, with features of zero. Without `segments` there is one segment more than now. The result has no gradient.

        Args:
            places: tensors of the shapes of `padded_kinds` that the result is written to; new ones if not given.

        Raises:
            ValueError: the batch is larger, or a further segment gets no node.

        Examples:
            >>> features, edges, one = torch.ones(2, 3), torch.tensor([[0], [1]]), torch.zeros(2, dtype=torch.int64)
            >>> owned, nothing = torch.ones(2, dtype=torch.bool), torch.zeros(0, dtype=torch.int64)
            >>> batch = SegmentBatch(features, one, edges, one, owned, torch.tensor([2]), nothing, torch.zeros(0, 1, 0))
            >>> padded = batch.padded_to(nodes=5, edges=7, configurable=0, segments=3)
            >>> padded.segment_of_node.tolist(), padded.edge_index[1].tolist()
            ([0, 0, 1, 2, 2], [1, 2, 2, 3, 3, 4, 4])
        """
        segments = self.num_segments + 1 if segments is None else segments
        more_segments = segments - self.num_segments
        if more_segments < 1:
            raise ValueError(
                f"a batch of {self.num_segments} segments does not fit into {segments}, of which one is padding"
            )
        now = (self.num_nodes + more_segments, self.edge_index.shape[1], len(self.config_nodes))
        more_edges, more_configurable = edges - now[1], configurable - now[2]
        if nodes < now[0] or min(more_edges, more_configurable) < 0:
            raise ValueError(
                f"a batch of {now[0]} nodes with {more_segments} for padding, {now[1]} edges and {now[2]} configurable "
                f"nodes does not fit into {nodes}, {edges} and {configurable}"
            )
        more_nodes = nodes - self.num_nodes
        more: dict[str, Any] = {
            # Thousands of loops at one node would be as many atomic additions to one row, and a sum that overflows.
            "edge_index": self.num_nodes + torch.arange(more_edges) * more_nodes // max(more_edges, 1),
            "segment_of_node": (self.num_segments + torch.arange(more_nodes)).clamp(max=segments - 1),
            "node_counts": torch.tensor(1), "config_nodes": torch.tensor(nodes - 1),
        }  # fmt: skip
        if places is None:
            kinds = self.padded_kinds(nodes, edges, configurable, segments)
            device = self.edge_index.device
            places = {name: torch.empty(shape, dtype=dtype, device=device) for name, (dtype, shape) in kinds.items()}
        tensors, zero = self.tensors(), torch.tensor(0)
        with torch.no_grad():
            for name, tensor in tensors.items():
                axis = int(name == "edge_index")
                begin, rest = places[name].tensor_split([tensor.shape[axis]], axis)
                begin.copy_(tensor)
                rest.copy_(more.get(name, zero))
        return self.placed(places[name] for name in tensors)


class ExpandedBatch:
    """One copy of a batch for each configuration, side by side as one graph, under the names of PyG's `Data`.

    Encoders that know no configurations get it. Besides the attributes below it has one for each name in `node_data`
    and `edge_data` (`edge_attr`, say).
    """

    def __init__(self, segments: SegmentBatch) -> None:
        self.segments = segments
        self.num_configs = segments.num_configs
        self.num_nodes = segments.num_nodes * self.num_configs
        self.num_graphs = self.batch_size = segments.num_segments * self.num_configs

    @cached_property
    def x(self) -> Shaped[Tensor, "rows width"]:
        """Node features, then those of the configuration (zeros at nodes that it does not touch)."""
        segments, nodes = self.segments, self.segments.node_features
        width = segments.config_features.shape[2]
        if not width:
            return self._copies(nodes)
        if not nodes.is_floating_point():
            raise ValueError(
                f"the graphs have node features of {nodes.dtype} and features of configurations, which are floats; "
                "take the whole SegmentBatch in the encoder (inputs='batch'), or store node features as float32"
            )
        per_node = nodes.new_zeros(self.num_configs, segments.num_nodes, width)
        per_node[:, segments.config_nodes] = segments.config_features.transpose(0, 1)
        return torch.cat([nodes.expand(self.num_configs, -1, -1), per_node], dim=-1).flatten(0, 1)

    @cached_property
    def edge_index(self) -> Int64[Tensor, "2 edges"]:
        """Producers and consumers."""
        return self._shifted(self.segments.edge_index.T, self.segments.num_nodes).T

    @cached_property
    def batch(self) -> Int64[Tensor, " rows"]:
        """The segment of each row, a different number under each configuration: PyG's vector `batch`."""
        return self._shifted(self.segments.segment_of_node, self.segments.num_segments)

    @cached_property
    def opcodes(self) -> Int64[Tensor, " rows"]:
        return self._copies(self.segments.opcodes)

    def __getattr__(self, name: str) -> Tensor:
        for data in (self.segments.node_data, self.segments.edge_data):
            if name in data:
                return self._copies(data[name])
        raise AttributeError(f"the graphs have no {name!r}; they have {', '.join(self.names())}")

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def names(self) -> tuple[str, ...]:
        """The attributes that an encoder may name."""
        return *NAMES_TAKEN, *self.segments.node_data, *self.segments.edge_data

    def complete(self) -> ExpandedBatch:
        """Compute all attributes now, so that an encoder under torch.compile reads tensors and no code."""
        vars(self).update({name: self._copies(data) for name, data in self.segments.edge_data.items()})
        vars(self).update({name: self._copies(data) for name, data in self.segments.node_data.items()})
        _ = self.edge_index, self.batch, self.opcodes
        if self.segments.node_features.is_floating_point() or not self.segments.config_features.shape[2]:
            _ = self.x
        return self

    def _copies(self, tensor: Tensor) -> Tensor:
        return tensor if self.num_configs == 1 else tensor.repeat(self.num_configs, *[1] * (tensor.dim() - 1))

    def _shifted(self, indices: Tensor, count: int) -> Tensor:
        """The indices of all copies, each shifted by `count`."""
        if self.num_configs == 1:
            return indices
        shift = torch.arange(self.num_configs, device=indices.device) * count
        return (indices + shift.view(-1, *[1] * indices.dim())).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class NodeStates:
    """Embeddings of the nodes of a batch under every configuration, without the repetitions.

    Args:
        row_of: row of each node under each configuration. No row belongs to two nodes.
    """

    rows: Float[Tensor, "rows channels"]
    row_of: Int64[Tensor, "nodes configs"]

    def dense(self) -> Float[Tensor, "nodes configs channels"]:
        """With the repetitions."""
        return self.rows[self.row_of]


def assemble(
    graphs: Sequence[SegmentedGraph], picks: Sequence[tuple[int, int]], configs: Int64[Tensor, "graphs configs"]
) -> SegmentBatch:
    """Join segments into one batch.

    Args:
        picks: (position in `graphs`, segment of that graph) of each segment of the batch.
        configs: configurations of each graph; -1 (padding) repeats the graph's first one.

    Raises:
        ValueError: graphs have different features of nodes or configurations, or different data.
    """
    check_alike([graphs[g] for g in sorted({g for g, _ in picks})])
    widths = {graph.config_features.shape[2]: graph.name for graph in graphs if graph.config_features.shape[1]}
    if len(widths) > 1:
        (narrow, one), (wide, other) = sorted(widths.items())[:2]
        raise ValueError(
            f"graphs {one!r} and {other!r} of one step have configurations of {narrow} and {wide} features; pad the "
            "narrower ones with zeros, or train on one kind at a time"
        )
    width = max(widths, default=max(graph.config_features.shape[2] for graph in graphs))
    chosen = configs.clamp(min=0).numpy()
    uses = [slice(graphs[g].config_ptr[j], graphs[g].config_ptr[j + 1]) for g, j in picks]
    _fetch(graphs, picks, uses, chosen)
    uses_before = np.cumsum([0, *(each.stop - each.start for each in uses)])
    config_features = np.empty((uses_before[-1], chosen.shape[1], width), np.float32)
    parts: dict[str, list[np.ndarray]] = {key: [] for key in ("x", "op", "edges", "rows")}
    first = graphs[picks[0][0]] if picks else graphs[0]
    node_data: dict[str, list[np.ndarray]] = {name: [] for name in first.node_data}
    edge_data: dict[str, list[np.ndarray]] = {name: [] for name in first.edge_data}
    row_counts, owned_counts = [], []
    start = 0
    for place, (g, j) in enumerate(picks):
        graph = graphs[g]
        rows = slice(graph.row_ptr[j], graph.row_ptr[j + 1])
        inside = slice(graph.edge_ptr[j], graph.edge_ptr[j + 1])
        for name, pieces in node_data.items():
            pieces.append(graph.node_data[name][rows])
        for name, pieces in edge_data.items():
            pieces.append(graph.edge_data[name][inside])
        parts["x"].append(graph.node_features[rows])
        parts["op"].append(graph.opcodes[rows])
        parts["edges"].append(graph.edges[:, inside] + np.int64(start))
        parts["rows"].append(graph.config_rows[uses[place]] + np.int64(start))
        mine = config_features[uses_before[place] : uses_before[place + 1]]
        _read_features(graph.config_features, chosen[g], graph.config_columns[uses[place]], mine)
        row_counts.append(rows.stop - rows.start)
        owned_counts.append(graph.owned_counts[j])
        start += row_counts[-1]
    lengths, owned = np.array(row_counts), np.array(owned_counts)
    within = np.arange(start) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    segment_of_node = np.repeat(np.arange(len(picks)), lengths)
    tensor = torch.from_numpy

    def data_of(pieces: dict[str, list[np.ndarray]], pointer: str) -> dict[str, Tensor]:
        return {
            name: _differentiable(graphs, picks, name, pointer, tensor(np.concatenate(each)))
            for name, each in pieces.items()
        }

    return SegmentBatch(
        node_features=data_of({"x": parts["x"]}, "row_ptr")["x"],
        opcodes=tensor(np.concatenate(parts["op"]).astype(np.int64)),
        edge_index=tensor(np.concatenate(parts["edges"], axis=1)),
        segment_of_node=tensor(segment_of_node),
        owned=tensor(within < owned[segment_of_node]),
        node_counts=tensor(owned.astype(np.int64)),
        config_nodes=tensor(np.concatenate(parts["rows"])),
        config_features=tensor(config_features),
        node_data=data_of(node_data, "row_ptr"),
        edge_data=data_of(edge_data, "edge_ptr"),
    )


def _fetch(
    graphs: Sequence[SegmentedGraph], picks: Sequence[tuple[int, int]], uses: Sequence[slice],
    configs: Int64[np.ndarray, "graphs configs"],
) -> None:  # fmt: skip
    """Copy what `assemble` reads of stores behind addresses, by two rounds of requests: segments, configurations."""
    if not any(isinstance(graph.opcodes, FarArray) for graph in graphs):
        return
    parts, features = [], []
    for (g, j), used in zip(picks, uses, strict=True):
        graph = graphs[g]
        rows, inside = (slice(pointer[j], pointer[j + 1]) for pointer in (graph.row_ptr, graph.edge_ptr))
        parts += [(array, rows) for array in (graph.node_features, graph.opcodes, *graph.node_data.values())]
        parts += [(array, inside) for array in (graph.edges.T, *graph.edge_data.values())]
        parts += [(graph.config_rows, used), (graph.config_columns, used)]
    fetch_together(parts)
    for (g, _), used in zip(picks, uses, strict=True):
        stored = graphs[g].config_features
        stored = stored.words if isinstance(stored, PackedArray) else stored
        if stored.size:
            features.append((stored, (configs[g][None], graphs[g].config_columns[used][:, None])))
    fetch_together(features)


def _read_features(
    features: Array | PackedArray, configs: Int64[np.ndarray, " configs"], columns: np.ndarray,
    places: Float[np.ndarray, "columns configs width"],
) -> None:  # fmt: skip
    """Write the features of some configurations at some configurable nodes to `places`."""
    if not places.size:  # a graph without configurable nodes may have another width
        return
    if not isinstance(features, np.ndarray) or features.dtype != places.dtype or not features.flags.c_contiguous:
        places[...] = features[configs[None, :], columns[:, None]]
        return
    num_configs, num_columns, width = features.shape
    if configs.max() >= num_configs or columns.max() >= num_columns or columns.min() < 0:
        raise IndexError(f"features are of {num_configs} configurations and {num_columns} nodes; more are asked for")
    rows = columns[:, None] + num_columns * configs[None, :]
    np.take(features.reshape(-1, width), rows, axis=0, out=places, mode="clip")  # "raise" would copy twice


def check_alike(graphs: Sequence[SegmentedGraph]) -> None:
    """Raise ValueError for graphs of one step that an encoder could not take together."""
    kinds = [
        {
            name: (array.dtype, array.shape[1:])
            for name, array in {"x": graph.node_features, **graph.node_data, **graph.edge_data}.items()
        }
        for graph in graphs
    ]
    for graph, kind in zip(graphs, kinds, strict=True):
        if kind != kinds[0]:
            name = next(name for name in {**kinds[0], **kind} if kind.get(name) != kinds[0].get(name))
            here, there = (_shown(each.get(name)) for each in (kind, kinds[0]))
            places = [str(place) for place, each in enumerate(kinds) if each.get(name) == kind.get(name)]
            listed = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
            label = "node_features" if name == "x" else repr(name)
            raise ValueError(
                f"{label} differs between graphs of one step: {here} for {graph.name!r} (graphs {listed} of "
                f"0..{len(graphs) - 1}), {there} for {graphs[0].name!r}; give all graphs the same columns"
            )


def _shown(kind: tuple[np.dtype, tuple[int, ...]] | None) -> str:
    return "missing" if kind is None else f"{kind[0]} with rows of shape {kind[1]}"


def _differentiable(
    graphs: Sequence[SegmentedGraph], picks: Sequence[tuple[int, int]], name: str, pointer: str, rows: Tensor
) -> Tensor:
    """Return `rows` of a batch, those of graphs with a source of that name as rows of it, so that it gets a gradient.

    Args:
        pointer: the field of a graph with the start of each segment among such rows."""
    if not any(name in vars(graph).get("sources", ()) for graph in graphs):
        return rows
    parts = []
    for (g, j), part in zip(
        picks, rows.split([int(np.diff(getattr(graphs[g], pointer))[j]) for g, j in picks]), strict=True
    ):
        graph = graphs[g]
        if (source := vars(graph).get("sources", {}).get(name)) is not None:
            numbers = graph.node_ids if pointer == "row_ptr" else vars(graph)["edge_ids"]
            start = getattr(graph, pointer)[j]
            part = source[torch.from_numpy(np.array(numbers[start : start + len(part)])).to(source.device)].to(part)
        parts.append(part)
    return torch.cat(parts)
