"""Training with Lightning: the LightningModule, the datamodule, `gst fit`, sweeps, runs of W&B.

A configuration and stores of segments go in; checkpoints, metrics and a report come out. Read `module.py` first.
Each name is imported when it is first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gst.util.lazy import lazy_names

if TYPE_CHECKING:
    from gst.training.callbacks import HeadFinetuning, PlacedSteps
    from gst.training.datamodule import SegmentDataModule
    from gst.training.module import SegmentTrainingModule
    from gst.training.processes import FullySharded

_HOMES = {
    "FullySharded": "gst.training.processes",
    "HeadFinetuning": "gst.training.callbacks",
    "PlacedSteps": "gst.training.callbacks",
    "SegmentDataModule": "gst.training.datamodule",
    "SegmentTrainingModule": "gst.training.module",
}

__all__ = ["FullySharded", "HeadFinetuning", "PlacedSteps", "SegmentDataModule", "SegmentTrainingModule"]

__getattr__ = lazy_names("gst.training", _HOMES)

UNUSED = ("PIL", "matplotlib", "scienceplots", "scipy", "transformers")
"""Libraries of metrics of text, sound and images, which take longer to import than all else that a training needs."""


def import_torchmetrics() -> None:
    """Import torchmetrics, which Lightning imports, without the libraries of `UNUSED`: to it they are not installed.

    A program that imports torchmetrics first keeps all of its metrics.
    """
    if "torchmetrics" in sys.modules:
        return
    from lightning_utilities.core import imports

    class Requirement(imports.RequirementCache):
        def __bool__(self) -> bool:
            return not str(self.requirement).startswith(UNUSED) and super().__bool__()

    before = imports.RequirementCache, imports.package_available
    imports.RequirementCache = Requirement  # type: ignore[misc]
    imports.package_available = lambda name: name not in UNUSED and before[1](name)  # type: ignore[assignment]
    try:
        import torchmetrics  # noqa: F401
    finally:
        imports.RequirementCache, imports.package_available = before  # type: ignore[misc]
