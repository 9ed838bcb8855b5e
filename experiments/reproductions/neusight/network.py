"""Control: roofline time divided by an efficiency in (0, 1] that a network learns from the shape of an operation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from experiments.reproductions.neusight.operators import FAMILIES, Operators


class Training(NamedTuple):
    """Sizes and training of a network.

    Args:
        width: of its two hidden layers.
        whole: weight of the error of whole models relative to that of operations.
        decay: of the weights.
        steps: of training, each with all rows.
        members: networks whose logarithms of time are averaged.
    """

    width: int = 8
    whole: float = 1.0
    decay: float = 1.0
    steps: int = 200
    members: int = 3


class Networks:
    """Ensemble of networks for the efficiency of operations.

    Args:
        operators: training rows.
        training: how to train.
        seed: of the first weights.
    """

    def __init__(self, operators: Operators, training: Training, seed: int) -> None:
        columns = operators.columns()
        self._mean, self._scale = columns.mean(0), columns.std(0) + 1e-9
        self._mean[: len(FAMILIES)], self._scale[: len(FAMILIES)] = 0, 1
        self._networks = [
            self._train(operators, training, torch.Generator().manual_seed(1000 * seed + member))
            for member in range(training.members)
        ]

    def predict(self, operators: Operators) -> np.ndarray:
        """Time of each row, in ms."""
        columns = self._columns(operators)
        roofline = torch.from_numpy(operators.roofline_ms()).float()
        with torch.no_grad():
            logs = [_times(network, launch, columns, roofline).log() for network, launch in self._networks]
        return torch.stack(logs).mean(0).exp().double().numpy()

    def _columns(self, operators: Operators) -> torch.Tensor:
        return torch.from_numpy((operators.columns() - self._mean) / self._scale).float()

    def _train(
        self, operators: Operators, training: Training, draws: torch.Generator
    ) -> tuple[nn.Module, torch.Tensor]:
        columns = self._columns(operators)
        network = nn.Sequential(
            nn.Linear(columns.shape[1], training.width), nn.Tanh(),
            nn.Linear(training.width, training.width), nn.Tanh(), nn.Linear(training.width, 1),
        )  # fmt: skip
        for each in network:
            if isinstance(each, nn.Linear):
                nn.init.xavier_normal_(each.weight, generator=draws)
                nn.init.zeros_(each.bias)
        launch = torch.tensor(-5.0, requires_grad=True)  # logarithm of ms
        roofline, measured, repeats, whole = (
            torch.from_numpy(each).float()
            for each in (operators.roofline_ms(), operators.forward_ms, operators.repeats, operators.whole_ms)
        )
        case = torch.from_numpy(operators.case)
        share = repeats * measured / torch.zeros(len(whole)).index_add(0, case, repeats * measured)[case]
        share = share * torch.from_numpy(operators.operators_count())[case]
        share = share / share.sum()
        counts = torch.from_numpy(operators.whole_counts())
        optimizer = torch.optim.AdamW(
            [{"params": network.parameters()}, {"params": [launch], "weight_decay": 0.0}],
            lr=1e-2,
            weight_decay=training.decay,
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=training.steps)
        for _ in range(training.steps):
            times = _times(network, launch, columns, roofline)
            sums = torch.zeros(len(whole)).index_add(0, case, repeats * times)
            errors = (sums / whole).log().abs()[counts]
            loss = (share * (times / measured).log().abs()).sum() + training.whole * errors.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return network, launch


def _times(network: nn.Module, launch: torch.Tensor, columns: torch.Tensor, roofline: torch.Tensor) -> torch.Tensor:
    """Time of each row in ms: roofline / efficiency + time of a launch."""
    return roofline / torch.sigmoid(network(columns)[:, 0] + 1) + launch.exp()
