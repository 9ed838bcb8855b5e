"""What an encoder gets and returns: segments side by side as one graph, and the states of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gst.graphs.segments import SegmentedGraph


@dataclass(frozen=True, eq=False)
class SegmentBatch:
    """Input of an encoder: segments side by side as one disconnected graph. No edge joins two segments.

    Args:
        node_features: what is known of a node whatever the configuration.
        opcodes: kind of each node.
        edge_index: row 0 holds producers, row 1 consumers (the order PyG's `source_to_target` expects), sorted by
            consumer.
        segment_of_node: which of the `segments` each node stands in.
        owned: False for context nodes (`halo` of `gst.segment`), which send messages and are not pooled.
        node_counts: owned nodes of each segment.
        config_nodes: the configurable nodes of the batch.
        config_features: what each configuration gives each of them. Segments of different graphs hold the
            configurations of their own graph in the same column.
        plans: what encoders worked out from the batch alone, to be used again.
        host: the batch in memory of the host, if this one is on an accelerator: what plans are made from.
    """

    node_features: Float[Tensor, "nodes features"]
    opcodes: Int64[Tensor, " nodes"]
    edge_index: Int64[Tensor, "2 edges"]
    segment_of_node: Int64[Tensor, " nodes"]
    owned: Bool[Tensor, " nodes"]
    node_counts: Int64[Tensor, " segments"]
    config_nodes: Int64[Tensor, " configurable"]
    config_features: Float[Tensor, "configurable configs channels"]
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

    def to(self, device: torch.device, dtype: torch.dtype) -> SegmentBatch:
        """The same batch on `device`, its features as `dtype`."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True)

        moved = SegmentBatch(*(move(getattr(self, entry.name)) for entry in fields(self) if entry.init))
        if device.type != "cpu":
            object.__setattr__(moved, "host", self.on_host)
        return moved

    @property
    def on_host(self) -> SegmentBatch:
        """This batch, if it is in memory of the host, or the one it was copied from."""
        return self.host or self

    def pinned(self) -> SegmentBatch:
        """The same batch in memory that an accelerator can fetch from while the host goes on."""
        return SegmentBatch(*(getattr(self, entry.name).pin_memory() for entry in fields(self) if entry.init))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Tell the allocator that work on `stream` uses these tensors, though another one made them."""
        for entry in fields(self):
            if entry.init:
                getattr(self, entry.name).record_stream(stream)

    def expanded(self) -> tuple[Float[Tensor, "rows width"], Int64[Tensor, "2 edges"]]:
        """One copy of the batch per configuration, as `(x, edge_index)` for a GNN that knows no configurations.

        `x` holds the node features, then the features of the configuration (zeros at nodes that it does not touch).
        """
        configs, nodes = self.num_configs, self.num_nodes
        per_node = self.node_features.new_zeros(configs, nodes, self.config_features.shape[2])
        per_node[:, self.config_nodes] = self.config_features.transpose(0, 1)
        x = torch.cat([self.node_features.expand(configs, -1, -1), per_node], dim=-1)
        shift = torch.arange(configs, device=self.edge_index.device) * nodes
        edge_index = self.edge_index[:, None, :] + shift[None, :, None]
        return x.flatten(0, 1), edge_index.flatten(1)


@dataclass(frozen=True, eq=False)
class NodeStates:
    """Embeddings of the nodes of a batch under every configuration, without the repetitions.

    Args:
        rows: the embeddings.
        row_of: which of the rows is that of each node under each configuration. No row belongs to two nodes.
    """

    rows: Float[Tensor, "rows channels"]
    row_of: Int64[Tensor, "nodes configs"]

    def dense(self) -> Float[Tensor, "nodes configs channels"]:
        """With the repetitions."""
        return self.rows[self.row_of]


def assemble(
    graphs: Sequence[SegmentedGraph],
    picks: Sequence[tuple[int, int]],
    configs: Int64[Tensor, "graphs configs"],
) -> SegmentBatch:
    """Put segments side by side.

    Args:
        picks: (position in `graphs`, segment of that graph) of each segment of the batch.
        configs: configurations of each graph; -1 (padding) repeats the graph's first one.

    Raises:
        ValueError: two of the graphs have configurations of different numbers of features.
    """
    widths = {graph.config_features.shape[2]: graph.name for graph in graphs if graph.config_features.shape[1]}
    if len(widths) > 1:
        (narrow, one), (wide, other) = sorted(widths.items())[:2]
        raise ValueError(
            f"graphs {one!r} and {other!r} of one step have configurations of {narrow} and {wide} features; pad the "
            "narrower ones with zeros, or train on one kind at a time"
        )
    width = max(widths, default=max(graph.config_features.shape[2] for graph in graphs))
    chosen = configs.clamp(min=0).numpy()
    parts: dict[str, list[np.ndarray]] = {key: [] for key in ("x", "op", "edges", "rows", "config")}
    parts["config"].append(np.zeros((0, chosen.shape[1], width), np.float32))
    row_counts, owned_counts = [], []
    start = 0
    for g, j in picks:
        graph = graphs[g]
        rows = slice(graph.row_ptr[j], graph.row_ptr[j + 1])
        uses = slice(graph.config_ptr[j], graph.config_ptr[j + 1])
        columns = graph.config_columns[uses]
        parts["x"].append(graph.node_features[rows])
        parts["op"].append(graph.opcodes[rows])
        parts["edges"].append(graph.edges[:, graph.edge_ptr[j] : graph.edge_ptr[j + 1]].astype(np.int64) + start)
        parts["rows"].append(graph.config_rows[uses].astype(np.int64) + start)
        if len(columns):
            features = graph.config_features[chosen[g][None, :], columns[:, None]]
            parts["config"].append(features.astype(np.float32))
        row_counts.append(rows.stop - rows.start)
        owned_counts.append(graph.owned_counts[j])
        start += row_counts[-1]
    lengths, owned = np.array(row_counts), np.array(owned_counts)
    within = np.arange(start) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    segment_of_node = np.repeat(np.arange(len(picks)), lengths)
    tensor = torch.from_numpy
    return SegmentBatch(
        node_features=tensor(np.concatenate(parts["x"])),
        opcodes=tensor(np.concatenate(parts["op"]).astype(np.int64)),
        edge_index=tensor(np.concatenate(parts["edges"], axis=1)),
        segment_of_node=tensor(segment_of_node),
        owned=tensor(within < owned[segment_of_node]),
        node_counts=tensor(owned.astype(np.int64)),
        config_nodes=tensor(np.concatenate(parts["rows"])),
        config_features=tensor(np.concatenate(parts["config"])),
    )
