"""Callbacks that record a training: speed, memory, predictions, versions, the HTML report, progress in a log."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from embedding_cache.storage import Arrivals
from gst.cost.controls import control_metrics
from gst.cost.explain import explain
from gst.cost.losses import name_of
from gst.cost.metrics import METRICS, kendall_tau
from gst.data.loader import Selection, Step
from gst.machine.devices import machine_record
from gst.reporting.training import best_epoch, figure_of, metric_of, metrics_of, render_training
from gst.training.checkpoints import checkpoint_callbacks
from gst.training.datamodule import PARTS, TRAIN, VALID, SegmentDataModule
from gst.training.module import SegmentTrainingModule
from gst.training.processes import reduced
from gst.util.process import version
from gst.util.progress import Bars, notice
from gst.util.writing import atomic_write

MOST_POINTS = 1_000  # of a plot
CONTROL_SHARE, LEAST_CONTROL_S = 0.05, 1.0  # of the time of a training, for its control; seconds
COLUMNS: list[str | int] = ["graph", "measured", "predicted"]


class Recorder(L.Callback):
    """Log speed and memory of each epoch, versions of code and data, and to W&B a plot of measured and predicted.

    `speed/graphs_per_s` and `speed/segments_per_s` count all segments of the graphs of a step, fresh or not, of all
    processes; the seconds include waiting for data. `memory/host_peak_bytes` and `memory/device_peak_bytes` are the
    most that one process had so far. The plot shows runtimes if scores are their logarithms, classes, or scores.
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

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise ValueError for a monitored metric of validation that there is not, before an epoch is spent."""
        known = [name for name in trainer.callback_metrics if name.startswith("val/")]
        schedules = [each.monitor for each in trainer.lr_scheduler_configs if each.reduce_on_plateau]
        for name in [*schedules, *(getattr(each, "monitor", None) for each in trainer.callbacks)]:  # type: ignore[attr-defined]
            if name and name not in known and (name.startswith("val") or f"val/{name}" in known):
                raise ValueError(f"monitor {name!r} is no metric of this training; there are {', '.join(known)}")

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
        seconds, peak = self._seconds or math.inf, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        own: dict[str, tuple[float, Callable[[list[float]], float]]] = {
            "speed/graphs_per_s": (self._graphs / seconds, sum),
            "speed/segments_per_s": (self._segments / seconds, sum),
            "memory/host_peak_bytes": (float(peak if sys.platform == "darwin" else peak * 1024), max),
        }
        if pl_module.device.type not in ("cpu", "mps"):  # which count no allocations
            own["memory/device_peak_bytes"] = (float(torch.accelerator.max_memory_allocated(pl_module.device)), max)
        pl_module.log_dict(reduced(own))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _plot(trainer, pl_module, "val")

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _plot(trainer, pl_module, "test")


def _plot(trainer: L.Trainer, module: L.LightningModule, part: str) -> None:
    """Log the scatter plot of the last evaluation, evenly thinned to `MOST_POINTS` rows."""
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
    """Classes, runtimes where scores are their logarithms, else the scores themselves."""
    if loss == "cross_entropy":
        return scores.argmax(-1)
    return scores.exp() if loss == "log_runtime" else scores


NAME = "report.html"
KINDS = {"log_runtime": "runtime", "squared_error": "value", "cross_entropy": "class"}
PACKAGE = Path(__file__).parents[1]


class ReportPage(L.Callback):
    """Callback that collects the record of a training and writes `report.html` at its end
    (`gst.reporting.training.render_training`), in the parent of the first directory of checkpoints.

    The record has the epochs (losses, metrics of validation, statistics of the table) and the predictions of the best
    one. Checkpoints hold the epochs, so that the page of a resumed training shows all of them.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self._epochs: list[dict[str, float]] = []
        self._running: dict[str, float] = {"epoch": -1, "loss": 0.0, "steps": 0}
        self._losses = Arrivals[None]()
        self._held_out: dict[str, Any] = {}
        self._best = -math.inf
        self._started = 0.0
        self.control: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        self._add_losses(waits=True)
        return {"epochs": [dict(entry) for entry in self._epochs], "running": dict(self._running)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._epochs, self._running = list(state_dict["epochs"]), dict(state_dict["running"])

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.current_epoch != self._running["epoch"]:
            self._running = {"epoch": trainer.current_epoch, "loss": 0.0, "steps": 0}
        self._losses.add(trainer.callback_metrics["train/loss"], None)
        self._add_losses(waits=False)

    def _add_losses(self, waits: bool) -> None:
        for loss, _ in self._losses.here(waits):
            self._running["loss"] += float(loss)
            self._running["steps"] += 1

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the metrics before checkpoints are saved, so that these contain the epoch."""
        assert isinstance(pl_module, SegmentTrainingModule)
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        metrics = {
            name[4:]: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")
        }
        self._entry(trainer, pl_module).update(metrics)
        key = next((each for each in METRICS if each in metrics), "")
        judged = metrics.get(key, math.nan) * (1 if key and METRICS[key].direction == "max" else -1)
        if not self._held_out or judged > self._best:
            self._best = judged if not math.isnan(judged) else self._best
            self._held_out = _held_out(pl_module.scored, trainer.current_epoch, pl_module.loss)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, SegmentTrainingModule)
        entry = self._entry(trainer, pl_module)
        if "loss" in entry:
            pl_module.log("train/loss_mean", entry["loss"], prog_bar=True)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, SegmentTrainingModule)
        folder = folder_of_run(trainer)
        if folder is None or not trainer.is_global_zero:
            return
        path, seconds = folder / NAME, time.perf_counter() - self._started
        parts: dict[int, list[Selection]] = trainer.datamodule.parts  # type: ignore[attr-defined]
        longest = max(LEAST_CONTROL_S, CONTROL_SHARE * seconds)
        self.control = control_metrics(pl_module.loss, parts[TRAIN], parts[VALID], longest)
        record = {
            "name": path.parent.resolve().name, "command": self.command,
            "seconds": seconds, "epochs": self._epochs, "control": self.control,
            "explained": _explained(trainer, pl_module), "machine": machine_record() | {"code": code_version()},
            "held_out": self._held_out | {"unit": getattr(trainer.datamodule.source, "unit", "")},  # type: ignore[attr-defined]
            "model": _model(trainer, pl_module), "data": _data(trainer),
            "parts": _parts(trainer), "checkpoints": checkpoints_of(trainer),
            "metrics": {name: each.for_report() for name, each in METRICS.items()},
        }  # fmt: skip
        with atomic_write(path) as file:
            file.write(render_training(record))
        if (key := metric_of(record)) in self.control:
            control, best = (figure_of(record, key, each) for each in (self.control, best_epoch(record)))
            print(f"{metrics_of(record)[key]}: ridge regression on sums {control}, this model {best}")
        print(f"Look at {path}")

    def _entry(self, trainer: L.Trainer, module: SegmentTrainingModule) -> dict[str, float]:
        """The record of the current epoch, with its mean loss so far and the statistics of the table."""
        epoch = trainer.current_epoch
        self._add_losses(waits=True)
        if not self._epochs or self._epochs[-1]["epoch"] != epoch:
            self._epochs.append({"epoch": epoch})
        if self._running["epoch"] == epoch:
            mean = self._running["loss"] / self._running["steps"]
            self._epochs[-1] |= {"steps": trainer.global_step, "loss": mean}
        if module.estimator.table is not None:
            statistics = module.estimator.table.statistics()
            self._epochs[-1] |= {name: float(value) for name, value in statistics.items()}
        return self._epochs[-1]


def folder_of_run(trainer: L.Trainer) -> Path | None:
    """Return the parent of the first directory of checkpoints; None without one on this machine."""
    directories = [str(each.dirpath) for each in checkpoint_callbacks(trainer)]
    local = [Path(path) for path in directories if "://" not in path]
    return local[0].parent if local and not getattr(trainer, "fast_dev_run", False) else None


def _explained(trainer: L.Trainer, module: SegmentTrainingModule) -> dict[str, Any]:
    """Return an explanation for the held-out graph of most configurations; empty where there can be none."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    graph, configs = max(data.parts[VALID], key=lambda each: len(each[1]))
    times = np.full(graph.num_configs, np.nan)
    try:
        times[configs] = graph.targets[configs]
        return explain(module.estimator, graph, times, getattr(data.source, "opcode_names", ()))
    except ValueError:
        return {}


def _held_out(scored: dict[str, tuple[Tensor, Tensor]], epoch: int, loss: str) -> dict[str, Any]:
    """Predicted and measured values of each graph."""
    graphs = []
    for name, (scores, measured) in scored.items():
        predicted = _predicted(scores, loss)
        orders = loss != "cross_entropy" and len(measured) > 1
        tau = kendall_tau(predicted.numpy(), measured.numpy()) if orders else math.nan
        graphs.append({"graph": name, "predicted": predicted.tolist(), "measured": measured.tolist(), "tau": tau})
    return {"epoch": epoch, "kind": KINDS.get(loss, "order"), "graphs": graphs}


def _model(trainer: L.Trainer, module: SegmentTrainingModule) -> dict[str, Any]:
    settings = dict(module.hparams)
    optimizers = [f"{type(each).__name__}, learning rate {each.defaults.get('lr')}" for each in trainer.optimizers]
    return {
        "variant": _variant(module), "encoder": type(module.estimator.encoder).__name__,
        "head": type(module.estimator.head).__name__,
        "parameters": sum(each.numel() for each in module.parameters()),
        "loss": module.loss if module.own_loss is None else name_of(module.own_loss),
        "optimizer": "; ".join(optimizers),
    } | {
        name: settings[name] for name in ("pooling", "num_fresh", "keep_probability", "estimate", "seed")
        if name in settings
    } | {"precision": trainer.precision, "processes": trainer.world_size}  # fmt: skip


def _variant(module: SegmentTrainingModule) -> str:
    """Name of the variant of the method, as in the README."""
    estimate = module.estimator.estimate
    if estimate.reads == "nothing":
        return "GST-One" if module.estimator.num_fresh == 1 else "GST without the other segments"
    letters = "E" * module.wants_table + "F" * module.estimator.encoder_frozen
    letters += "D" * (module.estimator.keep_probability < 1)
    name = f"GST+{letters}" if letters else "GST"
    return name if estimate.name == "dropout" else f"{name}, {estimate.name}"


def _data(trainer: L.Trainer) -> dict[str, Any]:
    data = trainer.datamodule  # type: ignore[attr-defined]
    return {
        "source": data.source, "stores": ", ".join(str(data.store / key) for key in data.versions.values()),
        "segments": ", ".join(f"{name} {value}" for name, value in data.segmentation.items()),
        "held out": f"by {data.split_by}, seed {data.split_seed}",
    }  # fmt: skip


def _parts(trainer: L.Trainer) -> list[dict[str, Any]]:
    parts: dict[int, list[Selection]] = trainer.datamodule.parts  # type: ignore[attr-defined]
    return [
        {
            "part": PARTS[number], "graphs": len(selections), "nodes": sum(graph.num_nodes for graph, _ in selections),
            "segments": sum(graph.num_segments for graph, _ in selections),
            "configurations": sum(len(configs) for _, configs in selections),
        }
        for number, selections in sorted(parts.items())
    ]  # fmt: skip


def checkpoints_of(trainer: L.Trainer) -> list[str]:
    """Return the paths of the best and the last checkpoint of each callback that writes some."""
    paths = [(each.best_model_path, each.last_model_path) for each in checkpoint_callbacks(trainer)]
    return list(dict.fromkeys(path for pair in paths for path in pair if path))


class TerminalProgress(RichProgressBar):
    """Lightning's progress bar with the latest loss that the host knows, for which no accelerator stops."""

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        return metrics_now(trainer, super().get_metrics(trainer, pl_module))


def metrics_now(trainer: L.Trainer, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Add the latest loss that the host knows to metrics, if they have none."""
    loss = getattr(trainer.lightning_module, "latest_loss", None)
    return ({} if loss is None else {"train/loss": loss}) | dict(metrics)


class LogProgress(ProgressBar):
    """Progress bar for output that is no terminal: lines of a log, and the last metrics when a training ends."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled, self._bars = True, Bars()

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        """Lightning calls this on all processes but the first."""
        self._enabled = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._show(trainer, f"epoch {trainer.current_epoch}", batch_idx, trainer.num_training_batches)

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Progress of an evaluation; a validation within a training shows none."""
        totals = {"validate": trainer.num_val_batches, "test": trainer.num_test_batches}
        if (name := str(trainer.state.fn.value if trainer.state.fn else "")) != "fit":
            self._show(trainer, name, batch_idx, sum(totals.get(name, trainer.num_predict_batches)))

    on_validation_batch_end = on_predict_batch_end = on_test_batch_end

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._enabled:
            notice(f"after epoch {trainer.current_epoch - 1}: {self._metrics(trainer)}")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._bars.__exit__()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the bar: Lightning does not call `teardown` then, and later bars would stand below it."""
        self._bars.__exit__()

    def _show(self, trainer: L.Trainer, what: str, batch: int, total: float) -> None:
        if self._enabled:
            self._bars.show(f"{what} {self._metrics(trainer)}", batch + 1, int(total))

    def _metrics(self, trainer: L.Trainer) -> str:
        metrics = metrics_now(trainer, trainer.progress_bar_metrics)
        return " ".join(f"{name}={float(value):.4g}" for name, value in metrics.items())


def code_version(package: Path = PACKAGE) -> str:
    """Return the commit of the repository that tracks this program, with `-dirty` if it differs; else the version."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        # An installed package may lie within the repository of somebody else's project, which does not track it.
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return version()
