"""Graphs as a model is given them: segmented ones, or PyG's `Data`, which is cut at its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gst.graphs.conversion import from_pyg, is_pyg
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment

MOST_KEPT = 1 << 16  # graphs


class Entrance:
    """Turns the argument `graphs` of a model into segmented graphs; those it cuts itself it keeps by their content.

    Args:
        max_nodes: of `gst.segment`.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> data = SimpleNamespace(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> [graph.num_segments for graph in Entrance(max_nodes=2)([data])]
        [2]
    """

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self._cut: dict[str, SegmentedGraph] = {}

    def __call__(self, graphs: Any) -> tuple[SegmentedGraph, ...]:
        """Return segmented graphs; `graphs` is a list, or a batch of PyG's `DataLoader`.

        Raises:
            ValueError: it is a single graph, or empty.
        """
        graphs = graphs.to_data_list() if hasattr(graphs, "to_data_list") else graphs
        if isinstance(graphs, Graph | SegmentedGraph) or is_pyg(graphs):
            raise ValueError(f"the model was given one {type(graphs).__name__}; want a list of graphs: model([graph])")
        if not isinstance(graphs, Sequence):
            raise ValueError(f"the model was given a {type(graphs).__name__}; want a list of segmented graphs or Data")
        if not graphs:
            raise ValueError("the model was given no graphs; want a list of at least one")
        return tuple(self._cut_of(each) if is_pyg(each) else each for each in graphs)

    def _cut_of(self, data: Any) -> SegmentedGraph:
        graph = from_pyg(data, with_target=False)
        key = graph.digest()
        if key not in self._cut:
            if len(self._cut) >= MOST_KEPT:
                del self._cut[next(iter(self._cut))]
            self._cut[key] = segment(graph, self.max_nodes)
        cut, x = self._cut[key], getattr(data, "x", None)
        if not isinstance(x, Tensor) or not x.requires_grad:
            return cut
        differentiable = replace(cut)
        differentiable.__dict__["source"] = x  # of the gradient; `assemble` takes rows from it
        return differentiable


def have_configs(graphs: Sequence[SegmentedGraph], configs: Tensor | None) -> bool:
    """True if predictions have an axis of configurations: some are asked for, or a graph has any."""
    return configs is not None or any(graph.has_configs for graph in graphs)
