"""What the variants are compared on: three datasets, cut into segments, and left whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gst.data import ElfBinaries, TpuGraphs, group_of
from gst.data.loader import Selection, StepLoader, split
from gst.data.synthetic import SyntheticPrograms
from gst.graphs.store import open_store, prepare

STORES = Path("runs/stores")
ALEXNET = "../shared/data/tpugraphs/layout/xla/random/train/alexnet_train_batch_32.npz"


@dataclass(frozen=True)
class Task:
    """A dataset and how long to train on it.

    Args:
        kind: what a target is, which decides the loss and the score: a `runtime` to rank by (Kendall's tau on held-out
            configurations), a `number` (tau over held-out graphs) or a `class` (accuracy on held-out graphs).
        encoder: arguments of the encoder.
        num_fresh: segments with gradient per graph and step.
    """

    name: str
    kind: Literal["runtime", "number", "class"]
    max_nodes: int
    pooling: Literal["sum", "mean"]
    encoder: dict[str, Any]
    num_fresh: int
    graphs_per_step: int
    configs_per_graph: int
    epochs: int
    learning_rate: float
    lists_per_graph: int | None = None
    classes: int = 1

    def source(self) -> Any:
        if self.name == "alexnet":
            return TpuGraphs([ALEXNET])
        if self.name == "synthetic":
            return SyntheticPrograms(num_nodes=100_000, num_configs=128)
        label: Any = self.name.removeprefix("elf-")
        return ElfBinaries("/usr", label=label, limit=96)

    def loaders(self, whole: bool, seed: int) -> tuple[StepLoader, list[Selection]]:
        """Training steps and what is held out; which it is depends on the seed alone."""
        max_nodes = 1_000_000 if whole else self.max_nodes
        graphs = open_store(prepare(self.source(), STORES, max_nodes))
        if self.kind == "runtime":
            held_out = 500 if self.name == "alexnet" else 32
            training, validation, _ = split(graphs, "configs", held_out, 0, seed)
        else:
            groups = len({group_of(graph.name) for graph in graphs})
            training, validation, _ = split(graphs, "groups", groups // 4, 0, seed)
        loader = StepLoader(training, self.graphs_per_step, self.configs_per_graph, self.lists_per_graph, seed=seed)
        return loader, validation


def mean_and_deviation(selections: list[Selection]) -> tuple[float, float]:
    targets = np.concatenate([graph.targets[configs.numpy()] for graph, configs in selections])
    return float(targets.mean()), float(targets.std())


TASKS = {
    task.name: task
    for task in (
        Task("alexnet", "runtime", 64, "sum", {"channels": 64, "num_layers": 3, "config_symbols": 7}, 2, 1, 64, 3, 1e-3,
             lists_per_graph=100),
        Task("synthetic", "runtime", 5_000, "mean", {"channels": 32, "num_layers": 2, "num_opcodes": 8,
             "config_symbols": 7}, 2, 1, 8, 6, 1e-2),
        Task("elf-language", "class", 1_000, "mean", {"channels": 32, "num_layers": 2, "num_opcodes": 8}, 1, 8, 1,
             16, 1e-2, classes=3),
        Task("elf-call_depth", "number", 1_000, "mean", {"channels": 32, "num_layers": 2, "num_opcodes": 8}, 1, 8, 1,
             16, 1e-2),
    )
}  # fmt: skip
