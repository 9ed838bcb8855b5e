"""How an encoder is called, what it may return, and what in it would go wrong silently on segments."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.method.batch import NodeStates, SegmentBatch
from gst.method.pooling import Pooling, check_pooling, pool_nodes

Contract = Literal["batch", "edges", "edges and batch"]


def contract(encoder: Callable[..., Any]) -> Contract:
    """What `encoder` wants, by its signature: a `SegmentBatch` if it requires one argument, else `(x, edge_index)`,
    with `batch=`, the segment of each row (PyG's convention), if it has an argument of that name."""
    encoder = getattr(encoder, "_orig_mod", encoder)  # of torch.compile
    if isinstance(encoder, nn.parallel.DistributedDataParallel):
        encoder = encoder.module
    call = encoder.forward if isinstance(encoder, nn.Module) else encoder
    parameters = inspect.signature(call).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):  # PyG's Sequential, which names its arguments elsewhere
        named = getattr(getattr(encoder, "signature", None), "param_dict", {})
        return "edges and batch" if "batch" in named else "edges"
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind in positional]
    if len(required) < 2:
        return "batch"
    return "edges and batch" if any(p.name == "batch" for p in parameters) else "edges"


def embed_segments(
    encoder: Callable[..., Any], batch: SegmentBatch, kind: Contract, pooling: Pooling
) -> Float[Tensor, "segments configs channels"]:
    """Encode `batch` and pool what comes back: `NodeStates`, or rows of nodes or segments, with configurations or
    without.

    Raises:
        ValueError: it is neither one row for each node nor one for each segment, or names rows that are not there.
    """
    returned = encoder(batch) if kind == "batch" else _by_edges(encoder, batch, kind)
    if isinstance(returned, NodeStates):
        if int(returned.row_of.min()) < 0 or int(returned.row_of.max()) >= len(returned.rows):
            raise ValueError(f"the encoder's row_of points outside its {len(returned.rows)} rows")
        return pool_nodes(returned, batch, pooling)
    if returned.dim() == 2:
        returned = returned[:, None].expand(-1, batch.num_configs, -1)
    if len(returned) == batch.num_nodes:
        return pool_nodes(_unshared(returned), batch, pooling)
    if len(returned) == batch.num_segments:
        return returned.to(torch.promote_types(returned.dtype, torch.float32))
    raise ValueError(
        f"the encoder returned {len(returned)} rows for a batch of {batch.num_nodes} nodes in {batch.num_segments} "
        f"segments; it has to return one row for each node or one for each segment"
    )


def _unshared(rows: Float[Tensor, "nodes configs channels"]) -> NodeStates:
    nodes, configs, channels = rows.shape
    every = torch.arange(nodes * configs, device=rows.device).view(nodes, configs)
    return NodeStates(rows.reshape(nodes * configs, channels), every)


def _by_edges(encoder: Callable[..., Any], batch: SegmentBatch, kind: Contract) -> Tensor:
    """One copy of the batch for each configuration; (nodes, configs, channels)."""
    x, edge_index = batch.expanded()
    configs = batch.num_configs
    if kind == "edges and batch":
        shift = torch.arange(configs, device=x.device)[:, None] * batch.num_segments
        returned = encoder(x, edge_index, batch=(batch.segment_of_node + shift).flatten())
    else:
        returned = encoder(x, edge_index)
    if len(returned) != len(x):
        raise ValueError(
            f"the encoder returned {len(returned)} rows for {len(x)} nodes; it has to return one row for each node"
        )
    return returned.view(configs, -1, returned.shape[-1]).transpose(0, 1)


_SAME_AS: dict[str, Pooling] = {
    "SumAggregation": "sum", "MeanAggregation": "mean", "MaxAggregation": "max",
    "global_add_pool": "sum", "global_mean_pool": "mean", "global_max_pool": "max",
}  # fmt: skip
_ATTENDING = ("Set2Set", "AttentionalAggregation", "SoftmaxAggregation", "SetTransformerAggregation",
              "GraphMultisetTransformer")  # fmt: skip
_ORDERING = ("SortAggregation", "MedianAggregation", "QuantileAggregation", "LSTMAggregation", "GRUAggregation")


def pooling_name(pooling: object) -> Pooling:
    """The readout that `pooling` is: itself if it is a name, else that of PyG's `SumAggregation()`, `global_add_pool`
    and the like.

    Raises:
        ValueError: it does not decompose over segments, or nobody knows whether it does.
    """
    if isinstance(pooling, str):
        check_pooling(pooling)
        return cast(Pooling, pooling)
    kind = pooling if hasattr(pooling, "__name__") else type(pooling)  # a function or a class; or an object
    name = getattr(kind, "__name__", "")
    if name in _SAME_AS and kind.__module__.startswith("torch_geometric."):
        return _SAME_AS[name]
    raise ValueError(f"pooling {pooling!r} {_why(name)}; use 'sum', 'mean' or 'max'")


def _why(name: str) -> str:
    if name in _ATTENDING:
        return (
            "weighs every node against all others of its graph, so it does not decompose over segments, of which most "
            "are not at hand in a step; for a learned weight let the encoder multiply each node by sigmoid(gate(node))"
        )
    if name in _ORDERING:
        return "puts all nodes of a graph in order, so it does not decompose over segments"
    return "is not known to decompose over segments (the readout of a graph computed from those of its parts)"


def complaints(encoder: object) -> list[str]:
    """A sentence for each way in which segments of one batch would influence each other inside `encoder`. None for a
    callable that is no module: nobody can look into it."""
    if not isinstance(encoder, nn.Module):
        return []
    found = []
    layers = _names(encoder, lambda layer: isinstance(layer, nn.modules.batchnorm._BatchNorm))
    if layers:
        found.append(
            f"the encoder holds BatchNorm ({layers}): its statistics come from the few fresh segments of a step and "
            f"couple segments of one batch; LayerNorm of each node (torch.nn.LayerNorm) does neither"
        )
    layers = _names(encoder, _needs_segments) if contract(encoder) == "edges" else ""
    if layers:
        found.append(
            f"the encoder holds layers that look at whole graphs ({layers}), and takes every batch for one graph, "
            f"since it has no argument `batch`: segments of different graphs would influence each other; let it be "
            f"forward(self, x, edge_index, batch) and hand `batch`, the segment of each row, to these layers"
        )
    return found


def warn_about(encoder: object, stacklevel: int = 3) -> None:
    """Warn of the `complaints`, in the name of whoever called the caller."""
    for complaint in complaints(encoder):
        warnings.warn(complaint, stacklevel=stacklevel)


def _needs_segments(layer: nn.Module) -> bool:
    """Whether statistics or attention of `layer` go over all nodes it is not told to keep apart: PyG's GraphNorm,
    InstanceNorm, LayerNorm unless its mode is "node", ... and GPSConv."""
    named_so = type(layer).__name__.endswith(("Norm", "GPSConv"))
    return named_so and "batch" in inspect.signature(layer.forward).parameters and getattr(layer, "mode", "") != "node"


def _names(encoder: nn.Module, fits: Callable[[nn.Module], bool], most: int = 3) -> str:
    """The layers that fit, by class and place, the first `most` of them."""
    found = [
        f"{type(layer).__name__} at {place}" if place else type(layer).__name__
        for place, layer in encoder.named_modules()
        if fits(layer)
    ]
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
