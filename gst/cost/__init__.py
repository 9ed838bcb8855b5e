"""Learned cost models: losses, metrics, and a model in five lines.

Names are loaded when they are first used: a metric imports no network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.cost.ceiling import Ceiling, noise_ceiling
    from gst.cost.metrics import kaggle_score, kendall_tau, layout_score, slowdown_at_k, tile_errors
    from gst.cost.model import CostModel
    from gst.cost.rescoring import Change, Rescorer
    from gst.cost.states import StateModel

_HOMES = {
    "Ceiling": "ceiling", "Change": "rescoring", "CostModel": "model", "Rescorer": "rescoring", "StateModel": "states",
    "kaggle_score": "metrics", "kendall_tau": "metrics", "layout_score": "metrics", "noise_ceiling": "ceiling",
    "slowdown_at_k": "metrics", "tile_errors": "metrics",
}  # fmt: skip

__all__ = [
    "Ceiling", "Change", "CostModel", "Rescorer", "StateModel", "kaggle_score", "kendall_tau", "layout_score",
    "noise_ceiling", "slowdown_at_k", "tile_errors",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gst.cost' has no attribute {name!r}")
    return getattr(import_module(f"gst.cost.{_HOMES[name]}"), name)
