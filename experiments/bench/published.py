"""Programs of the size and shape of TpuGraphs' layout collections, and the network published with them.

`PublishedSAGE` is the TPUModel of the published GST code (Cao et al. 2023) on this project's messages. It serves the
comparison of speed: the same layers, widths and readout, so the same arithmetic per node and configuration, but with
whatever the framework saves. Dropout is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.data.tpugraphs import TpuGraphs
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import NodeStates, SegmentBatch
from gst.method.fixed_batch import Sizes
from gst.method.readouts import pool_nodes
from gst.nn.plans import FixedPlans, planned
from gst.nn.sharing import Plan, PlanOptions
from gst.nn.sparse import by_rows, product

SIZES = (4000, 7500, 5500, 9000, 6000, 7000)
LAYOUTS = 6  # that a tensor may have


def programs(data: Path | None, seed: int = 0) -> list[Graph]:
    """The npz files below `data`, or six made ones of 4,000 to 9,000 nodes.

    Raises:
        ValueError: there are no files.
    """
    if data is None:
        return [layout_program(nodes, seed + i) for i, nodes in enumerate(SIZES)]
    return list(TpuGraphs([str(data / "**" / "*.npz")]))


def layout_program(num_nodes: int, seed: int, num_configs: int = 200) -> Graph:
    """Make a graph with 140 node features, 1.7 edges per node and 8 % configurable nodes, as AlexNet's has. Each of the
    18 configuration columns is part of one of three tensor layouts. The runtime is additive, with noise."""
    random = np.random.default_rng(seed)
    nodes = np.arange(1, num_nodes)
    near = nodes - np.minimum(random.geometric(0.3, len(nodes)), nodes)
    far_ends = random.choice(nodes, int(0.7 * num_nodes))
    far = far_ends - np.minimum(random.geometric(0.05, len(far_ends)), far_ends)
    edges = np.unique(np.stack([np.append(near, far), np.append(nodes, far_ends)]), axis=1)
    step = random.integers(1, 24, num_nodes)
    config_nodes = np.unique(np.minimum(np.cumsum(step), num_nodes - 1)[: int(0.08 * num_nodes)])
    layouts = random.integers(-1, 6, (LAYOUTS, 6)).astype(np.int8)
    chosen = random.integers(LAYOUTS, size=(num_configs, len(config_nodes), 3))
    cost = random.lognormal(0, 1, (len(config_nodes), 3, LAYOUTS))
    runtime = cost[np.arange(len(config_nodes))[:, None], np.arange(3), chosen].sum((1, 2))
    return Graph(
        random.normal(size=(num_nodes, 140)).astype(np.float32),
        edges,
        random.integers(0, 120, num_nodes),
        config_nodes,
        layouts[chosen].reshape(num_configs, len(config_nodes), 18),
        np.round(1e4 * runtime * random.normal(1, 0.005, num_configs)),
        name=f"layout-{num_nodes}-{seed}",
    )


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

    @property
    def _plan(self) -> PlanOptions:
        return PlanOptions(len(self.mix), ("backward",), self.share)

    def fixed_plans(self, sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int) -> FixedPlans:
        """Plans for training steps of fixed shapes."""
        return FixedPlans(self._plan, sizes, graphs, num_fresh)

    def forward(self, batch: SegmentBatch) -> Float[Tensor, "segments configs 1"]:
        sharing = planned(batch, self._plan)
        rows = _of_length_one(self.widen(self._inputs(batch, sharing)))
        for number, (mix, bias) in enumerate(zip(self.mix, self.bias, strict=True)):
            parts = sharing.matrix(number, ("own", "backward"), "mean", stacked=True)
            rows = product(parts, mix(rows).view(-1, rows.shape[1]))
            rows.add_(bias.to(rows.dtype))
        states = NodeStates(rows, sharing.row_of())
        largest = pool_nodes(states, batch, "max").nan_to_num(neginf=0.0)  # of a segment that is padding
        pooled = _of_length_one(largest + pool_nodes(states, batch, "mean"))
        return self.score(_of_length_one(self.hidden(pooled).relu())).float()

    def _inputs(self, batch: SegmentBatch, sharing: Plan) -> Float[Tensor, "rows 128"]:
        known = by_rows(self.static, torch.cat([batch.node_features, SCALE * self.opcode(batch.opcodes)], dim=1))
        nodes, rows, (slots, configs) = sharing.inputs()
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
