"""Graphs of PyTorch Geometric: inputs of encoders for several types of nodes. PyG itself is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gst.graphs.graph import from_pyg, is_hetero
from gst.method.batch import ExpandedBatch

__all__ = ["EdgesByType", "NodesByType", "from_pyg", "hetero_inputs"]


def hetero_inputs(data: Any) -> dict[str, Any]:
    """Return the argument `inputs` of `gst.GraphSegmentTraining` for an encoder `forward(x_dict, edge_index_dict)`.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> class Hetero(dict):  # with the attributes of a HeteroData, whose types the encoder takes
        ...     node_types, edge_types = ["op"], [("op", "feeds", "op")]
        >>> list(hetero_inputs(Hetero(op=SimpleNamespace(x=torch.ones(3, 2)))))
        ['x_dict', 'edge_index_dict']
    """
    if not is_hetero(data):
        raise ValueError(f"a {type(data).__name__} has no types; want a HeteroData")
    widths = tuple(data[kind].x.shape[1] for kind in data.node_types)
    edge_types = tuple(tuple(kind) for kind in data.edge_types)
    return {
        "x_dict": NodesByType(tuple(data.node_types), widths),
        "edge_index_dict": EdgesByType(tuple(data.node_types), edge_types),
    }


@dataclass(frozen=True)
class NodesByType:
    """Node features of a batch by type; each type has its own width."""

    node_types: tuple[str, ...]
    widths: tuple[int, ...]

    def __call__(self, batch: ExpandedBatch) -> Mapping[str, Tensor]:
        return {
            name: batch.x[batch.node_type == number, :width]
            for number, (name, width) in enumerate(zip(self.node_types, self.widths, strict=True))
        }


@dataclass(frozen=True)
class EdgesByType:
    """Edges of a batch by type; their ends are numbered among the nodes of their types."""

    node_types: tuple[str, ...]
    edge_types: tuple[tuple[str, ...], ...]

    def __call__(self, batch: ExpandedBatch) -> Mapping[tuple[str, ...], Tensor]:
        place = torch.empty_like(batch.node_type)
        for number in range(len(self.node_types)):
            chosen = batch.node_type == number
            place[chosen] = torch.arange(int(chosen.sum()), device=place.device)
        return {
            kind: place[batch.edge_index[:, batch.edge_type == number]] for number, kind in enumerate(self.edge_types)
        }
