"""Late fusion for tile sizes: the graph is encoded once, and what a configuration means is joined to its embedding.

Early fusion gives every node the configuration, so that a kernel with 500 configurations is encoded 500 times; joined
after pooling (the late join of Phothilimthana et al. 2023, section 4.2), a configuration costs one small MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from gst.cost.losses import list_mle
from gst.graphs.graph import Graph
from gst.graphs.segments import segment
from gst.method.batch import SegmentBatch, assemble
from gst.method.encoding import Call, embed_segments
from gst.nn import SAGE

Features = Float64[np.ndarray, "configs features"]
Row = Float[Tensor, " features"]


@dataclass(frozen=True)
class Settings:
    """Of the network and its training.

    Args:
        channels, layers: of the encoder.
        embedding: numbers that a graph is reduced to before configurations are joined.
        hidden: of the MLP.
        graph: whether the graph enters at all.
        steps, learning_rate: of AdamW, under a cosine.
        configs: drawn of each kernel in each step; every kernel counts alike, however many it has.
    """

    channels: int = 16
    layers: int = 2
    embedding: int = 8
    hidden: int = 32
    graph: bool = True
    steps: int = 200
    learning_rate: float = 1e-2
    configs: int = 64


class LateFusion(nn.Module):
    """score = linear(z) + MLP(z, e): z the standardised features of a configuration, e the embedding of its graph.
    The higher, the slower; comparable within a graph.

    Args:
        centre, scale: what standardises the features.
    """

    def __init__(self, settings: Settings, centre: Row, scale: Row) -> None:
        super().__init__()
        self.settings, self.centre, self.scale = settings, centre, scale
        self.encoder = SAGE(settings.channels, settings.layers)
        self.reduce = nn.Linear(settings.channels, settings.embedding)
        self.linear = nn.Linear(len(centre), 1)
        joined = len(centre) + settings.embedding * settings.graph
        self.mlp = nn.Sequential(nn.Linear(joined, settings.hidden), nn.SiLU(), nn.Linear(settings.hidden, 1))

    def forward(
        self, batch: SegmentBatch, features: Float[Tensor, "graphs configs features"]
    ) -> Float[Tensor, "graphs configs"]:
        z = (features - self.centre) / self.scale
        joined = z
        if self.settings.graph:
            embedding = self.reduce(embed_segments(self.encoder, batch, Call("batch"), "mean"))
            joined = torch.cat([z, embedding.expand(-1, z.shape[1], -1)], dim=2)
        return (self.linear(z) + self.mlp(joined)).squeeze(2)

    def score(self, graph: Graph, features: Features) -> Float64[np.ndarray, " configs"]:
        """Scores of all configurations of one graph."""
        with torch.no_grad():
            return self(side_by_side([graph]), torch.from_numpy(features).float()[None])[0].double().numpy()


def side_by_side(graphs: Sequence[Graph]) -> SegmentBatch:
    """Graphs without their configurations, a segment each."""
    whole = [segment(Graph(g.node_features, g.edges, g.opcodes, name=g.name), g.num_nodes) for g in graphs]
    return assemble(whole, [(i, 0) for i in range(len(whole))], torch.zeros(len(whole), 1, dtype=torch.long))


def fit_late_fusion(graphs: Sequence[Graph], features: Sequence[Features], settings: Settings, seed: int) -> LateFusion:
    """Learn the order of the configurations of each graph, by ListMLE on a few of each in every step."""
    rows = [torch.from_numpy(each).float() for each in features]
    targets = [torch.from_numpy(graph.targets) for graph in graphs]
    means = torch.stack([each.mean(0) for each in rows])
    within = torch.cat([each - mean for each, mean in zip(rows, means, strict=True)]).std(0)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LateFusion(settings, means.mean(0), within.clamp(min=1e-6))
        batch = side_by_side(graphs)
        model(batch, torch.stack([each[:1] for each in rows]))  # gives lazy layers their widths
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    for _ in range(settings.steps):
        picks = [torch.randperm(len(each), generator=generator)[: settings.configs] for each in rows]
        few, known = _padded(rows, picks, 0.0), _padded(targets, picks, torch.nan)
        loss = list_mle(model(batch, few), known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


def _padded(values: Sequence[Tensor], picks: Sequence[Tensor], padding: float) -> Tensor:
    chosen = [each[pick] for each, pick in zip(values, picks, strict=True)]
    return nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=padding)
