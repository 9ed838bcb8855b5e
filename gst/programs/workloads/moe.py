"""Transformer blocks whose feed-forward layer is a mixture of experts, each a branch of its own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.programs.step import TrainingStep, training_step
from gst.programs.workloads.drawing import drawn, tokens
from gst.programs.workloads.gpt import Decoder, FeedForward, next_token_loss

CHOSEN = 2  # experts per token
SLACK = 1.25  # capacity of an expert, over its fair share


class Mixture(nn.Module):
    """Every token is sent to the two experts that its gate prefers, as far as these have room.

    Shapes do not depend on values (Lepikhin et al., 2020, arXiv 2006.16668, Algorithm 1): a product with a matrix of
    zeros and ones brings tokens to the places of an expert, and one with the gates brings the results back. What an
    expert has no room for passes by on the residual connection.
    """

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(width) for _ in range(experts))

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        rows = x.flatten(0, 1)
        weights = self._weights(torch.softmax(self.gate(rows), dim=1), int(CHOSEN * SLACK * len(rows)))
        sent = (weights > 0).to(rows.dtype)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            mixed = mixed + weights[:, number] @ expert(sent[:, number].T @ rows)
        return mixed.view_as(x)

    def _weights(self, gates: Float[Tensor, "tokens experts"], places: int) -> Float[Tensor, "tokens experts capacity"]:
        """What the result at each place of each expert counts for each token."""
        experts = gates.shape[1]
        capacity = -(-places // experts)
        chosen = gates >= gates.topk(min(CHOSEN, experts), dim=1).values[:, -1:]
        place = chosen.long().cumsum(0) - 1  # first come, first served
        there = place[:, :, None] == torch.arange(capacity)
        return torch.where(there & chosen[:, :, None], gates[:, :, None], 0.0)


def moe(
    layers: int = 4, width: int = 128, experts: int = 4, heads: int = 4, length: int = 64, batch: int = 4,
    vocabulary: int = 1000, optimizer: str = "adam", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """A language model with a mixture of experts in every block (Fedus et al., 2021, arXiv 2101.03961, section 2)."""
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: Decoder(layers, width, heads, length, vocabulary, lambda: Mixture(width, experts)), generator)
    batch_of_tokens = tokens(batch, length, vocabulary, generator)
    rate = 0.1 if optimizer == "sgd" else 3e-3
    return training_step(f"moe-{layers}", model, next_token_loss, batch_of_tokens, optimizer, rate)
