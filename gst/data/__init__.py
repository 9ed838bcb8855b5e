"""Datasets of graphs: TpuGraphs, XLA programs, MalNet, PyG and synthetic programs.

Files go in; `Graph` objects come out of a `GraphSource`, and `loader.py` turns them into training steps.
Read `source.py` first. Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gst.util.imports import lazy_names

if TYPE_CHECKING:
    from gst.data.collections import TpuGraphsCollection
    from gst.data.hlo import read_hlo
    from gst.data.malnet import MalNet
    from gst.data.pyg import PygDataset
    from gst.data.source import GraphSource, ItemSource, group_of
    from gst.data.synthetic import SyntheticPrograms
    from gst.data.tpugraphs import TpuGraphs, write_npz

__all__ = [
    "GraphSource",
    "ItemSource",
    "MalNet",
    "PygDataset",
    "SyntheticPrograms",
    "TpuGraphs",
    "TpuGraphsCollection",
    "group_of",
    "read_hlo",
    "write_npz",
]

__getattr__ = lazy_names(__name__)
