"""What a training leaves in its log beside losses, metrics and the state of the table: speed, memory, predictions, and
the versions of its code and data."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from gst.data.loader import Step
from gst.training.datamodule import SegmentDataModule
from gst.training.module import SegmentTrainingModule
from gst.training.processes import reduced
from gst.training.versions import code_version

MOST_POINTS = 1_000  # of a plot
COLUMNS: list[str | int] = ["graph", "measured", "predicted"]


class Recorder(L.Callback):
    """Logs, of each epoch of a training,

    - `speed/graphs_per_s`, `speed/segments_per_s`: graphs of its steps, and segments of these graphs, fresh or not, by
      the seconds of its steps, in which data are waited for; of all processes together;
    - `memory/host_peak_bytes`, `memory/device_peak_bytes`: the most that a process had resident so far, and the most
      that it had allocated on its accelerator, if there is one;

    once `code_version` and `data_version` (the content keys of the stores) among the hyperparameters; and to W&B, at
    the end of a training, a validation or a test, a scatter plot of what was measured and what was predicted for it:
    runtimes where scores are their logarithms, classes, else scores, of which only the order counts.
    """

    def __init__(self) -> None:
        self._graphs = self._segments = 0
        self._seconds = self._since = 0.0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, SegmentDataModule)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_hyperparams({"code_version": code_version(), "data_version": data.versions})

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._since = time.perf_counter()  # a training that goes on within an epoch begins none

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._graphs = self._segments = 0
        self._seconds, self._since = 0.0, time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Step, batch_idx: int
    ) -> None:
        if batch.peers is None or not batch.peers.idle:
            self._graphs += len(batch.graphs)
            self._segments += sum(graph.num_segments for graph in batch.graphs)
        now = time.perf_counter()
        self._seconds, self._since = self._seconds + now - self._since, now

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._since = time.perf_counter()  # a validation within an epoch is no part of its steps
        if trainer.state.fn == "validate":
            _plot(trainer, pl_module, "val")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        seconds = self._seconds or math.inf
        own: dict[str, tuple[float, Callable[[list[float]], float]]] = {
            "speed/graphs_per_s": (self._graphs / seconds, sum),
            "speed/segments_per_s": (self._segments / seconds, sum),
            "memory/host_peak_bytes": (_host_peak(), max),
        }
        if pl_module.device.type == "cuda":
            own["memory/device_peak_bytes"] = (float(torch.cuda.max_memory_allocated(pl_module.device)), max)
        pl_module.log_dict(reduced(own))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _plot(trainer, pl_module, "val")

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _plot(trainer, pl_module, "test")


def _host_peak() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _plot(trainer: L.Trainer, module: L.LightningModule, part: str) -> None:
    """What the last evaluation scored, evenly thinned to `MOST_POINTS` rows."""
    assert isinstance(module, SegmentTrainingModule)
    loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
    if not (loggers and module.scored and trainer.is_global_zero):
        return
    import wandb

    rows = [
        [name, float(target), float(prediction)]
        for name, (scores, targets) in module.scored.items()
        for prediction, target in zip(_predicted(scores, module.loss), targets, strict=True)
    ]
    kept = np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).astype(int)
    table = wandb.Table(columns=COLUMNS, data=[rows[i] for i in kept])
    chart = wandb.plot.scatter(table, "measured", "predicted", f"{part}: measured and predicted")
    for logger in loggers:
        logger.experiment.log({f"{part}/predicted": chart, "trainer/global_step": trainer.global_step})


def _predicted(scores: Tensor, loss: str) -> Tensor:
    if loss == "cross_entropy":
        return scores.argmax(-1)
    return scores.exp() if loss == "log_runtime" else scores
