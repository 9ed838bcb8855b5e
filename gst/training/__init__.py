"""Training with Lightning: the LightningModule, the datamodule, `gst fit`, sweeps, runs of W&B.

A configuration and stores of segments go in; checkpoints, metrics and a report come out. Read `module.py` first.
Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gst.util.imports import lazy_names

if TYPE_CHECKING:
    from gst.training.callbacks import HeadFinetuning, PlacedSteps
    from gst.training.datamodule import SegmentDataModule
    from gst.training.module import SegmentTrainingModule

__all__ = ["HeadFinetuning", "PlacedSteps", "SegmentDataModule", "SegmentTrainingModule"]

__getattr__ = lazy_names(__name__)

TRAINING = {
    "fit": "train a model (LightningCLI: every trainer flag works)",
    "validate": "evaluate on the validation part",
    "test": "evaluate on the test part",
    "predict": "score the test part",
}
"""Commands of `gst.training.cli`, and what each does."""
