"""`gst fit|validate|test|predict`: LightningCLI over the module and the datamodule."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from gst.training.datamodule import SegmentDataModule
from gst.training.module import SegmentTrainingModule


class PredictionWriter(BasePredictionWriter):
    """`gst predict` writes `graph,config,score` to a CSV file.

    Args:
        path: of the file.
    """

    def __init__(self, path: str = "runs/predictions.csv") -> None:
        super().__init__(write_interval="epoch")
        self.path = Path(path)

    def write_on_epoch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["graph", "config", "score"])
            for rows in predictions:
                writer.writerows(rows)


class GstCLI(LightningCLI):
    """LightningCLI with a writer of predictions."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(PredictionWriter, "predictions")


def run(arguments: list[str]) -> dict[str, Any]:
    """Run one subcommand; returns the metrics that were logged last.

    Raises:
        ValueError: an argument or a key of a configuration file is not known, or its value does not fit.
    """
    sys.argv[1:] = arguments  # LightningCLI warns when it is given arguments beside those of the process
    try:
        cli = GstCLI(
            SegmentTrainingModule,
            SegmentDataModule,
            save_config_kwargs={"overwrite": True},
            parser_kwargs={"prog": "gst", "description": "Graph Segment Training (GST)", "exit_on_error": False}
            | {name: {"exit_on_error": False} for name in ("fit", "validate", "test", "predict")},
        )
    except argparse.ArgumentError as error:
        raise ValueError(f"{error.message} (see gst {arguments[0]} --help)") from error
    checkpoint = getattr(cli.trainer.checkpoint_callback, "best_model_path", "") or None
    metrics = {key: float(value) for key, value in cli.trainer.callback_metrics.items()}
    return {"metrics": metrics, "checkpoint": checkpoint, "epochs": cli.trainer.current_epoch}
