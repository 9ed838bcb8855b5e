"""Kendall's tau on held-out layouts of AlexNet: `gst fit` + `gst rank`, beside ridge regression and a plain MLP.

    python -m experiments.bench alexnet --seeds 3 --json experiments/results/alexnet.json

One split for all: 1000 configurations for the test, 1000 for validation, 21,905 to learn from; the target is the mean
runtime of each unique configuration. The two baselines see the state of each configurable node one-hot.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import nn

from gst.cost.metrics import kendall_tau, ordered_pair_accuracy, slowdown_at_k
from gst.data.loader import split
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from gst.graphs.segments import segment
from gst.machine.devices import machine_record

CONFIG = "experiments/configs/alexnet_layout.yaml"


def one_hot_states(graph: Graph) -> np.ndarray:
    """(configs, states): for each configurable node, which of its distinct states it is in."""
    columns = []
    for node in range(len(graph.config_nodes)):
        states, index = np.unique(graph.config_features[:, node], axis=0, return_inverse=True)
        columns.append(np.eye(len(states), dtype=np.float32)[index])
    return np.hstack(columns)


def one_hot_columns(graph: Graph) -> np.ndarray:
    """(configs, values): each configuration feature of each node by itself; features that never change are left out."""
    symbols = graph.config_features.reshape(graph.num_configs, -1).astype(int) + 1
    values = np.eye(symbols.max() + 1, dtype=np.float32)[symbols].reshape(graph.num_configs, -1)
    return values[:, values.std(0) > 0]


def ridge(x: np.ndarray, y: np.ndarray, train: np.ndarray, penalty: float = 1.0) -> np.ndarray:
    """Scores of all rows from a least-squares fit of `y` with a squared penalty."""
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
    """Scores of all rows from a pairwise logistic loss within each batch."""
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


def gst_scores(file: str, seed: int, out: Path) -> tuple[np.ndarray, float]:
    """Scores of every row of `file` from the two commands a user would run, and the seconds of the training."""
    run = [sys.executable, "-m", "gst.cli"]
    started = time.perf_counter()
    subprocess.run(
        [*run, "fit", "--config", CONFIG, f"--seed_everything={seed}", f"--model.seed={seed}", f"--data.seed={seed}",
         f"--data.source.init_args.files=[{file}]",
         "--trainer.enable_progress_bar=false"], check=True,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    scores = out / f"alexnet_scores_{seed}.csv"
    subprocess.run([*run, "rank", "runs/alexnet_layout/checkpoints/best.ckpt", file, "--out", str(scores)], check=True)
    with scores.open() as lines:
        return np.array([float(row["score"]) for row in csv.DictReader(lines)]), seconds


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fit and score every learner; the options are those of `python -m experiments.bench alexnet`."""
    graph, rows = read(options.file), read(options.file, merge=False)
    row_of = {row.tobytes(): i for i, row in reversed(list(enumerate(rows.config_features)))}
    first_row = np.array([row_of[row.tobytes()] for row in graph.config_features])
    parts = split([segment(graph)], "configs", valid=1000, test=1000, seed=0)
    train, test = parts[0][0][1].numpy(), parts[2][0][1].numpy()
    states = one_hot_states(graph)

    def figures(scores: np.ndarray) -> dict[str, float]:
        held_out, targets = scores[test], graph.targets[test]
        return {
            "tau": kendall_tau(held_out, targets),
            "ordered_pairs": ordered_pair_accuracy(held_out, targets),
            "slowdown@10": slowdown_at_k(held_out, targets, 10),
        }

    logs = np.log(graph.targets)
    ranks = rankdata(graph.targets) / graph.num_configs
    columns = one_hot_columns(graph)
    result: dict[str, Any] = {
        "ridge on node states, log runtime": [figures(ridge(states, logs, train))],
        "ridge on node states, rank": [figures(ridge(states, ranks, train))],
        "ridge on single features, log runtime": [figures(ridge(columns, logs, train))],
        "mlp": [],
        "gst": [],
    }
    runs = Path("runs/alexnet_layout")
    runs.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        started = time.perf_counter()
        scores = mlp(states, graph.targets, train, seed)
        result["mlp"].append(figures(scores) | {"seconds": time.perf_counter() - started})
        scores, seconds = gst_scores(options.file, seed, runs)
        result["gst"].append(figures(scores[first_row]) | {"seconds": seconds})
        print({name: [round(each["tau"], 4) for each in entries] for name, entries in result.items()}, flush=True)
    means = {name: float(np.mean([each["tau"] for each in entries])) for name, entries in result.items()}
    result |= {
        "mean_tau": means, "num_train": len(train), "num_test": len(test), "machine": machine_record(),
        "command": options.command,
    }  # fmt: skip
    return result
