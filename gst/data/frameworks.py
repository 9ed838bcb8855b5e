"""Graphs of NetworkX as `Graph`s, and batches of graphs in a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph


def from_networkx(
    graph: Any, node_features: str | Sequence[str], node_data: Sequence[str] = (), edge_data: Sequence[str] = (),
    name: str = "",
) -> Graph:  # fmt: skip
    """Convert a NetworkX graph. Nodes are numbered in its own order; an edge of an undirected graph becomes two.

    Args:
        node_features: attributes of nodes, numbers or lists of them, that become the columns of `node_features` in
            float32; `()` for none.
        node_data, edge_data: attributes of nodes and edges that keep their names and dtypes.
        name: unique within a dataset; by default made from the content.

    Raises:
        ValueError: a node or an edge lacks an attribute, or has one of another length than the others.

    Examples:
        >>> class Path(dict):  # with the methods of networkx.DiGraph
        ...     is_directed = staticmethod(lambda: True)
        ...     nodes = staticmethod(lambda data: [("a", {"size": 1}), ("b", {"size": 2})])
        ...     edges = staticmethod(lambda data: [("a", "b", {"bytes": 8})])
        >>> graph = from_networkx(Path(), "size", edge_data=["bytes"])
        >>> graph.node_features.tolist(), graph.edges.tolist(), graph.edge_data["bytes"].tolist()
        ([[1.0], [2.0]], [[0], [1]], [8])
    """
    nodes = list(graph.nodes(data=True))
    number = {node: position for position, (node, _) in enumerate(nodes)}
    edges = [(f"edge {source!r} -> {target!r}", number[source], number[target], attributes)
             for source, target, attributes in graph.edges(data=True)]  # fmt: skip
    if not graph.is_directed():
        edges += [(label, target, source, each) for label, source, target, each in edges if source != target]
    of_nodes = [(f"node {node!r}", attributes) for node, attributes in nodes]
    of_edges = [(label, attributes) for label, _, _, attributes in edges]
    names = [node_features] if isinstance(node_features, str) else node_features
    columns = [_column(of_nodes, key).reshape(len(nodes), -1) for key in names]
    return Graph(
        np.concatenate([np.zeros((len(nodes), 0)), *columns], axis=1).astype(np.float32),
        np.array([(source, target) for _, source, target, _ in edges], np.int64).reshape(-1, 2).T,
        name=name,
        node_data={key: _column(of_nodes, key) for key in node_data},
        edge_data={key: _column(of_edges, key) for key in edge_data},
    )


def _column(rows: Sequence[tuple[str, dict[str, Any]]], key: str) -> np.ndarray:
    lacking = next((label for label, attributes in rows if key not in attributes), None)
    if lacking is not None:
        raise ValueError(f"{lacking} has no attribute {key!r}; give it one, or leave {key!r} out")
    values = [np.asarray(attributes[key]) for _, attributes in rows]
    other = next((row for row, value in enumerate(values) if value.shape != values[0].shape), None)
    if other is not None:
        raise ValueError(f"{key!r} of {rows[other][0]} has shape {values[other].shape}, of others {values[0].shape}")
    return np.stack(values) if values else np.zeros(0)


def collate(items: Sequence[Any]) -> Any:
    """Collate segmented graphs to a list and all other items as torch does: `collate_fn=gst.collate`.

    Examples:
        >>> import gst
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
