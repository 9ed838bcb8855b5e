"""Datasets for comparing variants, cut into segments and whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.reproductions.circuits.source import Circuits
from experiments.reproductions.elf import ElfBinaries
from gst.data import TpuGraphs, group_of
from gst.data.loader import Selection, StepLoader, split
from gst.data.synthetic import SyntheticPrograms
from gst.graphs.store import open_store, prepare

STORES = Path("runs/stores")
ALEXNET = "../shared/data/tpugraphs/layout/xla/random/train/alexnet_train_batch_32.npz"
TILE = "../shared/data/tpugraphs/tile/xla/train/*.npz"


@dataclass(frozen=True)
class Task:
    """A dataset and how a model of it is trained.

    Args:
        kind: what a target is, which decides the loss and the score: a `runtime` to rank by (Kendall's tau on held-out
            configurations), a `number` (tau over held-out graphs) or a `class` (accuracy on held-out graphs).
        encoder: arguments of the encoder.
        num_fresh: segments with gradient per graph and step.
        held_out: configurations of each graph that are held out, of a `runtime`; of others a quarter of the groups.
        least_configs: graphs with fewer are left out.
    """

    name: str
    kind: Literal["runtime", "number", "class"]
    max_nodes: int
    pooling: Literal["sum", "mean"]
    encoder: dict[str, Any]
    num_fresh: int
    graphs_per_step: int
    configs_per_graph: int
    learning_rate: float
    lists_per_graph: int | None = None
    classes: int = 1
    held_out: int = 0
    least_configs: int = 1

    def source(self) -> Any:
        if self.name == "alexnet":
            return TpuGraphs([ALEXNET])
        if self.name == "tile":
            return TpuGraphs([TILE])
        if self.name == "circuits":
            return Circuits()
        if self.name == "synthetic":
            return SyntheticPrograms(num_nodes=100_000, num_configs=128)
        label: Any = self.name.removeprefix("elf-")
        return ElfBinaries("/usr", label=label, limit=96)

    def loaders(self, whole: bool, seed: int, halo: int = 0) -> tuple[StepLoader, list[Selection]]:
        """Training steps and what is held out; which it is depends on the seed alone."""
        max_nodes = 1_000_000 if whole else self.max_nodes
        graphs = open_store(prepare(self.source(), STORES, max_nodes, halo=halo))
        graphs = [graph for graph in graphs if graph.num_configs >= self.least_configs]
        if self.kind == "runtime":
            training, validation, _ = split(graphs, "configs", self.held_out, 0, seed)
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
        Task("alexnet", "runtime", 64, "sum", {"channels": 64, "num_layers": 3, "config_symbols": 7}, 2, 1, 64, 1e-3,
             lists_per_graph=100, held_out=500),
        Task("tile", "runtime", 8, "sum", {"channels": 64, "num_layers": 3}, 1, 2, 32, 1e-3, lists_per_graph=16,
             held_out=20, least_configs=60),
        Task("circuits", "number", 100, "mean", {"channels": 32, "num_layers": 3, "num_opcodes": 16}, 1, 8, 1, 3e-3),
        Task("elf-language", "class", 200, "mean", {"channels": 32, "num_layers": 2, "num_opcodes": 8}, 1, 8, 1,
             1e-2, classes=3),
        Task("synthetic", "runtime", 5_000, "mean", {"channels": 32, "num_layers": 2, "num_opcodes": 8,
             "config_symbols": 7}, 2, 1, 8, 1e-2, held_out=32),
    )
}  # fmt: skip
