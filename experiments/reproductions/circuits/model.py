"""Model of a recipe on a circuit: Graph Segment Training of an encoder of the circuit, and commands as maps of a state.

The recipe is a configuration of the graph as a whole, so it enters after pooling: a circuit is embedded once, whatever
the number of recipes. The model predicts the logarithms of ANDs and levels after each command, as labels tell them; the
order of recipes by ANDs after the last one is what is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from experiments.reproductions.circuits.features import COUNTS, KINDS
from experiments.reproductions.circuits.recipes import LETTERS
from gst.graphs.segments import SegmentedGraph
from gst.method.estimator import GraphSegmentTraining
from gst.nn import GCN, SAGE
from gst.util.untrusted import shown

Sees = Literal["graph", "statistics", "counts"]
"""What a model sees of a circuit: graph, statistics and counts; statistics and counts; or counts alone."""

Logs = Float[Tensor, "graphs recipes commands 2"]
"""Log ratios of ANDs and levels to those of the circuit, after each command."""


class CommandMaps(nn.Module):
    """Decoder in which each command is an affine map of the state of the circuit.

    A state holds how much waste of several sorts is left; a command takes a share of each sort and turns some of it
    into other sorts. The state before the first command comes from what describes the circuit, and ANDs and levels are
    read off how far the state has moved. The maps are the same for all circuits.

    Args:
        width: numbers that describe a circuit.
        sorts: numbers in a state.
    """

    def __init__(self, width: int, sorts: int = 8, hidden: int = 32, dropout: float = 0.3) -> None:
        super().__init__()
        self.start = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, sorts)
        )
        nn.init.normal_(self.start[-1].weight, std=0.05)  # type: ignore[arg-type]
        nn.init.normal_(self.start[-1].bias, std=0.3)  # type: ignore[arg-type]
        self.maps = nn.Parameter(0.95 * torch.eye(sorts) + 0.05 * torch.randn(len(LETTERS), sorts, sorts))
        self.shifts = nn.Parameter(torch.zeros(len(LETTERS), sorts))
        self.readout = nn.Parameter(0.05 * torch.randn(2, sorts))

    def forward(
        self, described: Float[Tensor, "graphs width"], recipes: Int64[Tensor, "graphs recipes commands"]
    ) -> Logs:
        start = self.start(described)[:, None].expand(-1, recipes.shape[1], -1)
        state, changes = start, []
        for command in recipes.unbind(2):
            state = torch.einsum("grij,grj->gri", self.maps[command], state) + self.shifts[command]
            changes.append((state - start) @ self.readout.T)
        return torch.stack(changes, 2)


class RecipeConvolution(nn.Module):
    """Decoder of the form of OpenABC-D's network: convolutions over the embedded commands, then a perceptron of the
    recipe with the circuit, which predicts ANDs and levels after the last command alone.

    Args:
        width: numbers that describe a circuit.
    """

    def __init__(self, width: int, hidden: int = 32) -> None:
        super().__init__()
        self.command = nn.Embedding(len(LETTERS), 8)
        self.convolutions = nn.ModuleList(nn.Conv1d(8, 8, size, padding="same") for size in (3, 5, 7, 9))
        self.last = nn.Sequential(
            nn.Linear(width + 8 * len(self.convolutions) * 4, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )

    def forward(
        self, described: Float[Tensor, "graphs width"], recipes: Int64[Tensor, "graphs recipes commands"]
    ) -> Logs:
        commands = self.command(recipes).flatten(0, 1).transpose(1, 2)
        pooled = [nn.functional.adaptive_max_pool1d(each(commands).relu(), 4) for each in self.convolutions]
        recipe = torch.cat(pooled, 1).flatten(1).view(*recipes.shape[:2], -1)
        each = described[:, None].expand(-1, recipes.shape[1], -1)
        return self.last(torch.cat([each, recipe], -1))[:, :, None].expand(-1, -1, recipes.shape[2], -1)


class SynthesisModel(nn.Module):
    """Log ratios of ANDs and levels of circuits over recipes.

    Args:
        sees: what it sees of a circuit.
        num_statistics: number of statistics of a circuit besides `COUNTS`.
        published: the form of OpenABC-D's network, a GCN and `RecipeConvolution`, instead of GraphSAGE and
            `CommandMaps`.
        estimator: further arguments of `GraphSegmentTraining`.
    """

    def __init__(
        self, sees: Sees = "graph", num_statistics: int = 31, channels: int = 16, num_layers: int = 2, sorts: int = 8,
        published: bool = False, **estimator: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if sees not in get_args(Sees):
            raise ValueError(f"a model sees {shown(sees)}; want one of {', '.join(get_args(Sees))}")
        self.settings: dict[str, Any] = {
            "sees": sees, "num_statistics": num_statistics, "channels": channels, "num_layers": num_layers,
            "sorts": sorts, "published": published,
        }  # fmt: skip
        width = len(COUNTS) + (num_statistics if sees != "counts" else 0)
        if published:
            width = len(COUNTS)
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))
        self.segments: GraphSegmentTraining | None = None
        if sees == "graph":
            kind = GCN if published else SAGE
            encoder = kind(channels=channels, num_layers=num_layers, num_opcodes=len(KINDS))
            self.segments = GraphSegmentTraining(encoder, nn.Identity(), "mean", **estimator)
            self.norm = nn.LayerNorm(channels)
            width += channels
        self.decoder = RecipeConvolution(width) if published else CommandMaps(width, sorts)

    def forward(
        self, graphs: Sequence[SegmentedGraph], numbers: Float[Tensor, "graphs numbers"],
        recipes: Int64[Tensor, "graphs recipes commands"],
    ) -> Logs:  # fmt: skip
        """In training mode one step of Graph Segment Training.

        Args:
            numbers: counts and statistics of each circuit.
        """
        described = ((numbers[:, : len(self.mean)] - self.mean) / self.deviation).clamp(-3, 3)
        if self.segments is not None:
            pooled = self.segments(graphs, torch.zeros(len(graphs), 1, dtype=torch.int64))[:, 0]
            described = torch.cat([described, self.norm(pooled)], 1)
        return self.decoder(described, recipes)
