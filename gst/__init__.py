"""Graph Segment Training: learn how fast giant computation graphs run, and place them on devices.

Names and submodules are loaded when they are first touched: `import gst` is quick, and a machine that lacks a library
lacks only the names that need it.

Examples:
    >>> import gst
    >>> gst.nn.Head(channels=8).mlp[0].in_features
    8
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gst.util.imports import lazy_names

if TYPE_CHECKING:
    from embedding_cache import EmbeddingTable
    from gst import cost, data, nn, placement, programs
    from gst.data.loader import collate
    from gst.data.pyg import from_pyg
    from gst.graphs.graph import Graph
    from gst.graphs.segments import SegmentedGraph, segment
    from gst.graphs.store import open_store, prepare
    from gst.method.batch import SegmentBatch
    from gst.method.estimator import GraphSegmentTraining
    from gst.placement.api.place import place, placed
    from gst.placement.api.placed import load

    __version__: str

__all__ = [
    "EmbeddingTable", "Graph", "GraphSegmentTraining", "SegmentBatch", "SegmentedGraph",
    "__version__", "collate", "cost", "data", "from_pyg", "load", "nn", "open_store",
    "place", "placed", "placement", "prepare", "programs", "segment",
]  # fmt: skip


_find = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from gst.util.process import version

        return version()
    return _find(name)


def __dir__() -> list[str]:
    return __all__
