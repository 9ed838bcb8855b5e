"""Learned cost models: losses, metrics, and a model in five lines."""

from gst.cost.model import CostModel

__all__ = ["CostModel"]
