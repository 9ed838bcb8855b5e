"""`gst fit|validate|test|predict`: LightningCLI over the module and the datamodule."""

from __future__ import annotations

import argparse
import csv
import pickle
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from gst.training.datamodule import SegmentDataModule
from gst.training.module import SegmentTrainingModule


class PredictionWriter(BasePredictionWriter):
    """`gst predict` writes `graph,unique_config,score` to a CSV file; repeated configurations of a file count as one,
    unless the source has `merge: false`.

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
        partial = self.path.with_name(self.path.name + ".partial")
        with partial.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["graph", "unique_config", "score"])
            for rows in predictions:
                writer.writerows(rows)
        partial.replace(self.path)


class GstCLI(LightningCLI):
    """LightningCLI with a writer of predictions."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(PredictionWriter, "predictions")


def run(arguments: list[str]) -> dict[str, Any]:
    """Run one subcommand; returns the metrics that were logged last, and the best that a checkpoint was kept for.

    Raises:
        ValueError: an argument or a key of a configuration file is not known, or its value does not fit.
    """
    if arguments[0] != "fit" and not any(argument.startswith("--ckpt_path") for argument in arguments):
        raise ValueError(f"gst {arguments[0]} needs --ckpt_path: without it the model is the one nobody trained")
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
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    except pickle.UnpicklingError as error:
        raise ValueError(f"the file of --ckpt_path is not a checkpoint of `gst fit` ({error})") from error
    callback = cli.trainer.checkpoint_callback
    best = getattr(callback, "best_model_score", None)
    return {
        "command": shlex.join(["gst", *arguments]),
        "metrics": {key: float(value) for key, value in cli.trainer.callback_metrics.items()},
        "best": None if best is None else {str(getattr(callback, "monitor", "")): float(best)},
        "epochs": cli.trainer.current_epoch,
    }
