"""The network of the published GST code for TpuGraphs (Cao et al. 2023, its TPUModel), on this project's messages.

It serves the comparison of speed: the same layers, widths and readout, so the same arithmetic per node and
configuration, but with whatever the framework saves. Dropout is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.graphs.graph import Graph
from gst.method.batch import NodeStates, SegmentBatch
from gst.method.pooling import pool_nodes
from gst.nn.sharing import Sharing
from gst.nn.sparse import by_rows, product

SCALE = 100.0  # of opcode embeddings and configurations, where the published weights start


class PublishedSAGE(nn.Module):
    """`SegmentBatch` -> one score per segment and configuration; the score of a graph is their sum.

    286 inputs -> 128 -> channels, PReLU, rows of length 1; then SAGE layers (mean over consumers) with nothing between
    them; max + mean over the nodes of a segment, length 1, and a head of two layers.

    Args:
        share: compute equal states once.
    """

    def __init__(self, channels: int = 256, num_layers: int = 3, num_opcodes: int = 128, share: bool = True) -> None:
        super().__init__()
        self.opcode = nn.Embedding(num_opcodes, 128)
        self.static = nn.Linear(140 + 128, 128)
        self.config = nn.Linear(18, 128, bias=False)
        self.widen = nn.Sequential(nn.Linear(128, channels), nn.PReLU())
        self.mix = nn.ModuleList(nn.Linear(channels, 2 * channels, bias=False) for _ in range(num_layers))
        self.bias = nn.Parameter(torch.zeros(num_layers, channels))
        self.hidden, self.score = nn.Linear(channels, channels), nn.Linear(channels, 1)
        self.share = share

    def forward(self, batch: SegmentBatch) -> Float[Tensor, "segments configs 1"]:
        sharing = Sharing.of(batch, len(self.mix), ("backward",), self.share)
        rows = _of_length_one(self.widen(self._inputs(batch, sharing)))
        for number, (mix, bias) in enumerate(zip(self.mix, self.bias, strict=True)):
            parts = sharing.matrix(number, ("own", "backward"), "mean", stacked=True)
            rows = product(parts, mix(rows).view(-1, rows.shape[1]))
            rows.add_(bias.to(rows.dtype))
        states = NodeStates(rows, sharing.row_of())
        pooled = _of_length_one(pool_nodes(states, batch, "max") + pool_nodes(states, batch, "mean"))
        return self.score(_of_length_one(self.hidden(pooled).relu())).float()

    def _inputs(self, batch: SegmentBatch, sharing: Sharing) -> Float[Tensor, "rows 128"]:
        known = by_rows(self.static, torch.cat([batch.node_features, SCALE * self.opcode(batch.opcodes)], dim=1))
        nodes, rows, (slots, configs) = sharing.inputs(batch)
        given = by_rows(self.config, SCALE * batch.config_features[slots, configs])
        return product(nodes, known).index_add(0, rows, given)


def _of_length_one(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=-1)


def standardised(graphs: Sequence[Graph]) -> list[Graph]:
    """Node features less their mean, in standard deviations, over all nodes of all graphs."""
    together = torch.cat([torch.from_numpy(graph.node_features) for graph in graphs])
    mean, deviation = together.mean(0).numpy(), together.std(0).numpy()
    deviation[deviation < 1e-6] = 1.0
    return [
        Graph(
            (graph.node_features - mean) / deviation, graph.edges, graph.opcodes, graph.config_nodes,
            graph.config_features, graph.targets, graph.counts, graph.spreads, graph.name,
        )
        for graph in graphs
    ]  # fmt: skip
