"""Batches of graphs in a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import default_collate

from gst.graphs.segments import SegmentedGraph


def collate(items: Sequence[Any]) -> Any:
    """Collate segmented graphs to a list and all other items as torch does: `collate_fn=gst.collate`.

    Examples:
        >>> import numpy as np, gst
        >>> cut = gst.segment(gst.Graph(np.zeros((3, 1), np.float32), np.zeros((2, 0), np.int64)))
        >>> graphs, labels = collate([(cut, 1), (cut, 0)])
        >>> len(graphs), labels
        (2, tensor([1, 0]))
    """
    first = items[0]
    if isinstance(first, SegmentedGraph):
        return list(items)
    if isinstance(first, Mapping):
        return {key: collate([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        return [collate(column) for column in zip(*items, strict=True)]
    return default_collate(list(items))
