"""A decoder of transformer blocks with the normalisation first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, training_step
from gst.programs.workloads.drawing import divided, drawn, tokens


class CausalAttention(nn.Module):
    """Each position attends to itself and those before it (Vaswani et al., 2017, arXiv 1706.03762, section 3.2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, divided(width, heads, "heads")
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)  # softmax would take a bias out again
        self.out = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        batch, length, width = x.shape
        query, key, value = (
            project(x).view(batch, length, self.heads, self.size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) * self.size**-0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Sequential):
    """Two layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed(norm(x)); `feed` acts on each position."""

    def __init__(self, width: int, heads: int, feed: nn.Module) -> None:
        super().__init__()
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feed = CausalAttention(width, heads), feed

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        x = x + self.attention(self.norm_attention(x))
        return x + self.feed(self.norm_feed(x))


class Decoder(nn.Module):
    """Token and position embeddings, blocks, and logits by the token embedding (a tied weight)."""

    def __init__(
        self, layers: int, width: int, heads: int, length: int, vocabulary: int, feed: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads, feed()) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        x = self.blocks(self.embedding(tokens) + self.position)
        return self.norm(x) @ self.embedding.weight.T


def next_token_loss(
    model: nn.Module, inputs: Int64[Tensor, "batch length"], targets: Int64[Tensor, "batch length"]
) -> Float[Tensor, ""]:
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def gpt(
    layers: int = 6, width: int = 192, heads: int = 6, length: int = 64, batch: int = 4, vocabulary: int = 1000,
    optimizer: str = "adam", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """A language model like GPT-2 (Radford et al., 2019, section 2.3)."""
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: Decoder(layers, width, heads, length, vocabulary, lambda: FeedForward(width)), generator)
    batch_of_tokens = tokens(batch, length, vocabulary, generator)
    rate = 0.1 if optimizer == "sgd" else 3e-3
    return training_step(f"gpt-{layers}", model, next_token_loss, batch_of_tokens, optimizer, rate)
