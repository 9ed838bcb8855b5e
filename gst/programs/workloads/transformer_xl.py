"""A transformer that remembers the previous segment and knows positions by their distance."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.programs.step import TrainingStep, training_step
from gst.programs.workloads.drawing import divided, drawn, tokens
from gst.programs.workloads.gpt import FeedForward
from gst.programs.workloads.rnnlm import mean_cross_entropy


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
    """Row i moved length - 1 - i to the left, so that column k holds the distance from i to k (appendix B)."""
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
