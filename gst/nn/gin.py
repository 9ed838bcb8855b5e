"""The graph isomorphism network of Xu et al. 2019, for any number of configurations at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gst.nn.message_passing import BOTH, After, Before, Encoder, InputProjection, ResidualLayer
from gst.nn.sharing import Direction, Part, Sharing
from gst.nn.sparse import product


class GINConvolution(nn.Module):
    """MLP((1 + eps) h + sum of neighbours), eps learnt (Xu et al. 2019, eq. 4.1)."""

    def __init__(self, channels: int, directions: Sequence[Direction]) -> None:
        super().__init__()
        self.parts: tuple[Part, ...] = tuple(directions)
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))

    def forward(self, rows: Before, sharing: Sharing, number: int) -> After:
        own = product(sharing.matrix(number, ("own",)), rows)
        return self.mlp((1 + self.eps) * own + product(sharing.matrix(number, self.parts), rows))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Earlier checkpoints have an eps without an axis."""
        if (name := f"{prefix}eps") in state_dict:
            state_dict[name] = state_dict[name].view(1)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class GIN(Encoder):
    """Graph isomorphism encoder (GIN): messages are summed, not averaged, so that repeated neighbours count.

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config, directions, share: as of `SAGE`. Both directions
            are one relation, as in the undirected graphs of the paper.
    """

    def __init__(
        self, channels: int = 64, num_layers: int = 3, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True, directions: Sequence[Direction] = BOTH, share: bool = True,
    ) -> None:  # fmt: skip
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        layers = [ResidualLayer(channels, GINConvolution(channels, directions)) for _ in range(num_layers)]
        super().__init__(inputs, layers, directions, share)
