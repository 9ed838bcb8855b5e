"""What of somebody's model would go wrong in silence when it learns from segments: refused or warned of at the start.

Classes of PyG are recognised by what they are called and what they take; PyG itself is not imported.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import cast

from torch import nn

from gst.method.encoding import contract
from gst.method.pooling import Pooling, check_pooling

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
