"""Graphs of PyTorch Geometric, which `PygDataset` alone imports, and inputs of encoders for several types of nodes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gst.data.source import GraphSource
from gst.graphs.graph import Graph, from_pyg, is_hetero
from gst.method.batch import ExpandedBatch
from gst.util.untrusted import first_line

__all__ = ["EdgesByType", "NodesByType", "PygDataset", "from_pyg", "hetero_inputs"]


class PygDataset(GraphSource):
    """Graphs of a dataset class of PyG, which may download them when they are first read.

    Args:
        name: class of `torch_geometric.datasets`, such as `TUDataset`, or the dotted name of another one.
        arguments: of its constructor, such as `root`.
        transform: changes each `Data`, such as an object of `torch_geometric.transforms` that makes features.

    Raises:
        ValueError: there is no such class, it raises an error, or `from_pyg` refuses a graph; when graphs are read.

    Examples:
        >>> source = PygDataset("FakeDataset", {"num_graphs": 2})
        >>> [(graph.name, graph.num_configs) for graph in source]
        [('FakeDataset-0', 1), ('FakeDataset-1', 1)]
    """

    def __init__(
        self, name: str, arguments: dict[str, Any] | None = None, transform: Callable[..., Any] | None = None
    ) -> None:
        self.name, self.arguments, self.transform = name, arguments or {}, transform

    @cached_property
    def dataset(self) -> Any:
        """The dataset."""
        try:
            made = pkgutil.resolve_name(self.name if "." in self.name else f"torch_geometric.datasets:{self.name}")
            return made(**self.arguments, **({} if self.transform is None else {"transform": self.transform}))
        except Exception as error:
            raise ValueError(f"dataset {self.name} of PyG: {first_line(error)}") from error

    def __iter__(self) -> Iterator[Graph]:
        name = self.arguments.get("name", self.name.rpartition(".")[2])
        for number in range(len(self)):
            yield from_pyg(self.dataset[number], f"{name}-{number}")

    def __len__(self) -> int:
        return len(self.dataset)


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
