"""Fusion for real: which operations may be compiled into one, and which of them gain by it."""

from gst.devices.fusion.chains import pointwise_chains
from gst.devices.fusion.choice import Fused, fused
from gst.devices.fusion.legality import Group, fusion_groups, legalise
from gst.devices.fusion.library import Record

__all__ = ["Fused", "Group", "Record", "fused", "fusion_groups", "legalise", "pointwise_chains"]
