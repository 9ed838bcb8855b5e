"""Every convolution of PyG that takes `(x, edge_index)`, as an encoder: is exact evaluation that of the whole graph?

For each layer the table gives the least halo with which all segments give the embedding of the whole graph, or the
reason why the layer is refused.

    python -m experiments.drop_in.layers    # prints the table of docs/how-to/my_gnn.md
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import conv

import gst
from experiments.figures.documents import table

WIDTH, MOST_HALO = 8, 4
SETTINGS: dict[str, dict[str, Any]] = {
    "APPNP": {"K": 2, "alpha": 0.1}, "CGConv": {"channels": WIDTH},
    "ChebConv": {"K": 3}, "DNAConv": {"channels": WIDTH}, "EGConv": {"num_heads": 2},
    "FAConv": {"channels": WIDTH}, "GCN2Conv": {"channels": WIDTH, "alpha": 0.1}, "GINConv": {"nn": None},
    "GatedGraphConv": {"out_channels": WIDTH, "num_layers": 2}, "HypergraphConv": {}, "PANConv": {"filter_size": 2},
    "PNAConv": {"aggregators": ["mean"], "scalers": ["identity"], "deg": torch.tensor([1, 4, 9, 4])},
    "SSGConv": {"alpha": 0.1}, "SuperGATConv": {}, "TAGConv": {"K": 2}, "SGConv": {"K": 2},
    "EdgeConv": {"nn": 2 * WIDTH},
    "DynamicEdgeConv": {"nn": 2 * WIDTH, "k": 3}, "AntiSymmetricConv": {}, "DirGNNConv": {},
}  # fmt: skip
"""Arguments of a layer besides its widths; `nn` is the width of the input of a small network."""

NEEDS_MORE = "needs more than `(x, edge_index)` also on a whole graph: edge features, types, or another library"


class Encoder(nn.Module):
    """One layer, and the first of its outputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.ones(1))  # a model has the dtype of its parameters, and some layers have none

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        result = self.layer(x, edge_index)
        return self.scale * (result[0] if isinstance(result, tuple) else result)


def layers() -> dict[str, Callable[[], nn.Module]]:
    """Return makers of the convolutions whose `forward` needs `x` and `edge_index` alone."""
    makers = {}
    for name in conv.__all__:
        kind = getattr(conv, name)
        parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
        required = [each.name for each in parameters if each.default is each.empty]
        if required == ["x", "edge_index"]:
            makers[name] = partial(_make, kind, SETTINGS.get(name, {}))
    return dict(sorted(makers.items()))


def _make(kind: type[nn.Module], settings: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    taken = inspect.signature(kind.__init__).parameters
    widths = {name: WIDTH for name in ("in_channels", "out_channels") if name in taken}
    arguments = {**widths, **settings}
    if "nn" in arguments:
        arguments["nn"] = nn.Sequential(nn.Linear(arguments["nn"] or WIDTH, WIDTH), nn.Tanh())
    if kind is conv.DirGNNConv:
        arguments["conv"] = pyg.SAGEConv(WIDTH, WIDTH)
    return kind(**arguments)


def graph() -> Data:
    """Return a ring of 48 nodes with chords to near nodes, so that a halo does not reach all of them."""
    generator, nodes = torch.Generator().manual_seed(0), torch.arange(48)
    steps = torch.randint(2, 4, (48,), generator=generator)
    edges = torch.cat([torch.stack([nodes, (nodes + 1) % 48]), torch.stack([nodes, (nodes + steps) % 48])], 1)
    x = torch.randn(48, WIDTH, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1))


def outcome(make: Callable[[], nn.Module], data: Data) -> str:
    """Return the least halo with which the prediction is that of the whole graph, or the reason of a refusal."""
    try:
        layer = make().double().eval()
        with torch.no_grad():
            whole = layer(data.x, data.edge_index)
    except Exception:
        return NEEDS_MORE
    encoder = Encoder(layer)
    parts = (torch.arange(len(data.x)) // 12).numpy()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            model = gst.GraphSegmentTraining(encoder, nn.Identity()).double().eval()
            want = (whole[0] if isinstance(whole, tuple) else whole).mean(0, keepdim=True)
            for halo in range(MOST_HALO + 1):
                if torch.allclose(model([gst.segment(data, parts=parts, halo=halo)]), want, rtol=0, atol=1e-9):
                    return f"halo {halo}"
    except Exception as error:  # of the layer, which says what it cannot take
        return f"refused: {type(error).__name__} of the layer itself"
    return "differs: no halo is deep enough"


def outcomes() -> str:
    """Return the table of layers by outcome."""
    data, by_outcome = graph(), dict[str, list[str]]()
    for name, make in layers().items():
        by_outcome.setdefault(outcome(make, data), []).append(name)
    return table(
        ("least halo, or reason", "layers"), [(each, ", ".join(by_outcome[each])) for each in sorted(by_outcome)]
    )


if __name__ == "__main__":
    print(outcomes())
