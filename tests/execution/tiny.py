"""A training step of about 80 operations that has what larger ones have: branches, views, items, chains, twins."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from gst.programs import Program, TrainingStep, capture, training_step
from tests.checks import without_checks


class Gated(nn.Module):
    """Two gated layers of one structure beside each other, normalised, with a class for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        branches = [layer(x).sigmoid() * layer(x.tanh()) + x for layer in (self.left, self.right)]
        return nn.functional.cross_entropy(self.norm(branches[0] * branches[1].t().t()), target)


def tiny_step() -> TrainingStep:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x, target = Gated(), torch.randn(4, 8), torch.arange(4)
    return training_step("tiny", model, lambda model, x, target: model(x, target), [x, target])


@cache
def tiny_program(kind: str = "cpu") -> Program:
    with without_checks():
        return capture(tiny_step(), kind)
