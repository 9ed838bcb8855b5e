"""Datasets of graphs: TpuGraphs, XLA programs, GraphNet, MalNet, measured plans, PyG, NetworkX and synthetic programs.

Files go in; `Graph` objects come out of a `GraphSource`, and `loader.py` turns them into training steps.
Read `source.py` first. Each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.data.collections import TpuGraphsCollection
    from gst.data.hlo import read_hlo
    from gst.data.malnet import MalNet
    from gst.data.measured_plans import MeasuredPlans
    from gst.data.source import GraphSource, group_of
    from gst.data.synthetic import SyntheticPrograms
    from gst.data.tpugraphs import TpuGraphs, write_npz

_HOMES = {
    "GraphSource": "source", "MalNet": "malnet", "MeasuredPlans": "measured_plans", "SyntheticPrograms": "synthetic",
    "TpuGraphs": "tpugraphs", "TpuGraphsCollection": "collections", "group_of": "source", "read_hlo": "hlo",
    "write_npz": "tpugraphs",
}  # fmt: skip

__all__ = [
    "GraphSource", "MalNet", "MeasuredPlans", "SyntheticPrograms", "TpuGraphs", "TpuGraphsCollection", "group_of",
    "read_hlo", "write_npz",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gst.data' has no attribute {name!r}")
    return getattr(import_module(f"gst.data.{_HOMES[name]}"), name)
