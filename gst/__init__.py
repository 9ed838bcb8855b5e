"""Graph Segment Training: learn how fast giant computation graphs run, and place them on devices.

Names are loaded when they are first used, so that `gst --help` is quick and a machine that lacks a library only misses
what needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedding_cache import EmbeddingTable
    from gst.graphs.graph import Graph
    from gst.graphs.segments import SegmentedGraph, segment
    from gst.graphs.store import open_store, prepare
    from gst.method.batch import SegmentBatch
    from gst.method.estimator import GraphSegmentTraining
    from gst.placement.placed import place

_HOMES = {
    "EmbeddingTable": "embedding_cache",
    "Graph": "gst.graphs.graph",
    "GraphSegmentTraining": "gst.method.estimator",
    "SegmentBatch": "gst.method.batch",
    "SegmentedGraph": "gst.graphs.segments",
    "open_store": "gst.graphs.store",
    "place": "gst.placement.placed",
    "prepare": "gst.graphs.store",
    "segment": "gst.graphs.segments",
}

__all__ = [
    "EmbeddingTable",
    "Graph",
    "GraphSegmentTraining",
    "SegmentBatch",
    "SegmentedGraph",
    "open_store",
    "place",
    "prepare",
    "segment",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gst' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
