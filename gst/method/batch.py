"""What an encoder sees: some segments of some graphs, under some configurations, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SegmentBatch:
    """Segments as one disconnected graph. No edge leads from one segment to another.

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

        return SegmentBatch(*(move(getattr(self, entry.name)) for entry in fields(self) if entry.init))

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
        given = self.node_features.new_zeros(configs, nodes, self.config_features.shape[2])
        given[:, self.config_nodes] = self.config_features.transpose(0, 1)
        x = torch.cat([self.node_features.expand(configs, -1, -1), given], dim=-1)
        shift = torch.arange(configs, device=self.edge_index.device) * nodes
        edge_index = self.edge_index[:, None, :] + shift[None, :, None]
        return x.flatten(0, 1), edge_index.flatten(1)
