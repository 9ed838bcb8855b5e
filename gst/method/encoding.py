"""How an encoder is called, whoever wrote it, and how what it returns becomes embeddings of segments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.method.batch import SegmentBatch
from gst.method.pooling import Pooling, pool_nodes
from gst.method.states import NodeStates

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
