"""Learned cost models: losses, metrics, and a model in five lines."""

from gst.cost.ceiling import Ceiling, noise_ceiling
from gst.cost.metrics import kaggle_score, kendall_tau, layout_score, slowdown_at_k, tile_errors
from gst.cost.model import CostModel
from gst.cost.rescoring import Change, Rescorer
from gst.cost.states import StateModel

__all__ = [
    "Ceiling",
    "Change",
    "CostModel",
    "Rescorer",
    "StateModel",
    "kaggle_score",
    "kendall_tau",
    "layout_score",
    "noise_ceiling",
    "slowdown_at_k",
    "tile_errors",
]
