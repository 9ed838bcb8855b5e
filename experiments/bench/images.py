"""Larger convolutional workloads of published placements: Inception-v3 and NASNet-A.

python -m experiments.bench executor --programs experiments.bench.images:nasnet
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.programs.step import TrainingStep, drawn
from gst.programs.workloads.convolution import image_step

# Inception-v3 ---------------------------------------------------------------------------------------------------------

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
    return nn.Sequential(*(ConvNorm(c, w, k, s) for c, (w, k), s in zip(widths, layers, strides, strict=False)))


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


# Cells of an architecture search --------------------------------------------------------------------------------------


class Genotype(NamedTuple):
    """A found cell. Sources are 0 = the cell before the last, 1 = the last, 2, 3, ... = combinations so far.

    Args:
        pairs: two operations and their sources for each combination, which is their sum.
        joined: sources that make the output, along channels.
        stride: of operations that read 0 or 1.
    """

    pairs: tuple[tuple[tuple[str, int], tuple[str, int]], ...]
    joined: tuple[int, ...]
    stride: int


# NASNet-A, Figure 4 of the paper.
NORMAL = Genotype(
    (
        (("separable3", 1), ("identity", 1)),
        (("separable3", 0), ("separable5", 1)),
        (("average", 1), ("identity", 0)),
        (("average", 0), ("average", 0)),
        (("separable5", 0), ("separable3", 0)),
    ),
    joined=(0, 2, 3, 4, 5, 6),
    stride=1,
)
REDUCTION = Genotype(
    (
        (("separable7", 0), ("separable5", 1)),
        (("max", 1), ("separable7", 0)),
        (("average", 1), ("separable5", 0)),
        (("max", 1), ("separable3", 2)),
        (("average", 2), ("identity", 3)),
    ),
    joined=(3, 4, 5, 6),
    stride=2,
)


def _norm(width: int) -> nn.Module:
    return nn.BatchNorm2d(width, track_running_stats=False)


def _separable(width: int, kernel: int, stride: int) -> nn.Sequential:
    """ReLU, depthwise and pointwise convolution, norm: twice, as in the paper's appendix A.4."""
    layers: list[nn.Module] = []
    for step in (stride, 1):
        depthwise = nn.Conv2d(width, width, kernel, step, kernel // 2, groups=width, bias=False)
        layers += [nn.ReLU(), depthwise, nn.Conv2d(width, width, 1, bias=False), _norm(width)]
    return nn.Sequential(*layers)


def _operation(kind: str, width: int, stride: int) -> nn.Module:
    if kind == "identity":
        return nn.Identity()
    if kind == "average":
        return nn.AvgPool2d(3, stride, 1)
    if kind == "max":
        return nn.MaxPool2d(3, stride, 1)
    return _separable(width, int(kind.removeprefix("separable")), stride)


def _project(channels: int, width: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(channels, width, 1, stride, bias=False), _norm(width))


class Cell(nn.Module):
    """One cell of `width` channels per combination.

    Args:
        channels: of the cell before the last, and of the last.
        halve_first: the cell before the last has images twice as large as the last.
    """

    def __init__(self, channels: tuple[int, int], width: int, genotype: Genotype, halve_first: bool) -> None:
        super().__init__()
        self.genotype, self.channels = genotype, width * len(genotype.joined)
        self.first, self.second = _project(channels[0], width, 1 + halve_first), _project(channels[1], width)
        self.operations = nn.ModuleList(
            _operation(kind, width, genotype.stride if source < 2 else 1)
            for pair in genotype.pairs
            for kind, source in pair
        )

    def forward(self, before: Tensor, last: Tensor) -> Float[Tensor, "batch channels height width"]:
        values, operations = [self.first(before), self.second(last)], iter(self.operations)
        for (_, left), (_, right) in self.genotype.pairs:
            values.append(next(operations)(values[left]) + next(operations)(values[right]))
        return torch.cat([values[source] for source in self.genotype.joined], dim=1)


class CellNetwork(nn.Module):
    """`stages` stages of `cells` normal cells, with a reduction and twice the width after each but the last."""

    def __init__(self, stages: int, cells: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), _norm(width))
        kinds = (([NORMAL] * cells + [REDUCTION]) * stages)[:-1]
        channels, self.cells = [width, width], nn.ModuleList()
        for before, kind in pairwise([NORMAL, *kinds]):
            width = 2 * width if kind is REDUCTION else width
            cell = Cell((channels[-2], channels[-1]), width, kind, halve_first=before is REDUCTION)
            self.cells.append(cell)
            channels.append(cell.channels)
        self.head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        before = last = self.stem(images)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.head(last)


def nasnet(
    stages: int = 3, cells: int = 2, width: int = 8, size: int = 32, batch: int = 4, classes: int = 10,
    optimizer: str = "momentum", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """NASNet-A (Zoph et al., 2017, arXiv 1707.07012), `stages` times `cells` normal cells."""
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: CellNetwork(stages, cells, width, classes), generator)
    return image_step(f"nasnet-{stages}x{cells}", model, size, batch, classes, optimizer, generator)
