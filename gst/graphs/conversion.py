"""Graphs of PyTorch Geometric, or of anything with the same attributes, as `Graph`s. PyG itself is not imported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gst.graphs.graph import Graph

NO_DATA = ("x", "edge_index", "y", "batch", "ptr", "num_nodes", "opcodes")
OF_EDGES = ("edge_attr", "edge_weight", "edge_type")  # which have a row for each edge, or are wrong
OF_NODES = ("pos", "normal", "z", "n_id")  # names that PyG uses for data of nodes


def from_pyg(data: Any, name: str = "", with_target: bool = True) -> Graph:
    """Convert a PyG `Data` or `HeteroData`. Nodes keep their numbers; `edge_index[0]` sends to `edge_index[1]`.

    Features keep their dtype (halves become float32). Other tensors with a row for each edge or node, such as
    `edge_attr` and `pos`, become `edge_data` and `node_data`; a warning names masks and others, which are left out.
    Numbers of nodes or edges are no data (`parent_index`), since segments number theirs anew.

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
        data: has `x` (nodes, features), `edge_index` (2, edges) and, if it is labelled, one number `y`, a class or a
            regression target, or several targets (1, targets). `opcodes` (nodes,) are those of the `Graph`.
        name: unique within a dataset; by default `data.name`, else a digest of the content.
        with_target: False leaves `y` unread.

    Raises:
        ValueError: an attribute is missing or has the wrong shape, is named an index, or may belong to nodes or to
            edges, of which there are equally many; or `data` is a batch.
    """
    graph = converted(data, name, with_target)
    if differentiable := sources_of(data):
        warnings.warn(
            f"{', '.join(differentiable)} requires a gradient, which a Graph does not pass on: give the Data itself to "
            "the model, model([data]), or detach() it",
            stacklevel=2,
        )
    return graph


def converted(data: Any, name: str = "", with_target: bool = True) -> Graph:
    """Convert a PyG `Data` or `HeteroData` as `from_pyg`, without gradients and without a word about them."""
    if isinstance(data, list | tuple) and not is_pyg(data):
        raise ValueError(f"from_pyg takes one Data, not {len(data)} of them: [gst.from_pyg(each) for each in data]")
    if getattr(data, "num_graphs", 1) != 1:
        raise ValueError(f"this is a Batch of {data.num_graphs} graphs; convert each of its to_data_list()")
    own_name = getattr(data, "name", "")
    arguments = _typed(data) if is_hetero(data) else _plain(data)
    return Graph(
        **arguments,
        targets=_target(getattr(data, "y", None) if with_target else None),
        name=name or (own_name if isinstance(own_name, str) else ""),
    )


def _plain(data: Any) -> dict[str, Any]:
    x = _matrix(data, "x", "(nodes, features)", "gst.data.malnet.degree_profile(edges, num_nodes) makes some")
    edges = _edges(data)
    node_data, edge_data, left = {}, {}, []
    for key, tensor in _others(data):
        of_nodes, of_edges = len(tensor) == len(x), len(tensor) == edges.shape[1]
        is_clear = "edge" in key or key in OF_NODES or key.startswith("node_") or key.endswith("_mask")
        if of_nodes and of_edges and not is_clear:
            raise ValueError(
                f"{key} has {len(tensor)} rows, and the graph as many edges as nodes: say which it belongs to, by the "
                f"name node_{key} or edge_{key}"
            )
        if of_edges and ("edge" in key or not of_nodes):  # as PyG's `is_edge_attr`
            edge_data[key] = as_array(tensor)
        elif key in OF_EDGES:
            raise ValueError(f"{key} has {len(tensor)} rows for {edges.shape[1]} edges; want one row for each edge")
        elif of_nodes and not key.endswith("_mask"):
            node_data[key] = as_array(tensor)
        else:
            left.append(f"{key} {tuple(tensor.shape)}")
    if left:
        warnings.warn(
            f"left out: {', '.join(left)}; kept are tensors with a row for each node or edge, except masks",
            stacklevel=4,
        )
    arguments = {"node_features": as_array(x), "edges": edges, "node_data": node_data, "edge_data": edge_data}
    opcodes = getattr(data, "opcodes", None)
    return arguments if opcodes is None else arguments | {"opcodes": as_array(opcodes.long())}


def _others(data: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by name that may belong to nodes or edges."""
    for key in data.keys() if callable(getattr(data, "keys", None)) else getattr(data, "__dict__", ()):
        value = getattr(data, key)
        if isinstance(value, Tensor) and value.dim() and key not in NO_DATA:
            yield key, value


def _edges(data: Any, source: int | None = None, target: int | None = None) -> np.ndarray:
    """Return `edge_index`, checked; `source` and `target` are the numbers of nodes of two types."""
    edge_index = _matrix(data, "edge_index", "(2, edges)", "leave out PyG's ToSparseTensor")
    if len(edge_index) != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}, want (2, edges)")
    if edge_index.numel() and (edge_index.is_floating_point() or edge_index.dtype == torch.bool):
        raise ValueError(f"edge_index is {edge_index.dtype}, want numbers of nodes: edge_index.long()")
    edges = as_array(edge_index.long())
    for ends, count in zip(edges, (source, target), strict=True):
        if count is not None and ends.size and not 0 <= ends.min() <= ends.max() < count:
            raise ValueError(f"edge_index names nodes {ends.min()}..{ends.max()}, but nodes are 0..{count - 1}")
    return edges


def sources_of(data: Any) -> dict[str, Tensor]:
    """Return the tensors of `data` that require a gradient, by name; of several types of nodes with their types."""
    if is_hetero(data):
        parts = ((kind, data[kind]) for kind in (*data.node_types, *data.edge_types))
        return {f"{key} of {kind!r}": each for kind, part in parts for key, each in sources_of(part).items()}
    tensors = {"x": getattr(data, "x", None), **dict(_others(data))}
    return {key: each for key, each in tensors.items() if isinstance(each, Tensor) and each.requires_grad}


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
    if numbers.size != 1 and not (numbers.ndim == 2 and len(numbers) == 1):
        raise ValueError(
            f"y has shape {numbers.shape}, want one number for the whole graph, or (1, targets) (a Graph has no labels "
            "of nodes); set data.y = None and pass others by DataLoader([(graph, y), ...], collate_fn=gst.collate)"
        )
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"y is {numbers.ravel().tolist()}; want finite numbers, or data.y = None for an unknown target"
        )
    return numbers.reshape(1) if numbers.size == 1 else numbers


def is_pyg(data: Any) -> bool:
    """True for what `from_pyg` takes, to judge by its attributes."""
    return hasattr(data, "edge_index") or is_hetero(data)


def is_hetero(data: Any) -> bool:
    """True for a `HeteroData`, to judge by its attributes."""
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
        try:
            edges = _edges(data[source, _, target], len(features[source]), len(features[target]))
        except ValueError as error:
            raise ValueError(f"of edges {(source, _, target)}: {error}") from None
        shifted.append(edges + np.array([[first[source]], [first[target]]]))
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
    tensors = []
    for part, count in zip(parts, counts, strict=True):
        of_part = dict(_others(part))
        if short := [key for key in OF_EDGES if len(of_part.get(key, range(count))) != count]:
            raise ValueError(f"{short[0]} has {len(of_part[short[0]])} rows for {count} edges; want one for each edge")
        tensors.append({key: as_array(tensor) for key, tensor in of_part.items()})
    names = {key for each in tensors for key in each}
    forms = {
        key: {
            (each[key].dtype, each[key].shape[1:]) if key in each and len(each[key]) == count else None
            for each, count in zip(tensors, counts, strict=True)
        }
        for key in names
    }
    joined = {key: np.concatenate([each[key] for each in tensors]) for key in sorted(names)
              if len(forms[key]) == 1 and None not in forms[key] and not key.endswith("_mask")}  # fmt: skip
    finite = {key: array for key, array in joined.items() if array.dtype.kind != "f" or np.isfinite(array).all()}
    return finite, names - finite.keys()
