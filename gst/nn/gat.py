"""The graph attention network of Velickovic et al. 2018, for any number of configurations at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.nn.edges import neighbour_attention
from gst.nn.message_passing import BOTH, After, Before, Encoder, InputProjection, ResidualLayer
from gst.nn.sharing import Direction, Part, Sharing
from gst.nn.sparse import product


class GATConvolution(nn.Module):
    """Heads side by side, each the sum over u of alpha(u, v) W h(u), v itself among them (Velickovic et al. 2018, eq. 1
    to 5). The logit of an edge, a · [W h(v) || W h(u)], is a score of the receiver plus one of the sender."""

    def __init__(self, channels: int, directions: Sequence[Direction], heads: int) -> None:
        super().__init__()
        self.parts: tuple[Part, ...] = ("own", *directions)
        self.project = nn.Linear(channels, channels, bias=False)
        self.sent = nn.Parameter(torch.empty(heads, channels // heads))
        self.heard = nn.Parameter(torch.empty(heads, channels // heads))
        for weight in (self.project.weight, self.sent, self.heard):
            nn.init.xavier_uniform_(weight)

    def forward(self, rows: Before, sharing: Sharing, number: int) -> After:
        heard = product(sharing.matrix(number, ("own",)), self._scores(rows, self.heard))
        matrix = sharing.matrix(number, self.parts)
        return neighbour_attention(matrix, self.project(rows), self._scores(rows, self.sent), heard)

    def _scores(self, rows: Before, attention: Tensor) -> Float[Tensor, "before heads"]:
        """a · W h of each head as (W^T a) · h, so that a score costs one number and not a projection."""
        weight = (self.project.weight.unflatten(0, attention.shape) * attention[..., None]).sum(1)
        return nn.functional.linear(rows, weight)


class GAT(Encoder):
    """Graph attention encoder (GAT): the weight of a message depends on its sender and its receiver.

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config, directions, share: as of `SAGE`. Both directions
            are one relation, as in the undirected graphs of the paper.
        heads: attentions side by side, which share the channels.

    Raises:
        ValueError: the heads do not divide the channels.
    """

    def __init__(
        self, channels: int = 64, num_layers: int = 3, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True, directions: Sequence[Direction] = BOTH, share: bool = True, heads: int = 4,
    ) -> None:  # fmt: skip
        check_heads(channels, heads)
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        layers = [ResidualLayer(channels, GATConvolution(channels, directions, heads)) for _ in range(num_layers)]
        super().__init__(inputs, layers, directions, share)


def check_heads(channels: int, heads: int) -> None:
    if heads < 1 or channels % heads:
        raise ValueError(f"{heads} heads cannot share {channels} channels; take a number of heads that divides them")
