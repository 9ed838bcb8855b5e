"""Learned cost models of programs under configurations: losses, metrics, and a model in five lines.

Graphs with measured runtimes go in; predicted runtimes, with intervals, come out. `step_time` estimates programs on
machines that are not here. Read `model.py` first. Each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.cost.metrics import kendall_tau, slowdown_at_k
    from gst.cost.model import CostModel
    from gst.cost.rescoring import Change, Rescorer

_HOMES = {
    "Change": "rescoring", "CostModel": "model", "Rescorer": "rescoring", "kendall_tau": "metrics",
    "slowdown_at_k": "metrics",
}  # fmt: skip

__all__ = ["Change", "CostModel", "Rescorer", "kendall_tau", "slowdown_at_k"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gst.cost' has no attribute {name!r}")
    return getattr(import_module(f"gst.cost.{_HOMES[name]}"), name)
