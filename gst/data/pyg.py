"""Graphs of PyTorch Geometric, or of anything with the same attributes, as `Graph`s. PyG itself is not imported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gst.graphs.graph import Graph
from gst.method.batch import ExpandedBatch

NO_DATA = ("x", "edge_index", "y", "batch", "ptr", "num_nodes", "opcodes")


def from_pyg(data: Any, name: str = "") -> Graph:
    """Convert a PyG `Data` or `HeteroData`. Nodes keep their numbers; `edge_index[0]` sends to `edge_index[1]`.

    Features keep their dtype (halves become float32). Other tensors with a row for each edge or node, such as
    `edge_attr` and `pos`, become `edge_data` and `node_data`; masks are left out.

    The nodes of a `HeteroData` are concatenated by type, and features are padded with zeros to the widest. `node_type`
    and `edge_type` hold the types' numbers; `hetero_inputs` separates them again. Other tensors are kept if all types
    have them in one shape (`edge_time` for edges if nodes have `time`); a warning names the others.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> data = SimpleNamespace(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([4.0]))
        >>> graph = from_pyg(data, name="path")
        >>> graph.num_nodes, graph.targets.tolist()
        (3, [4.0])

    Args:
        data: has `x` (nodes, features), `edge_index` (2, edges) and, if it is labelled, one number `y`: a class or
            a regression target. `opcodes` (nodes,), if there are any, are those of the `Graph`.
        name: unique within a dataset; by default `data.name`, else a digest of the content.

    Raises:
        ValueError: an attribute is missing or has the wrong shape, or `data` is a batch.
    """
    if getattr(data, "num_graphs", 1) != 1:
        raise ValueError(f"this is a Batch of {data.num_graphs} graphs; convert each of its to_data_list()")
    given = getattr(data, "name", "")
    arguments = _typed(data) if _is_hetero(data) else _plain(data)
    return Graph(
        **arguments,
        targets=_target(getattr(data, "y", None)),
        name=name or (given if isinstance(given, str) else ""),
    )


def _plain(data: Any) -> dict[str, Any]:
    x = _matrix(data, "x", "(nodes, features)", "gst.data.malnet.degree_profile(edges, num_nodes) makes some")
    edge_index = _matrix(data, "edge_index", "(2, edges)", "leave out PyG's ToSparseTensor")
    if len(edge_index) != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}, want (2, edges)")
    node_data, edge_data = {}, {}
    for key, tensor in _others(data):
        if key.startswith("edge_") and len(tensor) == edge_index.shape[1]:
            edge_data[key] = as_array(tensor)
        elif len(tensor) == len(x):
            node_data[key] = as_array(tensor)
        elif len(tensor) == edge_index.shape[1]:
            edge_data[key] = as_array(tensor)
    arguments = {
        "node_features": as_array(x), "edges": as_array(edge_index.long()),
        "node_data": node_data, "edge_data": edge_data,
    }  # fmt: skip
    opcodes = getattr(data, "opcodes", None)
    return arguments if opcodes is None else arguments | {"opcodes": as_array(opcodes.long())}


def _others(data: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by name that may belong to nodes or edges."""
    for key in data.keys() if callable(getattr(data, "keys", None)) else getattr(data, "__dict__", ()):
        value = getattr(data, key)
        if isinstance(value, Tensor) and value.dim() and key not in NO_DATA and not key.endswith("_mask"):
            yield key, value


def as_array(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to an array of its dtype; halves become float32."""
    tensor = tensor.detach().cpu()
    halves = (torch.float16, torch.bfloat16)
    return (tensor.float() if tensor.dtype in halves else tensor).numpy()


def _matrix(data: Any, key: str, shape: str, advice: str) -> Tensor:
    value = getattr(data, key, None)
    if not isinstance(value, Tensor):
        raise ValueError(f"{key} is {value!r}, want a tensor {shape}; {advice}")
    if value.dim() != 2:
        raise ValueError(f"{key} has shape {tuple(value.shape)}, want {shape}")
    return value


def _target(y: Any) -> np.ndarray:
    if y is None:
        return np.array([np.nan])
    numbers = y.detach().cpu().double().numpy() if isinstance(y, Tensor) else np.asarray(y, np.float64)
    if numbers.size != 1:
        raise ValueError(
            f"y has shape {numbers.shape}, want one number for the whole graph (a Graph has no labels of nodes); set "
            "data.y = None and pass several targets by DataLoader([(graph, y), ...], collate_fn=gst.collate)"
        )
    return numbers.reshape(1)


def _is_hetero(data: Any) -> bool:
    return hasattr(data, "node_types") and hasattr(data, "edge_types")


def _typed(data: Any) -> dict[str, Any]:
    features = {
        kind: as_array(_matrix(data[kind], "x", "(nodes, features)", f"of type {kind!r}")) for kind in data.node_types
    }
    widest = max(array.shape[1] for array in features.values())
    padded = [np.pad(array, ((0, 0), (0, widest - array.shape[1]))) for array in features.values()]
    first = dict(zip(features, np.cumsum([0, *map(len, features.values())])[:-1].tolist(), strict=True))
    shifted = []
    for source, _, target in data.edge_types:
        edge_index = _matrix(data[source, _, target], "edge_index", "(2, edges)", "leave out PyG's ToSparseTensor")
        shifted.append(as_array(edge_index.long()) + np.array([[first[source]], [first[target]]]))
    node_counts, edge_counts = [len(each) for each in features.values()], [each.shape[1] for each in shifted]
    node_data, left_nodes = _of_all_types([data[kind] for kind in data.node_types], node_counts)
    of_edges, left_edges = _of_all_types([data[kind] for kind in data.edge_types], edge_counts)
    edge_data = {f"edge_{key}" if key in node_data else key: array for key, array in of_edges.items()}
    if left_nodes or left_edges:
        names = ", ".join(sorted(left_nodes | left_edges))
        warnings.warn(f"left out: {names}, which not all types have in one shape and dtype, finite", stacklevel=3)
    return {
        "node_features": np.concatenate(padded),
        "edges": np.concatenate(shifted, axis=1) if shifted else np.zeros((2, 0), np.int64),
        "node_data": node_data | {"node_type": np.repeat(np.arange(len(features)), node_counts)},
        "edge_data": edge_data | {"edge_type": np.repeat(np.arange(len(shifted)), edge_counts)},
    }


def _of_all_types(parts: Sequence[Any], counts: Sequence[int]) -> tuple[dict[str, np.ndarray], set[str]]:
    """Join the tensors with a row for each node, or edge, that all types have; return the names of the others."""
    tensors = [
        {key: as_array(tensor) for key, tensor in _others(part) if len(tensor) == count}
        for part, count in zip(parts, counts, strict=True)
    ]
    names = {key for each in tensors for key in each}
    forms = {
        key: {(each[key].dtype, each[key].shape[1:]) if key in each else None for each in tensors} for key in names
    }
    joined = {key: np.concatenate([each[key] for each in tensors]) for key in sorted(names) if len(forms[key]) == 1}
    finite = {key: array for key, array in joined.items() if array.dtype.kind != "f" or np.isfinite(array).all()}
    return finite, names - finite.keys()


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
    if not _is_hetero(data):
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
