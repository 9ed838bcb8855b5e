"""Training with Lightning: the LightningModule, the datamodule, `gst fit`, sweeps, runs of W&B.

A configuration and stores of segments go in; checkpoints, metrics and a report come out. Read `module.py` first.
Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gst.util.lazy import lazy_names

if TYPE_CHECKING:
    from gst.training.datamodule import SegmentDataModule
    from gst.training.module import HeadFinetuning, SegmentTrainingModule
    from gst.training.placing import PlacedSteps
    from gst.training.processes import FullySharded

_HOMES = {
    "FullySharded": "gst.training.processes", "HeadFinetuning": "gst.training.module",
    "PlacedSteps": "gst.training.placing", "SegmentDataModule": "gst.training.datamodule",
    "SegmentTrainingModule": "gst.training.module",
}  # fmt: skip

__all__ = ["FullySharded", "HeadFinetuning", "PlacedSteps", "SegmentDataModule", "SegmentTrainingModule"]

__getattr__ = lazy_names("gst.training", _HOMES)
