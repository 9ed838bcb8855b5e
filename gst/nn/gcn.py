"""The graph convolutional network of Kipf and Welling 2017, for any number of configurations at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gst.nn.message_passing import BOTH, After, Before, Encoder, InputProjection, ResidualLayer
from gst.nn.sharing import Direction, Part, Sharing
from gst.nn.sparse import product


class GCNConvolution(nn.Module):
    """D^-1/2 (A + I) D^-1/2 H W (Kipf and Welling 2017, eq. 2); A holds the edges of all directions in use."""

    def __init__(self, channels: int, directions: Sequence[Direction]) -> None:
        super().__init__()
        self.parts: tuple[Part, ...] = ("own", *directions)
        self.project = nn.Linear(channels, channels, bias=False)

    def forward(self, rows: Before, sharing: Sharing, number: int) -> After:
        return product(sharing.matrix(number, self.parts, "symmetric"), self.project(rows))


class GCN(Encoder):
    """Graph convolutional encoder (GCN): a sum over neighbours and the node itself, scaled by square roots of degrees.

    A message weighs by the degree of its sender, so a segment sees what the whole graph sees with a `halo` of one hop
    more than there are layers.

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config, directions, share: as of `SAGE`. Both directions
            are one relation, as in the undirected graphs of the paper.
    """

    def __init__(
        self, channels: int = 64, num_layers: int = 3, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True, directions: Sequence[Direction] = BOTH, share: bool = True,
    ) -> None:  # fmt: skip
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        layers = [ResidualLayer(channels, GCNConvolution(channels, directions)) for _ in range(num_layers)]
        super().__init__(inputs, layers, directions, share)
