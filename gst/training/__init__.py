"""Training with Lightning: the LightningModule, the datamodule, `gst fit`, sweeps, runs of W&B.

A configuration and stores of segments go in; checkpoints, metrics and a report come out. Read `module.py` first.
Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.training.datamodule import SegmentDataModule
    from gst.training.module import HeadFinetuning, SegmentTrainingModule
    from gst.training.placing import PlacedSteps
    from gst.training.processes import FullySharded

_HOMES = {
    "FullySharded": "processes", "HeadFinetuning": "module", "PlacedSteps": "placing",
    "SegmentDataModule": "datamodule", "SegmentTrainingModule": "module",
}  # fmt: skip

__all__ = ["FullySharded", "HeadFinetuning", "PlacedSteps", "SegmentDataModule", "SegmentTrainingModule"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gst.training' has no attribute {name!r}")
    return getattr(import_module(f"gst.training.{_HOMES[name]}"), name)
