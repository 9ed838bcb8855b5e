"""A dataset of graphs under Lightning: prepared once, memory-mapped, split, dealt out in steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from tqdm import tqdm

from gst.data.loader import Selection, Step, StepLoader, split
from gst.data.source import GraphSource
from gst.store import open_store, prepare


class SegmentDataModule(L.LightningDataModule):
    """Segments of a dataset.

    Args:
        source: the graphs.
        store: directory under which the prepared dataset is kept, by content; it is prepared when it is not there.
        max_nodes, method, halo, partition_seed: how graphs are cut, see `gst.segment`.
        split_by: hold out `configs` of every graph, whole `graphs`, or `groups` of them (`package/binary`).
        num_valid, num_test: how many are held out.
        split_seed: of the draw of what is held out.
        graphs_per_step, configs_per_graph: size of a training step.
        lists_per_graph: at most so many lists of `configs_per_graph` configurations of each graph in one epoch.
        eval_configs: configurations per step of validation, test and prediction.
        seed: of the order of steps.
    """

    def __init__(
        self,
        source: GraphSource,
        store: str = "runs/stores",
        max_nodes: int = 1000,
        method: str = "metis",
        halo: int = 0,
        partition_seed: int = 0,
        split_by: Literal["configs", "graphs", "groups"] = "configs",
        num_valid: int = 1,
        num_test: int = 1,
        split_seed: int = 0,
        graphs_per_step: int = 1,
        configs_per_graph: int = 32,
        lists_per_graph: int | None = None,
        eval_configs: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.source, self.store = source, Path(store)
        self.segmentation: dict[str, Any] = {
            "max_nodes": max_nodes,
            "method": method,
            "halo": halo,
            "seed": partition_seed,
        }
        self.split_by, self.num_valid, self.num_test, self.split_seed = (
            split_by,
            num_valid,
            num_test,
            split_seed,
        )
        self.graphs_per_step, self.configs_per_graph = graphs_per_step, configs_per_graph
        self.lists_per_graph, self.eval_configs, self.seed = lists_per_graph, eval_configs, seed
        self._directory: Path | None = None
        self.parts: tuple[list[Selection], list[Selection], list[Selection]] | None = None

    @property
    def digest(self) -> str:
        """Of the prepared dataset, by its content."""
        return self._directory.name if self._directory else ""

    def prepare_data(self) -> None:
        self._directory = self._prepare()

    def setup(self, stage: str) -> None:
        if self.parts is None:
            self._directory = self._directory or self._prepare()  # only one process of a machine has prepared
            graphs = open_store(self._directory)
            self.parts = split(graphs, self.split_by, self.num_valid, self.num_test, self.split_seed)
            if stage == "fit":
                _check_labels(self.parts[0])

    def _prepare(self) -> Path:
        with tqdm(desc="preparing segments", unit=" graphs", delay=2, leave=False) as bar:
            return prepare(self.source, self.store, **self.segmentation, progress=lambda name: bar.update() and None)

    def train_dataloader(self) -> StepLoader:
        return StepLoader(
            self._part(0), self.graphs_per_step, self.configs_per_graph, self.lists_per_graph, True, self.seed
        )

    def val_dataloader(self) -> StepLoader:
        return self._in_order(self._part(1))

    def test_dataloader(self) -> StepLoader:
        return self._in_order(self._part(2))

    def predict_dataloader(self) -> StepLoader:
        return self._in_order(self._part(2))

    def transfer_batch_to_device(self, batch: Step, device: torch.device, dataloader_idx: int) -> Step:
        """A step stays where it is: the estimator moves the segments it chose."""
        return batch

    def mean_log_target(self) -> float:
        """Mean logarithm of the positive training targets: where a regression on log runtime starts."""
        targets = np.concatenate([graph.targets[configs.numpy()] for graph, configs in self._part(0)])
        positive = targets[targets > 0]
        return float(np.log(positive).mean()) if len(positive) else 0.0

    def _part(self, i: int) -> list[Selection]:
        assert self.parts is not None, "setup() comes first"
        return self.parts[i]

    def _in_order(self, selections: list[Selection]) -> StepLoader:
        return StepLoader(selections, 1, self.eval_configs, shuffle=False)


def _check_labels(selections: list[Selection]) -> None:
    targets = [graph.targets[configs.numpy()] for graph, configs in selections]
    if not np.isfinite(np.concatenate(targets)).all():
        raise ValueError("some training targets are NaN or infinite; drop these configurations before")
    together = np.concatenate(targets)
    if (together == together[0]).all():
        raise ValueError("all training targets are equal: there is nothing to learn")
