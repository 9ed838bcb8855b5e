"""Inception-v3 with its five kinds of blocks; channels scaled by `width`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.programs.step import TrainingStep
from gst.programs.workloads.drawing import drawn
from gst.programs.workloads.inception import image_step

WIDTH, MIN_SIZE = 32, 75  # channels of the published first convolution; below, nothing is left of the image

Kernel = int | tuple[int, int]


class ConvNorm(nn.Sequential):
    """Convolution, BatchNorm, ReLU. Padded to keep the size if `stride` is 1 and `pad`."""

    def __init__(self, channels: int, width: int, kernel: Kernel, stride: int = 1, pad: bool = True) -> None:
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (size[0] // 2, size[1] // 2) if pad and stride == 1 else (0, 0)
        convolution = nn.Conv2d(channels, width, size, stride, padding, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(width, eps=1e-3), nn.ReLU(inplace=True))


class Parallel(nn.ModuleList):
    """Branches of one input, joined along channels."""

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch wide less lesser"]:
        return torch.cat([branch(x) for branch in self], dim=1)


def _chain(channels: int, *layers: tuple[int, Kernel], stride: int = 1) -> nn.Sequential:
    """Convolutions of (width, kernel) one after the other; the last has the stride."""
    widths = [channels, *(width for width, _ in layers)]
    strides = [1] * (len(layers) - 1) + [stride]
    return nn.Sequential(
        *(ConvNorm(c, w, k, s) for c, (w, k), s in zip(widths, layers, strides, strict=False))
    )  # fmt: skip


def _pooled(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(channels, width, 1))


def _split(channels: int, before: nn.Module, width: int) -> nn.Sequential:
    """`before`, then 1x3 and 3x1 side by side."""
    return nn.Sequential(before, Parallel([ConvNorm(channels, width, (1, 3)), ConvNorm(channels, width, (3, 1))]))


def _blocks(n: Callable[[int], int], depth: int) -> list[nn.Module]:
    """Figures 5, 6, 7 and 10 of the paper with the channels of its released network; `n` scales them."""
    blocks: list[nn.Module] = []
    channels = n(192)
    for pooled in (32, 64, 64)[:depth]:  # A, 35 x 35 pixels
        blocks.append(Parallel([
            _chain(channels, (n(64), 1)), _chain(channels, (n(48), 1), (n(64), 5)),
            _chain(channels, (n(64), 1), (n(96), 3), (n(96), 3)), _pooled(channels, n(pooled)),
        ]))  # fmt: skip
        channels = 2 * n(64) + n(96) + n(pooled)
    blocks.append(Parallel([  # B, to 17 x 17
        _chain(channels, (n(384), 3), stride=2), nn.MaxPool2d(3, 2),
        _chain(channels, (n(64), 1), (n(96), 3), (n(96), 3), stride=2),
    ]))  # fmt: skip
    channels += n(384) + n(96)
    for inner in map(n, (128, *[160] * (depth - 2), 192)[:depth]):  # C
        blocks.append(Parallel([
            _chain(channels, (n(192), 1)), _chain(channels, (inner, 1), (inner, (1, 7)), (n(192), (7, 1))),
            _chain(channels, (inner, 1), (inner, (7, 1)), (inner, (1, 7)), (inner, (7, 1)), (n(192), (1, 7))),
            _pooled(channels, n(192)),
        ]))  # fmt: skip
        channels = 4 * n(192)
    blocks.append(Parallel([  # D, to 8 x 8
        _chain(channels, (n(192), 1), (n(320), 3), stride=2), nn.MaxPool2d(3, 2),
        _chain(channels, (n(192), 1), (n(192), (1, 7)), (n(192), (7, 1)), (n(192), 3), stride=2),
    ]))  # fmt: skip
    channels += n(320) + n(192)
    for _ in range(min(depth, 2)):  # E
        wide = _chain(channels, (n(448), 1), (n(384), 3))
        blocks.append(Parallel([
            _chain(channels, (n(320), 1)), _split(n(384), _chain(channels, (n(384), 1)), n(384)),
            _split(n(384), wide, n(384)), _pooled(channels, n(192)),
        ]))  # fmt: skip
        channels = n(320) + 4 * n(384) + n(192)
    return blocks


def _network(depth: int, width: int, classes: int) -> nn.Module:
    def n(channels: int) -> int:
        return max(1, channels * width // WIDTH)

    stem = [
        ConvNorm(3, n(32), 3, stride=2), ConvNorm(n(32), n(32), 3, pad=False), ConvNorm(n(32), n(64), 3),
        nn.MaxPool2d(3, 2), ConvNorm(n(64), n(80), 1), ConvNorm(n(80), n(192), 3, pad=False), nn.MaxPool2d(3, 2),
    ]  # fmt: skip
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n(320) + 4 * n(384) + n(192), classes)]
    return nn.Sequential(*stem, *_blocks(n, depth), *head)


def inception_v3(
    depth: int = 4, width: int = 8, size: int = 107, batch: int = 8, classes: int = 10,
    optimizer: str = "momentum", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """Inception-v3 (Szegedy et al., 2015, arXiv 1512.00567); `width` 32, `size` 299 is the published one.

    There are `depth` blocks of the third kind, and as many of the first and the last, but at most 3 and 2.

    Raises:
        ValueError: the images are too small.
    """
    if size < MIN_SIZE:
        raise ValueError(f"inception_v3: images of {size} x {size} pixels are too small; take {MIN_SIZE} or more")
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: _network(depth, width, classes), generator)
    return image_step(f"inception_v3-{depth}", model, size, batch, classes, optimizer, generator)
