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
        held_out: configurations of each graph, of a `runtime`, in the validation and in the test part each; of others
            a fifth of the groups.
        steps: of a training; more do not raise the validation score of whole graphs.
        least_configs: graphs with fewer are left out.
        rates: learning rates that are tried, as multiples of `learning_rate`.
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
    steps: int
    lists_per_graph: int | None = None
    classes: int = 1
    held_out: int = 0
    least_configs: int = 1
    rates: tuple[float, ...] = (1 / 3, 1.0, 3.0)

    def source(self) -> Any:
        if self.name == "alexnet":
            return TpuGraphs([ALEXNET])
        if self.name == "tile":
            return TpuGraphs([TILE])
        if self.name == "circuits":
            return Circuits()
        if self.name == "synthetic":
            return SyntheticPrograms(num_nodes=100_000, num_configs=256)
        label: Any = self.name.removeprefix("elf-")
        return ElfBinaries("/usr", label=label, limit=96)

    def loaders(self, whole: bool, seed: int) -> tuple[StepLoader, list[Selection], list[Selection]]:
        """Return training steps, the validation part and the test part; the seed alone decides the parts."""
        graphs = open_store(prepare(self.source(), STORES, 1_000_000 if whole else self.max_nodes))
        graphs = [graph for graph in graphs if graph.num_configs >= self.least_configs]
        if self.kind == "runtime":
            training, validation, test = split(graphs, "configs", self.held_out, self.held_out, seed)
        else:
            groups = len({group_of(graph.name) for graph in graphs}) // 5
            training, validation, test = split(graphs, "groups", groups, groups, seed)
        loader = StepLoader(training, self.graphs_per_step, self.configs_per_graph, self.lists_per_graph, seed=seed)
        return loader, validation, test


def mean_and_deviation(selections: list[Selection]) -> tuple[float, float]:
    targets = np.concatenate([graph.targets[configs.numpy()] for graph, configs in selections])
    return float(targets.mean()), float(targets.std())


TASKS = {
    task.name: task
    for task in (
        Task("alexnet", "runtime", 64, "sum", {"channels": 64, "num_layers": 3, "config_symbols": 7}, 2, 1, 64, 1e-3,
             1500, lists_per_graph=100, held_out=500),
        Task("synthetic", "runtime", 5_000, "mean", {"channels": 32, "num_layers": 2, "num_opcodes": 8,
             "config_symbols": 7}, 4, 1, 16, 1e-2, 240, held_out=32, rates=(1 / 3, 1.0)),  # at 3 some learn nothing
        Task("circuits", "number", 100, "mean", {"channels": 32, "num_layers": 3, "num_opcodes": 16}, 1, 8, 1, 3e-3,
             600),
        Task("elf-language", "class", 200, "mean", {"channels": 32, "num_layers": 2, "num_opcodes": 8}, 1, 8, 1,
             1e-2, 600, classes=3),
        Task("tile", "runtime", 8, "sum", {"channels": 64, "num_layers": 3}, 1, 2, 32, 1e-3, 3000, lists_per_graph=16,
             held_out=20, least_configs=60),
    )
}  # fmt: skip
