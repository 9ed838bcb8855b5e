"""Training of networks over kernels (`step_time.model.Network`) on the measured times of programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.reproductions.timm.programs import Rows
from experiments.reproductions.timm.step_time.kernels import CLASSES
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.model import LEAST, MOST, Network
from experiments.reproductions.timm.step_time.rows import TERMS, Setting, kernel_descriptors, kernel_times

OUTSIDE = 1e-3  # share of the kernels of training that may lie outside the bounds that a network keeps
SAMPLED = 100_000  # kernels that the bounds are taken from


class NetworkSettings(NamedTuple):
    """Sizes and training of a network.

    Args:
        epochs, batch: passes over the rows, and rows of a step.
        hidden, code: widths of its layers and of the codes of classes and tables.
        rate: learning rate, of Adam, falling to 0 along a cosine.
        decay: of its matrices; `scale_decay`: of the factors of each table.
        beta: error of the logarithm below which the loss is a square.
    """

    epochs: int = 12
    batch: int = 64
    hidden: int = 64
    code: int = 8
    rate: float = 4e-3
    decay: float = 0.02
    scale_decay: float = 0.3
    beta: float = 0.01


class _Module(nn.Module):
    def __init__(self, descriptors: int, tables: int, settings: NetworkSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.classes = nn.Parameter(torch.randn(len(CLASSES), settings.code))
        self.tables = nn.Parameter(0.1 * torch.randn(tables, settings.code))
        self.base = nn.Parameter(torch.tensor([0.5, 0.3, 0.3, 0.0]).repeat(len(CLASSES), 1))
        self.scale = nn.Parameter(torch.zeros(tables, len(CLASSES), TERMS))
        self.first = nn.Linear(descriptors + 2 * settings.code, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, TERMS)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def factors(self, kind: Tensor, described: Tensor, table: Tensor) -> Tensor:
        inputs = torch.cat([described, self.classes[kind], self.tables[table]], 1)
        hidden = nn.functional.silu(self.first(inputs))
        hidden = hidden + nn.functional.silu(self.second(hidden))
        return (self.last(hidden) + self.base[kind] + self.scale[table, kind]).clamp(LEAST, MOST)

    def forward(self, times: Tensor, kind: Tensor, described: Tensor, table: Tensor) -> Tensor:
        return (self.factors(kind, described, table).exp() * times).sum(1)

    def plain(self, bounds: Sequence[Tensor]) -> Network:
        def array(tensor: Tensor) -> np.ndarray:
            return tensor.detach().double().numpy()

        layers = [array(part) for each in (self.first, self.second, self.last) for part in (each.weight.T, each.bias)]
        return Network(*map(array, (*bounds, self.classes, self.tables, self.base, self.scale)), *layers)


class Examples(NamedTuple):
    """Kernels of all rows, one after the other.

    Args:
        times: milliseconds at peak rates: (kernels, TERMS).
        kind: class.
        described: see `step_time.rows.kernel_descriptors`.
        begin, count: where the kernels of each row begin, and how many it has.
    """

    times: Tensor
    kind: Tensor
    described: Tensor
    begin: np.ndarray
    count: np.ndarray


def examples_of(rows: Rows) -> Examples:
    """The kernels of the rows as tensors."""
    times, kind, described = [], [], []
    for each, program in zip(rows.measurements, rows.program, strict=True):
        kernels, machine = rows.kernels[program], machine_of(each.setting.machine)
        times.append(kernel_times(kernels, each.batch, machine).T.astype(np.float32))
        kind.append(kernels.kind)
        described.append(kernel_descriptors(kernels, each.batch, each.setting, machine).astype(np.float32))
    count = np.array([len(each) for each in kind])
    tensors = (torch.from_numpy(np.concatenate(part)) for part in (times, kind, described))
    return Examples(*tensors, np.cumsum(count) - count, count)


def train_network(
    rows: Rows, examples: Examples, tables: list[Setting], seed: int, settings: NetworkSettings | None = None
) -> Network:
    """A network that predicts the times of `rows`, whose kernels are `examples`."""
    settings = settings or NetworkSettings()
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _Module(examples.described.shape[1], len(tables), settings)
    place_of = {each: place for place, each in enumerate(tables)}
    table = torch.tensor([place_of[each.setting] for each in rows.measurements])
    target = torch.from_numpy(rows.log_step).float()
    matrices = [each.weight for each in (module.first, module.second, module.last)]
    alike = {id(each) for each in (*matrices, module.scale)}
    groups = [
        {"params": matrices, "weight_decay": settings.decay},
        {"params": [module.scale], "weight_decay": settings.scale_decay},
        {"params": [each for each in module.parameters() if id(each) not in alike], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate)
    steps = settings.epochs * math.ceil(len(rows) / settings.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / 100 + 0.01) * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2
    )
    for _ in range(settings.epochs):
        for part in torch.randperm(len(rows), generator=generator).split(settings.batch):
            places, row = _kernels_of(examples, part.numpy())
            times = module(examples.times[places], examples.kind[places], examples.described[places], table[part][row])
            predicted = torch.zeros(len(part)).index_add(0, row, times).log()
            loss = nn.functional.smooth_l1_loss(predicted, target[part], beta=settings.beta)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return module.plain(_bounds(module, examples, table))


@torch.no_grad()
def _bounds(module: _Module, examples: Examples, table: Tensor) -> list[Tensor]:
    """Least and most of each descriptor, and of what the network gives each class and term, but for `OUTSIDE`."""
    step = max(1, len(examples.described) // SAMPLED)
    row = torch.from_numpy(np.repeat(np.arange(len(examples.count)), examples.count))[::step]
    kind, described = examples.kind[::step], examples.described[::step]
    factors = module.factors(kind, described, table[row])
    ends = torch.tensor([LEAST, MOST])[:, None, None].repeat(1, len(CLASSES), TERMS)
    for each in kind.unique():
        ends[:, each] = _ends(factors[kind == each])
    return [*_ends(described), *ends]


def _ends(columns: Tensor) -> Tensor:
    """Least and most of each column, but for `OUTSIDE` of its rows: (2, columns)."""
    ordered = columns.sort(0).values
    cut = int(len(ordered) * OUTSIDE)
    return torch.stack([ordered[cut], ordered[len(ordered) - 1 - cut]])


def _kernels_of(examples: Examples, part: np.ndarray) -> tuple[Tensor, Tensor]:
    """Places of the kernels of some rows, and of the row that each is of."""
    count = examples.count[part]
    row = np.repeat(np.arange(len(part)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return torch.from_numpy(np.repeat(examples.begin[part], count) + within), torch.from_numpy(row)
