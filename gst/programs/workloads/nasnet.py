"""A network of cells found by architecture search: many short branches of separable convolutions."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.programs.step import TrainingStep
from gst.programs.workloads.drawing import drawn
from gst.programs.workloads.inception import image_step


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
