"""Encoders that remember a graph are refused, whatever they keep it in; all others are left as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gst
from gst.graphs.segments import SegmentedGraph

pyg = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric: pip install .[pyg]")
gcn_norm = pytest.importorskip("torch_geometric.nn.conv.gcn_conv").gcn_norm


def blocks(seed: int, method: str = "contiguous", num_blocks: int = 6) -> SegmentedGraph:
    """Blocks of 33 nodes with edges of their own: `contiguous` cuts equal segments, and `metis` unequal ones."""
    draw, nodes = np.random.default_rng(seed), 33 * num_blocks
    edges = np.stack([np.arange(nodes), np.arange(nodes) // 33 * 33 + draw.integers(33, size=nodes)])
    x = draw.normal(size=(nodes, 4)).astype(np.float32)
    return gst.segment(gst.Graph(x, edges), max_nodes=40, method=method)


class Layer(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.conv = layer

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class Normalised(Layer):
    """GCN whose normalisation is kept: the first one, or one for each number of nodes."""

    def __init__(self, by_size: bool) -> None:
        super().__init__(pyg.GCNConv(4, 8, normalize=False))
        self.norms: dict[int, Any] = {}
        self.by_size = by_size

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        key = len(x) if self.by_size else 0
        if key not in self.norms:
            self.norms[key] = gcn_norm(edge_index, None, len(x))
        return self.conv(x, *self.norms[key])


class Recurrent(Layer):
    """Adds a running mean of the embeddings of earlier calls, a buffer that is written in place."""

    def __init__(self) -> None:
        super().__init__(pyg.SAGEConv(4, 8))
        self.register_buffer("state", torch.zeros(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.conv(x, edge_index)
        self.state.mul_(0.9).add_(hidden.detach().mean(0))
        return hidden + self.state


class Helper:
    def __init__(self) -> None:
        self.edges: Tensor | None = None


class Held(Layer):
    """Keeps the first edges in an object that is no module."""

    def __init__(self) -> None:
        super().__init__(pyg.SAGEConv(4, 8))
        self.helper = Helper()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.helper.edges = edge_index if self.helper.edges is None else self.helper.edges
        return self.conv(x, self.helper.edges % len(x))


REMEMBERING = {
    "GCNConv": (lambda: Layer(pyg.GCNConv(4, 8, cached=True)), r"GCNConv remembers a graph \(conv.cached=True\)"),
    "SGConv": (lambda: Layer(pyg.SGConv(4, 8, cached=True)), r"SGConv remembers a graph \(conv.cached=True\)"),
    "APPNP": (lambda: Layer(pyg.APPNP(2, 0.1, cached=True)), r"APPNP remembers a graph \(conv.cached=True\)"),
    "first normalisation": (lambda: Normalised(False), r"Normalised remembers a graph \(norms\)"),
    "normalisation by size": (lambda: Normalised(True), r"Normalised remembers a graph \(norms\)"),
    "buffer": (Recurrent, r"Recurrent remembers a graph \(state\)"),
    "an object's attribute": (Held, "Held remembers a graph"),
}


@pytest.mark.parametrize(
    ("name", "method", "training"),
    [(name, ("contiguous", "metis")[place % 2], bool(place // 2 % 2)) for place, name in enumerate(REMEMBERING)],
)
def test_an_encoder_that_remembers_a_graph_is_refused_by_name(name: str, method: str, training: bool) -> None:
    make, message = REMEMBERING[name]
    model = gst.GraphSegmentTraining(make(), nn.Identity(), max_rows=40).train(training)
    with pytest.raises(ValueError, match=message):
        model([blocks(seed, method) for seed in range(2)])


class Forgetting(Layer):
    """Dropout, BatchNorm, a count of calls, and offsets that are kept for each number of nodes."""

    def __init__(self) -> None:
        super().__init__(pyg.GCNConv(4, 8))
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.calls, self.positions = 0, {}

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.calls += 1
        if len(x) not in self.positions:
            self.positions[len(x)] = torch.ones(len(x), 1)
        return self.dropout(self.norm(self.conv(x + self.positions[len(x)], edge_index)))


@pytest.mark.filterwarnings("ignore:the encoder holds BatchNorm")
@pytest.mark.parametrize("training", [False, True])
def test_the_check_changes_nothing(training: bool) -> None:
    def after_a_step(check: bool) -> tuple[Any, ...]:
        torch.manual_seed(0)
        encoder = Forgetting()
        model = gst.GraphSegmentTraining(encoder, nn.Identity(), check_encoder=check).train(training)
        prediction = model([blocks(seed) for seed in range(2)])
        return prediction, encoder.calls, sorted(encoder.positions), encoder.state_dict(), torch.get_rng_state()

    torch.testing.assert_close(after_a_step(True), after_a_step(False), rtol=0, atol=0)


def test_random_numbers_that_are_not_of_torch_are_no_memory() -> None:
    draw = np.random.default_rng(0)

    class Noisy(Layer):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x + float(draw.normal()), edge_index)

    gst.GraphSegmentTraining(Noisy(pyg.SAGEConv(4, 8)), nn.Identity())([blocks(0)])
