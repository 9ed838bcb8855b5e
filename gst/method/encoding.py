"""From a batch of segments to embeddings: calls of encoders, readouts that decompose over segments, and warnings."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gst.graphs.graph import NAMES_TAKEN
from gst.method import kernels
from gst.method.batch import ExpandedBatch, NodeStates, SegmentBatch, assemble
from gst.method.draws import Catalogue

Source = str | Callable[[ExpandedBatch], Any]

Inputs = Literal["batch", "data"] | Mapping[str, Source]
"""A whole `SegmentBatch`, a whole `ExpandedBatch`, or a field or function of the batch for each argument by name."""


@dataclass(frozen=True)
class Call:
    """Convention by which an encoder is called.

    Args:
        whole: it takes one argument, a `SegmentBatch` or an `ExpandedBatch`; None if it takes fields.
        positional: fields of an `ExpandedBatch` that it takes by position.
        named: sources of what it takes by name.
        optional: fields that it takes by name where the graphs have them.
    """

    whole: Literal["batch", "data"] | None
    positional: tuple[str, ...] = ()
    named: Mapping[str, Source] | None = None
    optional: tuple[str, ...] = ()

    @property
    def takes_segments(self) -> bool:
        """True if the encoder may know the segment of each row."""
        return self.whole is not None or "batch" in (*self.positional, *self.optional, *(self.named or {}))

    @torch.compiler.disable
    def arguments(self, batch: SegmentBatch) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Of the encoder, by position and by name."""
        if self.whole is not None:
            return (batch if self.whole == "batch" else batch.expanded(),), {}
        copies = batch.expanded()
        named = {name: _take(source, copies) for name, source in (self.named or {}).items()}
        named |= {name: getattr(copies, name) for name in self.optional if name in copies}
        return tuple(_take(name, copies) for name in self.positional), named

    def rows(self, returned: Any, batch: SegmentBatch) -> Any:
        """Reshape rows of all copies to (nodes or segments, configurations, channels)."""
        returned = returned[0] if isinstance(returned, tuple | list) else returned
        if self.whole == "batch":
            return returned
        copies = batch.expanded()
        if isinstance(returned, Mapping):
            returned = _by_type(returned, copies, self.named or {})
        if not isinstance(returned, Tensor):
            raise ValueError(
                f"the encoder returned a {type(returned).__name__}; want a tensor with a row for each node"
            )
        for rows in (batch.num_nodes, batch.num_segments):
            if len(returned) == rows * batch.num_configs:
                return returned.view(batch.num_configs, rows, returned.shape[-1]).transpose(0, 1)
        raise ValueError(
            f"the encoder returned {len(returned)} rows for {copies.num_nodes} nodes in {copies.num_graphs} segments; "
            "it has to return one row for each node or one for each segment"
        )


def call_of(encoder: Callable[..., Any], inputs: Inputs | None = None) -> Call:
    """Return the convention by which to call `encoder`: that of `inputs`, or else of its signature.

    An encoder that requires one argument takes an `ExpandedBatch` if the argument is called `data`, else a
    `SegmentBatch`. One that requires more takes `x` and `edge_index` first, unless the names say otherwise, and others
    by name: `batch`, `opcodes`, `edge_attr`, ... So do arguments with a default that have the name of a field.

    Raises:
        ValueError: `inputs` is neither a mapping nor a name, or holds arguments that the encoder does not take.
    """
    parameters = _parameters(encoder)
    if isinstance(inputs, Mapping):
        known = {parameter.name for parameter in parameters}
        unknown = [name for name in inputs if name not in known]
        if unknown and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            raise ValueError(f"inputs names {', '.join(unknown)}, but the encoder takes {', '.join(sorted(known))}")
        return Call(None, named=inputs)
    if inputs is not None:
        if inputs not in ("batch", "data"):
            raise ValueError(f"inputs is {inputs!r}; want 'batch', 'data', or a mapping from arguments to fields")
        return Call(inputs)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each.name for each in parameters if each.default is each.empty and each.kind in by_position]
    only_named = [each.name for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY]
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):  # PyG's Sequential, which names them elsewhere
        required = list(getattr(getattr(encoder, "signature", None), "param_dict", {})) or ["x", "edge_index"]
    if len(required) < 2:
        return Call("data" if required == ["data"] else "batch")
    if required[0] in ("g", "graph"):
        raise ValueError(
            f"the encoder takes {', '.join(required)}, as with DGL; say what they are: inputs={{'{required[0]}': "
            f"lambda batch: dgl.graph(tuple(batch.edge_index), num_nodes=batch.num_nodes), '{required[1]}': 'x'}}"
        )
    roles = [name for name in ("x", "edge_index") if name not in required]
    positional = []
    for place, name in enumerate(required):
        is_field = name in NAMES_TAKEN or place > 1 or not roles
        positional.append(name if is_field else roles.pop(0))
    optional = tuple(each.name for each in parameters if each.default is not each.empty)
    return Call(None, tuple(positional), {name: name for name in only_named}, optional)


def _parameters(encoder: Callable[..., Any]) -> list[inspect.Parameter]:
    encoder = getattr(encoder, "_orig_mod", encoder)  # of torch.compile
    if isinstance(encoder, nn.parallel.DistributedDataParallel):
        encoder = encoder.module
    return list(inspect.signature(encoder.forward if isinstance(encoder, nn.Module) else encoder).parameters.values())


def _take(source: Source, copies: ExpandedBatch) -> Any:
    if callable(source):
        return source(copies)
    if source not in copies:
        raise ValueError(
            f"the encoder takes {source!r}, which the graphs do not have; they have {', '.join(copies.names())}: "
            f"add it to node_data or edge_data of every Graph, or say what it is, inputs={{{source!r}: ...}}"
        )
    return getattr(copies, source)


def _by_type(returned: Mapping[str, Tensor], copies: ExpandedBatch, named: Mapping[str, Source]) -> Tensor:
    """Rows of all nodes from those of each type, as an encoder for PyG's `HeteroData` returns them."""
    types = next((source.node_types for source in named.values() if hasattr(source, "node_types")), None)
    if types is None:
        raise ValueError("the encoder returned a dictionary; give inputs=gst.data.pyg.hetero_inputs(data), or a tensor")
    node_type, rows = copies.node_type, next(iter(returned.values()))
    together = rows.new_empty(copies.num_nodes, rows.shape[1])
    for number, name in enumerate(types):
        chosen = (node_type == number).nonzero().squeeze(1)
        if name in returned:
            together = together.index_copy(0, chosen, returned[name])
        elif len(chosen):
            raise ValueError(
                f"the encoder returned nothing for nodes of type {name!r}, which the readout counts; return their "
                "input for them, or leave them out of the graphs"
            )
    return together


@torch.compiler.disable(recursive=False)  # else all of a step would be compiled with the encoder
def embed_segments(
    encoder: Callable[..., Any], batch: SegmentBatch, call: Call, pooling: Pooling
) -> Float[Tensor, "segments configs channels"]:
    """Encode `batch` and pool the result: `NodeStates`, or rows of nodes or segments, with or without configurations.

    Raises:
        ValueError: it is neither one row for each node nor one for each segment, or names rows that are not there.
    """
    positional, named = call.arguments(batch)
    return _pooled(encoder(*positional, **named), batch, call, pooling)


@torch.no_grad()
def encode_segments(
    embed: Callable[[SegmentBatch], Tensor],
    catalogue: Catalogue,
    segments: Int64[Tensor, " chosen"],
    configs: Int64[Tensor, "graphs configs"],
    max_rows: int,
    like: Tensor,
) -> Float[Tensor, "chosen configs channels"]:
    """Encode `segments` without gradient, on the device and in the dtype of `like`.

    Segments that do not depend on the configuration are encoded once; a single segment too large for `max_rows` meets
    its configurations a few at a time."""
    varied = catalogue.configurable[segments] | (configs.shape[1] == 1)
    pieces = []
    for chosen, width in ((segments[varied], configs.shape[1]), (segments[~varied], 1)):
        if len(chosen):
            at_once, picks = max(1, max_rows // int(catalogue.rows[chosen].sum())), catalogue.picks(chosen)
            batches = (assemble(catalogue.graphs, picks, part) for part in configs[:, :width].split(at_once, dim=1))
            embedded = torch.cat([embed(batch.to(like.device, like.dtype)) for batch in batches], dim=1)
            pieces.append(embedded.expand(-1, configs.shape[1], -1))
    together = torch.cat(pieces)
    order = torch.cat([varied.nonzero(), (~varied).nonzero()]).squeeze(1)
    return together[torch.argsort(order).to(together.device, non_blocking=True)]


@torch.compiler.disable(recursive=False)
def apply_head(head: Callable[[Tensor], Tensor], embedded: Tensor) -> Tensor:
    """Return the prediction of `head`, outside of autocast: bf16 would blur differences between configurations."""
    if isinstance(head, nn.Module):
        dtype = parameter_of(head, embedded).dtype
        if embedded.dtype == torch.promote_types(dtype, torch.float32):
            embedded = embedded.to(dtype)
    with torch.autocast(embedded.device.type, enabled=False):
        try:
            return head(embedded)
        except RuntimeError as error:
            if "shapes cannot be multiplied" not in str(error):
                raise
            raise ValueError(f"the head refuses embeddings of {embedded.shape[-1]} numbers: {error}") from error


def parameter_of(module: nn.Module, otherwise: Tensor) -> Tensor:
    """Return the first float parameter that has a shape: quantized weights do not show the dtype of inputs."""
    floats = (p for p in module.parameters() if not nn.parameter.is_lazy(p) and p.is_floating_point())
    return next(floats, otherwise)


def version(module: object) -> tuple[Any, ...]:
    """Return a value that changes once a parameter or buffer is replaced or written to; constant for FSDP's shards."""
    if not isinstance(module, nn.Module):
        return (0,)
    tensors = [*module.parameters(), *module.buffers()]
    if any(hasattr(tensor, "to_local") or tensor.is_inference() for tensor in tensors):
        return (0,)
    return tuple((id(each), each.dtype, 0 if nn.parameter.is_lazy(each) else each._version) for each in tensors)


@contextmanager
def evaluating(*modules: object) -> Iterator[None]:
    """Put modules into evaluation mode inside the context, and each of their layers back into its own mode after it."""
    training = [
        layer for module in modules if isinstance(module, nn.Module) for layer in module.modules() if layer.training
    ]
    for layer in training:
        layer.training = False
    try:
        yield
    finally:
        for layer in training:
            layer.training = True


def rank() -> int:
    """Return the rank of this process, 0 without `torch.distributed`."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def check_reducer() -> None:
    """Raise ValueError in a step inside a DistributedDataParallel that waits for gradients of a frozen encoder."""
    wrapper = nn.parallel.DistributedDataParallel._get_active_ddp_module()
    if wrapper is None or wrapper.find_unused_parameters:
        return
    learning = sum(
        parameter.requires_grad and name not in wrapper.parameters_to_ignore
        for name, parameter in wrapper.module.named_parameters()
    )
    if wrapper._get_ddp_logging_data()["num_parameter_tensors"] > learning:
        raise ValueError(
            "DistributedDataParallel waits for gradients of the frozen encoder; after freeze_encoder() wrap the model "
            "anew: model = DistributedDataParallel(model.module)"
        )


@torch.compiler.disable
def _pooled(returned: Any, batch: SegmentBatch, call: Call, pooling: Pooling) -> Tensor:
    returned = call.rows(returned, batch)
    if isinstance(returned, NodeStates):
        row_of = returned.row_of
        if row_of.device.type == "cpu" and not 0 <= int(row_of.min()) <= int(row_of.max()) < len(returned.rows):
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


_SAME_AS: dict[str, Pooling] = {
    "SumAggregation": "sum", "MeanAggregation": "mean", "MaxAggregation": "max",
    "global_add_pool": "sum", "global_mean_pool": "mean", "global_max_pool": "max",
}  # fmt: skip
_ATTENDING = ("Set2Set", "AttentionalAggregation", "SoftmaxAggregation", "SetTransformerAggregation",
              "GraphMultisetTransformer")  # fmt: skip
_ORDERING = ("SortAggregation", "MedianAggregation", "QuantileAggregation", "LSTMAggregation", "GRUAggregation")


def pooling_name(pooling: object) -> Pooling:
    """Return the readout that a name, or PyG's `SumAggregation()`, `global_add_pool` and the like, stands for.

    Raises:
        ValueError: it is not known to decompose over segments.
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


def complaints(encoder: object, inputs: Inputs | None = None) -> list[str]:
    """Return a sentence for each reason why segments of one batch would influence each other inside `encoder`."""
    if not isinstance(encoder, nn.Module):
        return []
    found = []
    layers = _names(encoder, lambda layer: isinstance(layer, nn.modules.batchnorm._BatchNorm))
    if layers:
        found.append(
            f"the encoder holds BatchNorm ({layers}): its statistics come from the few fresh segments of a step and "
            f"couple segments of one batch; LayerNorm of each node (torch.nn.LayerNorm) does neither"
        )
    layers = "" if call_of(encoder, inputs).takes_segments else _names(encoder, _needs_segments)
    if layers:
        found.append(
            f"the encoder holds layers that look at whole graphs ({layers}), and takes every batch for one graph, "
            f"since it has no argument `batch`: segments of different graphs would influence each other; let it be "
            f"forward(self, x, edge_index, batch) and hand `batch`, the segment of each row, to these layers"
        )
    return found


def warn_about(encoder: object, inputs: Inputs | None = None, stacklevel: int = 3) -> None:
    """Warn of the `complaints`, in the name of whoever called the caller."""
    for complaint in complaints(encoder, inputs):
        warnings.warn(complaint, stacklevel=stacklevel)


def _needs_segments(layer: nn.Module) -> bool:
    """True if `layer` mixes all nodes unless it gets `batch`: PyG's GraphNorm, LayerNorm over graphs, GPSConv, ..."""
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


Pooling = Literal["sum", "mean", "max"]


def check_pooling(pooling: str) -> None:
    """Refuse a readout that cannot be put together from segments."""
    if pooling not in get_args(Pooling):
        raise ValueError(
            f"pooling {pooling!r} does not decompose over segments: the readout of a graph could not be computed from "
            f"the readouts of its parts, so training on parts would estimate something else; use one of "
            f"{', '.join(get_args(Pooling))}"
        )


def pool_nodes(states: NodeStates, batch: SegmentBatch, pooling: Pooling) -> Float[Tensor, "segments configs channels"]:
    """Pool the owned nodes of each segment, in float32 at least. Equal maxima share the gradient."""
    if states.rows.device.type == "cpu":
        kernel = SegmentMaxima if pooling == "max" else SegmentSums
        row_of, segment = states.row_of[batch.owned], batch.segment_of_node[batch.owned]
        pooled = kernel.apply(states.rows, row_of, segment, batch.num_segments)
    else:
        pooled = _pool_owned_with_torch(states, batch, pooling)
    return pooled / batch.node_counts[:, None, None] if pooling == "mean" else pooled


def _pool_owned_with_torch(
    states: NodeStates, batch: SegmentBatch, pooling: Pooling
) -> Float[Tensor, "segments configs channels"]:
    """A mask as an index would make the host wait for the device: context goes to a segment that is left out."""
    segment = torch.where(batch.owned, batch.segment_of_node, batch.num_segments)
    return _pool_with_torch(states.rows, states.row_of, segment, batch.num_segments + 1, pooling)[:-1]


def _pool_with_torch(
    rows: Float[Tensor, "rows channels"],
    row_of: Int64[Tensor, "nodes configs"],
    segment: Int64[Tensor, " nodes"],
    num_segments: int,
    pooling: Pooling,
) -> Float[Tensor, "segments configs channels"]:
    """Return the results of `SegmentSums` and `SegmentMaxima` on any device."""
    dense = rows.to(torch.promote_types(rows.dtype, torch.float32)).index_select(0, row_of.flatten())
    dense = dense.view(*row_of.shape, rows.shape[1])
    if pooling == "max":
        return _largest(dense, segment, num_segments)
    return dense.new_zeros(num_segments, *dense.shape[1:]).index_add(0, segment, dense)


def _largest(rows: Tensor, group: Int64[Tensor, " rows"], num_groups: int) -> Tensor:
    index = group.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    least = rows.new_full((num_groups, *rows.shape[1:]), -torch.inf)
    return least.scatter_reduce(0, index, rows, "amax", include_self=True)


class GraphPool:
    """Combines segments into graphs, some segments at a time.

    `mean` weighs each segment by its share of all nodes of the graph, whether or not the other segments are here;
    `max` takes the segments with weight > 0 as they are. `total` is the sum or maximum of segments added elsewhere.
    """

    def __init__(
        self, graph_node_counts: Int64[Tensor, " graphs"], pooling: Pooling, total: Tensor | None = None
    ) -> None:
        self.graph_node_counts, self.pooling = graph_node_counts, pooling
        self.total = total

    def add(
        self,
        embeddings: Float[Tensor, "segments configs channels"],
        weights: Float[Tensor, "segments configs"],
        node_counts: Int64[Tensor, " segments"],
        graph_of_segment: Int64[Tensor, " segments"],
    ) -> None:
        shape = (len(self.graph_node_counts), *embeddings.shape[1:])
        if self.pooling == "max":
            present = torch.where(weights[..., None] > 0, embeddings, -torch.inf)
            part = _largest(present, graph_of_segment, shape[0])
            self.total = part if self.total is None else torch.maximum(self.total, part)
            return
        if self.pooling == "mean":
            weights = weights * (node_counts.double() / self.graph_node_counts[graph_of_segment])[:, None]
        weighed = embeddings * weights[..., None].to(embeddings.dtype)
        part = embeddings.new_zeros(shape).index_add(0, graph_of_segment, weighed)
        self.total = part if self.total is None else self.total + part

    def result(self) -> Float[Tensor, "graphs configs channels"]:
        """A graph of which no segment was added is zero."""
        assert self.total is not None, "nothing was added"
        return torch.where(torch.isneginf(self.total), 0.0, self.total) if self.pooling == "max" else self.total


class SegmentSums(torch.autograd.Function):
    """`(rows, row_of, segment, num_segments)` -> sums `(segments, configs, channels)`, in float32 at least."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_of: Tensor, segment: Tensor, num_segments: int) -> Tensor:
        ctx.shape, ctx.dtype = rows.shape, rows.dtype
        ctx.save_for_backward(row_of, segment)
        wide = _wide(rows)
        out = wide.new_zeros(num_segments, row_of.shape[1], rows.shape[1])
        kernels.sum_forward(*_arrays(wide, row_of, segment, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        row_of, segment = ctx.saved_tensors
        rows_gradient = gradient.new_zeros(ctx.shape)
        kernels.sum_backward(*_arrays(gradient, row_of, segment, rows_gradient))
        return rows_gradient.to(ctx.dtype), None, None, None


class SegmentMaxima(torch.autograd.Function):
    """The same with maxima, -inf without nodes. Equal maxima share the gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_of: Tensor, segment: Tensor, num_segments: int) -> Tensor:
        wide = _wide(rows)
        out = wide.new_full((num_segments, row_of.shape[1], rows.shape[1]), -torch.inf)
        kernels.max_forward(*_arrays(wide, row_of, segment, out))
        ctx.save_for_backward(rows, row_of, segment, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        rows, row_of, segment, out = ctx.saved_tensors
        wide, holders = _wide(rows), torch.zeros_like(out)
        kernels.count_largest(*_arrays(wide, row_of, segment, out, holders))
        rows_gradient = torch.zeros_like(wide)
        kernels.max_backward(*_arrays(wide, row_of, segment, out, gradient / holders, rows_gradient))
        return rows_gradient.to(rows.dtype), None, None, None


def _wide(rows: Tensor) -> Tensor:
    return rows.detach().to(torch.promote_types(rows.dtype, torch.float32))


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.contiguous().numpy() for tensor in tensors]
