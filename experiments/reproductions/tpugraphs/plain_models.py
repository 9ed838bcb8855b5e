"""Ridge regression and an MLP on one-hot states of configurable nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from gst.graphs.graph import Graph


def one_hot_states(graph: Graph) -> np.ndarray:
    """Return (configs, states): for each configurable node, one of its distinct states, one-hot."""
    columns = []
    for node in range(len(graph.config_nodes)):
        states, index = np.unique(graph.config_features[:, node], axis=0, return_inverse=True)
        columns.append(np.eye(len(states), dtype=np.float32)[index])
    return np.hstack(columns)


def ridge(x: np.ndarray, y: np.ndarray, train: np.ndarray, penalty: float = 1.0) -> np.ndarray:
    """Return scores of all rows from a least-squares fit of `y` with a squared penalty."""
    design = np.hstack([x, np.ones((len(x), 1), np.float32)]).astype(np.float64)
    known = design[train]
    gram = known.T @ known + penalty * np.eye(design.shape[1])
    return design @ np.linalg.solve(gram, known.T @ y[train])


class PlainMLP(nn.Module):
    """A linear term and two hidden layers of 128."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.mlp = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) + self.mlp(x)).squeeze(-1)


def mlp(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, seed: int, epochs: int = 12, batch: int = 256,
    learning_rate: float = 1e-3,
) -> np.ndarray:  # fmt: skip
    """Return scores of all rows from a pairwise logistic loss within each batch."""
    torch.manual_seed(seed)
    model, inputs, targets = PlainMLP(x.shape[1]), torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(train) // batch + 1))
    for _ in range(epochs):
        for rows in torch.from_numpy(train)[torch.randperm(len(train))].split(batch):
            scores = model(inputs[rows])
            slower = targets[rows][:, None] > targets[rows][None, :]
            loss = nn.functional.softplus(scores[None, :] - scores[:, None])[slower].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return model(inputs).numpy()
