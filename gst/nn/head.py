"""From the pooled embedding of a graph to its score."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class Head(nn.Module):
    """One number per graph and configuration: a linear term, which a sum over nodes deserves, plus an MLP.

    Args:
        channels: width of the embedding and of the hidden layer of the MLP.
        outputs: numbers per graph and configuration; if more than one (classes), they are the last axis.
    """

    def __init__(self, channels: int = 64, outputs: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, outputs)
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, outputs))

    def forward(self, embedding: Float[Tensor, "graphs configs channels"]) -> Float[Tensor, "graphs configs *classes"]:
        scores = self.linear(embedding) + self.mlp(embedding)
        return scores.squeeze(-1) if scores.shape[-1] == 1 else scores
