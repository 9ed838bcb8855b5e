"""A small Inception-like network: modules of four branches side by side."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, training_step
from gst.programs.workloads.drawing import drawn


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


def image_step(
    name: str, model: nn.Module, size: int, batch: int, classes: int, optimizer: str, generator: torch.Generator
) -> TrainingStep:
    """A step of a classifier on `batch` images of `size` x `size` pixels in three colours."""
    images = torch.randn(batch, 3, size, size, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)

    def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(images), labels)

    rate = 0.005 if optimizer == "adam" else 0.05
    return training_step(name, model, loss_of, (images, labels), optimizer, rate)


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
    return image_step(f"inception-{modules}", model, 2 * size, batch, classes, optimizer, generator)
