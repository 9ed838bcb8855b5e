"""Convolutional workloads: classifiers of images with branches side by side, and WaveNet."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, drawn, tokens, training_step


class Branches(nn.Module):
    """Four branches side by side: 1x1, 1x1-3x3, 1x1-3x3-3x3 and pool-1x1; joined along channels."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.point = ConvNormRelu(channels, width, 1)
        self.middle = nn.Sequential(ConvNormRelu(channels, width, 1), ConvNormRelu(width, width, 3))
        self.wide = nn.Sequential(
            ConvNormRelu(channels, width, 1), ConvNormRelu(width, width, 3), ConvNormRelu(width, width, 3)
        )
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNormRelu(channels, width, 1))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch wide height width"]:
        return torch.cat([self.point(x), self.middle(x), self.wide(x), self.pooled(x)], dim=1)


class ConvNormRelu(nn.Sequential):
    """Convolution, GroupNorm, ReLU; `stride` shrinks the image."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1) -> None:
        convolution = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
        super().__init__(convolution, nn.GroupNorm(4, width), nn.ReLU())


def cross_entropy(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs), classes)


def inception(
    modules: int = 3, width: int = 32, size: int = 20, batch: int = 16, classes: int = 10,
    optimizer: str = "sgd", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """Stem, `modules` of four branches of `width` channels (Szegedy et al., 2014, arXiv 1409.4842), classifier."""
    generator = torch.Generator().manual_seed(seed)

    def build() -> nn.Module:
        stem = ConvNormRelu(3, width, 3, stride=2)  # small at once: what all branches wait for should be short
        body = [Branches(width if module == 0 else 4 * width, width) for module in range(modules)]
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))
        return nn.Sequential(stem, *body, head)

    model = drawn(build, generator)
    images = torch.randn(batch, 3, 2 * size, 2 * size, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    rate = 0.005 if optimizer == "adam" else 0.05
    return training_step(f"inception-{modules}", model, cross_entropy, (images, labels), optimizer, rate)


# Sound ----------------------------------------------------------------------------------------------------------------

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

    rate = 0.1 if optimizer == "sgd" else 1e-2
    return training_step(f"wavenet-{stacks}x{layers}", model, cross_entropy, (sound, targets), optimizer, rate)
