"""From a batch of segments to embeddings: calls of encoders and of the head, and warnings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter
from typing import Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.graphs.graph import NAMES_TAKEN
from gst.method.batch import ExpandedBatch, NodeStates, SegmentBatch, assemble
from gst.method.draws import Catalogue
from gst.method.readouts import Combination, Rows, pool_nodes

Source = str | Callable[[ExpandedBatch], Any]

Inputs = Literal["batch", "data"] | Mapping[str, Source]
"""A whole `SegmentBatch`, a whole `ExpandedBatch`, or a field or function of the batch for each argument by name."""

CATCHING = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
COUNTS_CONTEXT = (
    "the encoder returned one row for each segment, which counts context nodes of a halo again; return one row for "
    "each node (pooling=... pools them), take the SegmentBatch and pool its `owned` nodes, or cut with halo=0"
)


@dataclass(frozen=True)
class Call:
    """Convention by which an encoder is called.

    Args:
        whole: it takes one argument, a `SegmentBatch` or an `ExpandedBatch`; None if it takes fields.
        positional: fields of an `ExpandedBatch` that it takes by position.
        named: sources of what it takes by name.
        optional: fields that it takes by name where the graphs have them, and their defaults.
        trailing: those that it takes by position, after `positional`.
    """

    whole: Literal["batch", "data"] | None
    positional: tuple[Source, ...] = ()
    named: Mapping[str, Source] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    trailing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_segments(self) -> bool:
        """True if the encoder may know the segment of each row."""
        return self.whole is not None or "batch" in (*self.positional, *self.optional, *self.trailing, *self.named)

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return the fields among `names` that no argument takes, as far as the arguments say what they take."""
        sources = (*self.positional, *self.named.values(), *self.optional, *self.trailing)
        is_open = self.whole is not None or any(map(callable, sources))
        return [] if is_open else [name for name in names if name not in sources]

    @torch.compiler.disable
    def arguments(self, batch: SegmentBatch) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Of the encoder, by position and by name."""
        if self.whole is not None:
            return (batch if self.whole == "batch" else batch.expanded().complete(),), {}
        copies = batch.expanded()
        named = {name: _take(source, copies) for name, source in self.named.items()}
        named |= {name: getattr(copies, name) for name in self.optional if name in copies}
        last = max((place for place, name in enumerate(self.trailing, 1) if name in copies), default=0)
        trailing = [getattr(copies, name) if name in copies else value for name, value in self.trailing.items()]
        return (*(_take(source, copies) for source in self.positional), *trailing[:last]), named

    @torch.compiler.disable
    def rows(self, returned: Any, batch: SegmentBatch) -> Any:
        """Reshape rows of all copies to (nodes or segments, configurations, channels)."""
        returned = returned[0] if isinstance(returned, tuple | list) else returned
        if isinstance(returned, Tensor) and returned.dim() == 1:
            returned = returned[:, None]
        if self.whole == "batch":
            return returned
        copies = batch.expanded()
        if isinstance(returned, Mapping):
            returned = _by_type(returned, copies, self.named)
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
    by name: `batch`, `opcodes`, `edge_attr`, ... So do arguments with a default that have the name of a field. A
    wrapper that hands on `*args, **kwargs` has the arguments of the module or function behind it.

    Raises:
        ValueError: `inputs` is neither a mapping nor a name, or holds arguments that the encoder does not take; or the
            encoder takes nothing but `*args` and `**kwargs`, and no single module is behind it.
    """
    parameters = parameters_of(encoder)
    kinds = {each.kind for each in parameters}
    if isinstance(inputs, Mapping):
        known = {parameter.name for parameter in parameters}
        if Parameter.VAR_KEYWORD in kinds or known.issuperset(inputs):
            return Call(None, named=inputs)
        if kinds == {Parameter.VAR_POSITIONAL}:
            return Call(None, tuple(inputs.values()))
        unknown = ", ".join(name for name in inputs if name not in known)
        raise ValueError(f"inputs names {unknown}, but the encoder takes {', '.join(sorted(known))}")
    if inputs is not None:
        if inputs not in ("batch", "data"):
            raise ValueError(f"inputs is {inputs!r}; want 'batch', 'data', or a mapping from arguments to fields")
        return Call(inputs)
    if kinds and kinds.issubset(CATCHING):
        stars = ", ".join(str(each).split(":")[0] for each in parameters)
        raise ValueError(
            f"the encoder takes {stars}, which hides what it wants; name its arguments and their fields in order, "
            "inputs={'x': 'x', 'edge_index': 'edge_index', ...}"
        )
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is each.empty]
    required = [each.name for each in needed if each.kind in by_position]
    only_named = {each.name: each.name for each in needed if each.kind is each.KEYWORD_ONLY}
    defaults = {each.name: each.default for each in parameters if each not in needed}
    trailing = {each.name: each.default for each in parameters if each.kind is each.POSITIONAL_ONLY}
    trailing = {name: defaults.pop(name) for name in trailing if name in defaults}
    if len(required) + len(only_named) < 2:
        return Call("data" if required == ["data"] else "batch")
    if required[:1] in (["g"], ["graph"]):
        raise ValueError(
            f"the encoder takes {', '.join(required)}, as with DGL; say what they are: inputs={{'{required[0]}': "
            f"lambda batch: dgl.graph(tuple(batch.edge_index), num_nodes=batch.num_nodes), '{required[1]}': 'x'}}"
        )
    roles = [name for name in ("x", "edge_index") if name not in required]
    positional = []
    for place, name in enumerate(required):
        is_field = name in NAMES_TAKEN or place > 1 or not roles
        positional.append(name if is_field else roles.pop(0))
    return Call(None, tuple(positional), only_named, defaults, trailing)


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
    encoder: Callable[..., Any], batch: SegmentBatch, call: Call, pooling: Combination, phi: Rows | None = None
) -> Float[Tensor, "segments configs channels"]:
    """Encode `batch` and pool the result: `NodeStates`, or rows of nodes or segments, with or without configurations.

    Args:
        phi: of a `Readout`: it changes the rows of nodes before they are pooled.

    Raises:
        ValueError: it is neither one row for each node nor one for each segment, or names rows that are not there; or
            it is one for each segment that counts context nodes.
    """
    return _pooled(encode_rows(encoder, batch, call), batch, call, pooling, phi)


@torch.compiler.disable(recursive=False)
def encode_rows(encoder: Callable[..., Any], batch: SegmentBatch, call: Call) -> NodeStates | Tensor:
    """Encode `batch`: rows of nodes or segments as `Call.rows` shapes them."""
    positional, named = call.arguments(batch)
    try:
        returned = encoder(*positional, **named)
    except RuntimeError as error:
        kind = batch.node_features.dtype
        if kind.is_floating_point or not any(word in str(error) for word in ("dtype", "scalar type", "Float")):
            raise
        raise ValueError(
            f"the encoder uses node features of {kind} in a layer for floats: give data.x = x.float(), or embed them "
            f"first (torch.nn.Embedding); {error}"
        ) from error
    return call.rows(returned, batch)


def encode_segments(
    embed: Callable[[SegmentBatch], Tensor],
    catalogue: Catalogue,
    segments: Int64[Tensor, " chosen"],
    configs: Int64[Tensor, "graphs configs"],
    max_rows: int,
    like: Tensor,
) -> Float[Tensor, "chosen configs channels"]:
    """Encode `segments` on the device and in the dtype of `like`.

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
            prediction = head(embedded)
            if not isinstance(prediction, Tensor):
                raise ValueError(
                    f"the head returns a {type(prediction).__name__}; want one tensor, outputs its last axis"
                )
            return prediction
        except RuntimeError as error:
            if "shapes cannot be multiplied" not in str(error):
                raise
            raise ValueError(f"the head refuses embeddings of {embedded.shape[-1]} numbers: {error}") from error


@torch.compiler.disable
def without_configs(prediction: Tensor) -> Tensor:
    """Return predictions (graphs, outputs) of graphs without configurations, and (graphs,) for one output.

    Examples:
        >>> without_configs(torch.zeros(4, 1, 3)).shape, without_configs(torch.zeros(4, 1, 1)).shape
        (torch.Size([4, 3]), torch.Size([4]))
    """
    prediction = prediction.squeeze(1) if prediction.dim() > 1 else prediction
    return prediction.squeeze(-1) if prediction.dim() > 1 else prediction


def parameter_of(module: nn.Module, otherwise: Tensor) -> Tensor:
    """Return the first float parameter that has a shape: quantized weights do not show the dtype of inputs."""
    floats = (p for p in module.parameters() if not nn.parameter.is_lazy(p) and p.is_floating_point())
    return next(floats, otherwise)


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
def _pooled(
    returned: NodeStates | Tensor, batch: SegmentBatch, call: Call, pooling: Combination, phi: Rows | None
) -> Tensor:
    if isinstance(returned, NodeStates):
        row_of = returned.row_of
        if row_of.device.type == "cpu" and not 0 <= int(row_of.min()) <= int(row_of.max()) < len(returned.rows):
            raise ValueError(f"the encoder's row_of points outside its {len(returned.rows)} rows")
        return pool_nodes(_changed(returned, phi), batch, pooling)
    if returned.dim() == 2:
        returned = returned[:, None].expand(-1, batch.num_configs, -1)
    if len(returned) == batch.num_nodes:
        nodes, configs, channels = returned.shape
        every = torch.arange(nodes * configs, device=returned.device).view(nodes, configs)
        states = NodeStates(returned.reshape(nodes * configs, channels), every)
        return pool_nodes(_changed(states, phi), batch, pooling)
    if len(returned) == batch.num_segments:
        if phi is not None or pooling == "softmax" or "+" in pooling:
            raise ValueError("the readout goes over nodes, and the encoder returned one row for each segment")
        if call.whole != "batch" and batch.has_context:
            raise ValueError(COUNTS_CONTEXT)
        return returned.to(torch.promote_types(returned.dtype, torch.float32))
    raise ValueError(
        f"the encoder returned {len(returned)} rows for a batch of {batch.num_nodes} nodes in {batch.num_segments} "
        f"segments; it has to return one row for each node or one for each segment"
    )


def _changed(states: NodeStates, phi: Rows | None) -> NodeStates:
    return states if phi is None else NodeStates(phi(states.rows), states.row_of)


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


def _needs_segments(layer: nn.Module) -> bool:
    """True if `layer` mixes all nodes unless it gets `batch`: PyG's GraphNorm, LayerNorm over graphs, GPSConv, ..."""
    named_so = type(layer).__name__.endswith(("Norm", "GPSConv"))
    return named_so and "batch" in inspect.signature(layer.forward).parameters and getattr(layer, "mode", "") != "node"


def _names(encoder: nn.Module, fits: Callable[[nn.Module], bool]) -> str:
    """The layers that fit, by class and place, the first three of them."""
    found = [
        f"{type(layer).__name__} at {place}" if place else type(layer).__name__
        for place, layer in encoder.named_modules()
        if fits(layer)
    ]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


# Arguments of encoders, also of those behind wrappers that hand their arguments on (`*args, **kwargs`) ---------------


def parameters_of(encoder: Callable[..., Any]) -> list[Parameter]:
    """Return the arguments of `encoder`. Those of the only module or function behind `*args` or `**kwargs` take their
    place; `*args` and `**kwargs` themselves remain where there is none, or more than one.

    Examples:
        >>> from torch.optim.swa_utils import AveragedModel
        >>> [parameter.name for parameter in parameters_of(AveragedModel(nn.Bilinear(2, 2, 3)))]
        ['input1', 'input2']
    """
    if isinstance(encoder, partial):
        rest = parameters_of(encoder.func)[len(encoder.args) :]
        return [each for each in rest if each.name not in encoder.keywords]
    own = _own(encoder)
    catching = {each.kind for each in own} & set(CATCHING)
    inner = [parameters_of(each) for each in _behind(encoder)] if catching else []
    if len(inner) != 1 or not _takes_graphs(inner[0]):
        return own
    named = [each for each in own if each.kind not in CATCHING]
    more = [each for each in inner[0] if each.name not in {one.name for one in named}]
    if Parameter.VAR_POSITIONAL not in catching:
        more = [
            each.replace(kind=Parameter.KEYWORD_ONLY) if each.kind not in CATCHING else each
            for each in more if each.kind is not each.POSITIONAL_ONLY
        ]  # fmt: skip
    elif Parameter.VAR_KEYWORD not in catching:
        hidden = (*CATCHING, Parameter.KEYWORD_ONLY)
        more = [each.replace(kind=Parameter.POSITIONAL_ONLY) for each in more if each.kind not in hidden]
    return named + more


def modules_of(encoder: object) -> list[nn.Module]:
    """Return the modules that `encoder` is, or that its closure or object holds."""
    if isinstance(encoder, nn.Module):
        return [encoder]
    return [each for each in _references(encoder) if isinstance(each, nn.Module)]


def _own(encoder: Callable[..., Any]) -> list[Parameter]:
    if names := getattr(getattr(encoder, "signature", None), "param_dict", {}):  # PyG's Sequential
        return [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    called = encoder.forward if isinstance(encoder, nn.Module) else encoder
    if schema := getattr(called, "schema", None):  # torch.jit.trace
        return [
            Parameter(
                each.name, Parameter.POSITIONAL_OR_KEYWORD,
                default=each.default_value if each.has_default_value() else Parameter.empty,
            )
            for each in schema.arguments[1:]
        ]  # fmt: skip
    return list(inspect.signature(called).parameters.values())


def _takes_graphs(parameters: list[Parameter]) -> bool:
    required = [each for each in parameters if each.default is each.empty and each.kind not in CATCHING]
    return len(required) > 1 or any(each.name in ("x", "edge_index", "data", "batch") for each in required)


def _behind(encoder: object) -> list[Any]:
    """Return the modules, else the functions, that may get the arguments of a wrapper."""
    if isinstance(encoder, nn.Module):
        return list({id(each): each for each in encoder.children()}.values())
    references = list({id(each): each for each in _references(encoder)}.values())
    return modules if (modules := [each for each in references if isinstance(each, nn.Module)]) else references


def _references(encoder: object) -> Iterator[Any]:
    """Yield the callables of a closure, of the globals that a function names, or of the attributes of an object."""
    if isinstance(encoder, partial):
        values: list[Any] = [encoder.func, *encoder.args, *encoder.keywords.values()]
    elif inspect.isfunction(encoder):
        variables = inspect.getclosurevars(encoder)
        values = [*variables.nonlocals.values(), *variables.globals.values()]
    elif inspect.ismethod(encoder):
        owner = encoder.__self__
        values = [owner] if isinstance(owner, nn.Module) else list(vars(owner).values())
    else:
        values = list(getattr(encoder, "__dict__", {}).values())
    yield from (each for each in values if callable(each) and not inspect.isclass(each))
