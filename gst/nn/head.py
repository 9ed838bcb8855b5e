"""Heads: from the pooled embeddings of a graph to a score for each configuration."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class Head(nn.Module):
    """Score of each graph and configuration from its pooled embedding: a linear term plus an MLP.

    Args:
        channels: width of the embedding and of the hidden layer of the MLP.
        outputs: numbers per graph and configuration; if more than one (classes), they are the last axis.

    Examples:
        >>> import torch
        >>> Head(channels=8)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(self, channels: int = 64, outputs: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, outputs)
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, outputs))

    def forward(self, embedding: Float[Tensor, "graphs configs channels"]) -> Float[Tensor, "graphs configs *classes"]:
        scores = self.linear(embedding) + self.mlp(embedding)
        return scores.squeeze(-1) if scores.shape[-1] == 1 else scores
