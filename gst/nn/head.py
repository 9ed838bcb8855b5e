"""From the pooled embedding of a graph to its score."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class Head(nn.Module):
    """One number per graph and configuration: a linear term, which a sum over nodes deserves, plus an MLP.

    Args:
        channels: width of the embedding and of the hidden layer of the MLP.
    """

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, 1)
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, 1))

    def forward(self, embedding: Float[Tensor, "graphs configs channels"]) -> Float[Tensor, "graphs configs"]:
        return (self.linear(embedding) + self.mlp(embedding)).squeeze(-1)
