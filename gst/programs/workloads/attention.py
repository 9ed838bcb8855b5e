"""Transformer workloads: a decoder like GPT-2, one with mixtures of experts, and Transformer-XL."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, divided, drawn, tokens, training_step
from gst.programs.workloads.recurrent import mean_cross_entropy


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


# Mixture of experts ---------------------------------------------------------------------------------------------------

CHOSEN = 2  # experts per token
SLACK = 1.25  # capacity of an expert, over its fair share


class Mixture(nn.Module):
    """Sends every token to the two experts that its gate prefers, as far as these have room; the rest skips them.

    Shapes do not depend on values (Lepikhin et al., 2020, arXiv 2006.16668, Algorithm 1): matrices of zeros and ones
    bring tokens to the places of an expert, and the gates bring the results back.
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
        """Return the weight of the result at each place of each expert for each token."""
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


# Transformer-XL -------------------------------------------------------------------------------------------------------


class RelativeAttention(nn.Module):
    """Attention of a segment to itself and to the remembered segment (arXiv 1901.02860, section 3.3)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, divided(width, heads, "heads")
        self.query, self.key, self.value, self.distance = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.out = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.size))  # u of the paper
        self.distance_bias = nn.Parameter(torch.zeros(heads, self.size))  # v

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        context: Float[Tensor, "batch seen width"],
        distances: Float[Tensor, "seen width"],
    ) -> Float[Tensor, "batch length width"]:
        length, seen = x.shape[1], context.shape[1]
        query = self.query(x).unflatten(2, (self.heads, self.size))
        key, value = (each(context).unflatten(2, (self.heads, self.size)) for each in (self.key, self.value))
        distance = self.distance(distances).unflatten(1, (self.heads, self.size))
        by_content = torch.einsum("blhs,bkhs->bhlk", query + self.content_bias, key)
        by_distance = _shifted(torch.einsum("blhs,khs->bhlk", query + self.distance_bias, distance))
        later = torch.ones(length, seen, dtype=torch.bool).triu(1 + seen - length)
        scores = ((by_content + by_distance) * self.size**-0.5).masked_fill(later, float("-inf"))
        mixed = torch.einsum("bhlk,bkhs->blhs", torch.softmax(scores, dim=-1), value)
        return self.out(mixed.flatten(2))


def _shifted(scores: Float[Tensor, "batch heads length seen"]) -> Float[Tensor, "batch heads length seen"]:
    """Move row i by length - 1 - i to the left, so that column k holds the distance from i to k (appendix B)."""
    batch, heads, length, seen = scores.shape
    padded = torch.cat([scores.new_zeros(batch, heads, length, 1), scores], dim=-1)
    return padded.view(batch, heads, seen + 1, length)[:, :, 1:].reshape(batch, heads, length, seen)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.feed = RelativeAttention(width, heads), FeedForward(width)
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, context: Tensor, distances: Tensor) -> Float[Tensor, "batch length width"]:
        x = self.norm_attention(x + self.attention(x, context, distances))
        return self.norm_feed(x + self.feed(x))


class TransformerXL(nn.Module):
    """Each layer of a segment sees what that layer saw of the previous segment, without gradient."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.width, self.length = width, length
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.to_vocabulary = nn.Linear(width, vocabulary)

    def forward(self, tokens: Int64[Tensor, "batch total"]) -> list[Float[Tensor, "rows vocabulary"]]:
        logits, memory = [], [None] * len(self.layers)
        for segment in tokens.split(self.length, dim=1):
            x = self.embedding(segment)
            for number, layer in enumerate(self.layers):
                before = memory[number]
                context = x if before is None else torch.cat([before, x], dim=1)
                memory[number] = x.detach()
                x = layer(x, context, self._distances(context.shape[1]))
            logits.append(self.to_vocabulary(x).flatten(0, 1))
        return logits

    def _distances(self, seen: int) -> Float[Tensor, "seen width"]:
        """Sines and cosines of the distances seen - 1 .. 0."""
        distances = torch.arange(seen - 1, -1, -1.0)
        angles = distances[:, None] * 10_000 ** (-torch.arange(0, self.width, 2) / self.width)
        return torch.cat([angles.sin(), angles.cos()], dim=1)


def transformer_xl(
    layers: int = 4, width: int = 128, heads: int = 4, length: int = 32, segments: int = 3, batch: int = 8,
    vocabulary: int = 1000, optimizer: str = "adam", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """Transformer-XL (Dai et al., 2019, arXiv 1901.02860) over `segments` segments of `length` tokens in turn."""
    divided(width, 2, "halves")
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: TransformerXL(layers, width, heads, length, vocabulary), generator)
    inputs, targets = tokens(batch, segments * length, vocabulary, generator)

    def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        rows = torch.stack([part.flatten() for part in targets.split(length, dim=1)])
        return mean_cross_entropy(model(inputs), rows)

    rate = 0.1 if optimizer == "sgd" else 3e-3
    return training_step(f"transformer_xl-{layers}", model, loss_of, (inputs, targets), optimizer, rate)
