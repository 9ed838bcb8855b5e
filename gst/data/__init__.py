"""Datasets of graphs: TpuGraphs, XLA programs, HLSyn, measured plans, binaries, MalNet, synthetic and cost graphs.

Names are loaded when they are first used, so that a dataset imports no reader but its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.data.collections import TpuGraphsCollection
    from gst.data.cost_graphs import CostGraph, read_cost_graph
    from gst.data.elf import ElfBinaries
    from gst.data.hlo import read_hlo
    from gst.data.hlsyn import HlSyn
    from gst.data.malnet import MalNet
    from gst.data.measured_plans import MeasuredPlans
    from gst.data.public_graphs import PublicGraph, read_public_graph
    from gst.data.source import GraphSource, group_of
    from gst.data.synthetic import SyntheticPrograms
    from gst.data.tpugraphs import TpuGraphs, write_npz

_HOMES = {
    "CostGraph": "cost_graphs", "ElfBinaries": "elf", "GraphSource": "source", "HlSyn": "hlsyn", "MalNet": "malnet",
    "MeasuredPlans": "measured_plans", "PublicGraph": "public_graphs", "SyntheticPrograms": "synthetic",
    "TpuGraphs": "tpugraphs", "TpuGraphsCollection": "collections", "group_of": "source",
    "read_cost_graph": "cost_graphs", "read_hlo": "hlo", "read_public_graph": "public_graphs", "write_npz": "tpugraphs",
}  # fmt: skip

__all__ = [
    "CostGraph", "ElfBinaries", "GraphSource", "HlSyn", "MalNet", "MeasuredPlans", "PublicGraph", "SyntheticPrograms",
    "TpuGraphs", "TpuGraphsCollection", "group_of", "read_cost_graph", "read_hlo", "read_public_graph", "write_npz",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gst.data' has no attribute {name!r}")
    return getattr(import_module(f"gst.data.{_HOMES[name]}"), name)
