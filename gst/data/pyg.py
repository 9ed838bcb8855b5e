"""Graphs of PyTorch Geometric, or of anything with the same attributes, as `Graph`s. PyG itself is not imported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from torch import Tensor

from gst.graphs.graph import Graph


def from_pyg(data: Any, name: str = "") -> Graph:
    """A PyG `Data` as a `Graph`. Nodes keep their numbers; `edge_index[0]` sends to `edge_index[1]`.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> data = SimpleNamespace(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([4.0]))
        >>> graph = from_pyg(data, name="path")
        >>> graph.num_nodes, graph.targets.tolist()
        (3, [4.0])

    Args:
        data: has `x` (nodes, features), `edge_index` (2, edges) and, if it is labelled, one number `y`: a class or
            a regression target. Edge features are dropped, with a warning.
        name: unique within a dataset; by default `data.name` or else made from the content.

    Raises:
        ValueError: an attribute is missing or has the wrong shape, or `data` is a batch.
    """
    if getattr(data, "num_graphs", 1) != 1:
        raise ValueError(f"this is a Batch of {data.num_graphs} graphs; convert each of its to_data_list()")
    x = _matrix(data, "x", "(nodes, features)", "gst.data.degree_profile makes features of degrees")
    edge_index = _matrix(data, "edge_index", "(2, edges)", "leave out PyG's ToSparseTensor")
    if len(edge_index) != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}, want (2, edges)")
    lost = [key for key in ("edge_attr", "edge_weight") if getattr(data, key, None) is not None]
    if lost:
        warnings.warn(f"{' and '.join(lost)} left behind: a Graph has no features of edges", stacklevel=2)
    given = getattr(data, "name", "")
    return Graph(
        x.detach().cpu().float().numpy(),
        edge_index.cpu().long().numpy(),
        targets=_target(getattr(data, "y", None)),
        name=name or (given if isinstance(given, str) else ""),
    )


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
            f"y has shape {numbers.shape}, want one number for the whole graph; for several tasks convert once for "
            f"each, with data.y set to its label (labels of nodes have no place in a Graph)"
        )
    return numbers.reshape(1)
