"""Stacks of dilated causal convolutions with gates, residual and skip connections."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, training_step
from gst.programs.workloads.drawing import drawn, tokens

AMPLITUDES = 256  # of the quantised sound, section 2.2


class GatedLayer(nn.Module):
    """tanh of one dilated convolution times the sigmoid of another (section 2.3), passed on and out (2.4)."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter, self.gate = (nn.Conv1d(width, width, 2, dilation=dilation) for _ in range(2))
        self.residual, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Float[Tensor, "batch width length"]) -> tuple[Tensor, Tensor]:
        past = functional.pad(x, (self.dilation, 0))
        z = torch.tanh(self.filter(past)) * torch.sigmoid(self.gate(past))
        return x + self.residual(z), self.skip(z)


class WaveNet(nn.Module):
    """`stacks` times `layers` layers with dilations 1, 2, 4, ...; the sum of the skips gives the next amplitude."""

    def __init__(self, stacks: int, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(AMPLITUDES, width)
        dilations = [2**layer for _ in range(stacks) for layer in range(layers)]
        self.layers = nn.ModuleList(GatedLayer(width, dilation) for dilation in dilations)
        self.mix, self.out = nn.Conv1d(width, width, 1), nn.Conv1d(width, AMPLITUDES, 1)

    def forward(self, sound: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch amplitudes length"]:
        x, skips = self.embedding(sound).transpose(1, 2), []
        for layer in self.layers:
            x, skip = layer(x)
            skips.append(skip)
        return self.out(torch.relu(self.mix(torch.relu(sum(skips)))))


def wavenet(
    stacks: int = 2, layers: int = 9, width: int = 48, length: int = 1024, batch: int = 1,
    optimizer: str = "adam", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """WaveNet (van den Oord et al., 2016, arXiv 1609.03499) on `length` samples of noise."""
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: WaveNet(stacks, layers, width), generator)
    sound, targets = tokens(batch, length, AMPLITUDES, generator)

    def loss_of(model: nn.Module, sound: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(model(sound), targets)

    rate = 0.1 if optimizer == "sgd" else 1e-2
    return training_step(f"wavenet-{stacks}x{layers}", model, loss_of, (sound, targets), optimizer, rate)
