"""Graph Segment Training under Lightning."""

from gst.training.datamodule import SegmentDataModule
from gst.training.finetuning import HeadFinetuning
from gst.training.module import SegmentTrainingModule

__all__ = ["HeadFinetuning", "SegmentDataModule", "SegmentTrainingModule"]
