"""Learned cost models of programs under configurations: losses, metrics, and a model in five lines.

Graphs with measured runtimes go in; predicted runtimes come out. Read `model.py` first. Names load at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gst.util.imports import lazy_names

if TYPE_CHECKING:
    from gst.cost.losses import LOSSES
    from gst.cost.metrics import METRICS, Metric, kendall_tau, slowdown_at_k
    from gst.cost.model import CostModel
    from gst.cost.rescoring import Rescorer

__all__ = ["LOSSES", "METRICS", "CostModel", "Metric", "Rescorer", "kendall_tau", "slowdown_at_k"]

__getattr__ = lazy_names(__name__)
