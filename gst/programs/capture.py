"""A step -> a `Program`: traced once with fake tensors, then a flat list of aten operations."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from gst.graphs.graph import Graph
from gst.programs.colocation import colocate
from gst.programs.features import node_features, opcode
from gst.programs.program import Operation, Program, Reference
from gst.programs.step import Step, inference_step
from gst.programs.tracing import trace

MAX_CONSTANT_BYTES = 2**30

KeyPath = tuple[Any, ...]
"""Keys that lead to a leaf of nested tuples, lists and dictionaries."""


def capture(step: Step) -> Program:
    """Trace `step` into a program of aten operations; nothing is computed, shapes are those of `step.inputs`.

    Operations in place become operations out of place. `detach` and repeated views (the same transpose of the same
    weight) are dropped, as they compute nothing.

    Raises:
        ValueError: an input is no tensor, the step depends on values (`.item()`, `if loss > 0`), draws random numbers,
            changes an input in place without returning the new value, captures a tensor of more than a GiB, or does
            something else that cannot be traced.
    """
    pairs, spec = pytree.tree_flatten_with_path(step.inputs)
    labels = [pytree.keystr(path) for path, _ in pairs]
    for position, (_, value) in enumerate(pairs):
        if not isinstance(value, Tensor):
            raise ValueError(f"step {step.name!r}: flat input {position} is a {type(value).__name__}, want tensors")
    flat = [value.detach() for _, value in pairs]
    result: list[tuple[list[Any], pytree.TreeSpec]] = []

    def flat_step(*tensors: Tensor) -> list[Any]:
        paths, tree = pytree.tree_flatten_with_path(step.function(*pytree.tree_unflatten(list(tensors), spec)))
        result.append(([path for path, _ in paths], tree))
        return [leaf for _, leaf in paths]

    module = trace(flat_step, flat, labels, step.name)
    operations, outputs = _flatten(module, step.name)
    paths, output_spec = result[0]
    updates = dict(_updates([path for path, _ in pairs], paths, outputs))
    edges = _edges(operations)
    opcodes = np.array([opcode(each) for each in operations], np.int64)
    graph = Graph(node_features(operations, edges), edges, opcodes, name=step.name)
    parameters = {number for number, (path, _) in enumerate(pairs) if len(path) > 1 and _is_state(path)}
    return Program(
        step.name, graph, operations, tuple(flat), outputs, output_spec, colocate(operations, updates, _ties(flat)),
        _parameter_homes(operations, updates, parameters),
    )  # fmt: skip


def capture_module(model: nn.Module, inputs: Sequence[Any], name: str | None = None) -> Program:
    """Capture `model(*inputs)` without gradients; parameters and buffers are inputs of the program, by name.

    Args:
        model: in the mode in which it is to be captured; `model.eval()` switches dropout off.
        inputs: examples of what the model is called with.
        name: of the program; the name of the model's class if not given.

    Raises:
        ValueError: as `capture`.
    """
    return capture(inference_step(model, inputs, name))


def _flatten(module: fx.GraphModule, name: str) -> tuple[tuple[Operation, ...], tuple[Any, ...]]:
    """One `Operation` per node of the traced module, inputs first, and the flat outputs."""

    def template(value: Any) -> Any:
        return fx.node.map_arg(value, lambda node: number_of[node])  # type: ignore[arg-type, return-value]

    operations: list[Operation] = []
    number_of: dict[fx.Node, Reference] = {}
    views: dict[str, Reference] = {}
    outputs: tuple[Any, ...] = ()
    for node in module.graph.nodes:
        if node.op == "output":
            outputs = tuple(template(node.args[0]))
            continue
        args, kwargs = tuple(template(node.args)), dict(template(node.kwargs))
        if node.target is torch.ops.aten.detach.default:
            number_of[node] = args[0]
            continue
        signature = f"{node.target} {args} {kwargs}" if node.op == "call_function" and _is_view(node.target) else ""
        if signature and signature in views:
            number_of[node] = views[signature]
            continue
        number_of[node] = Reference(len(operations))
        operations.append(_operation(module, node, args, kwargs, bool(signature), name))
        if signature:
            views[signature] = number_of[node]
    return tuple(operations), outputs


def _operation(
    module: fx.GraphModule,
    node: fx.Node,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_view: bool,
    name: str,
) -> Operation:
    if node.op == "get_attr":
        constant = _constant(operator.attrgetter(str(node.target))(module), node, name)
        return Operation(node.name, "constant", None, (), {}, *_sizes(constant), constant=constant)
    if node.op == "placeholder":
        return Operation(node.name, "input", None, (), {}, *_sizes(node.meta["val"]))
    assert callable(node.target), node.target
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        raise ValueError(
            f"step {name!r} changes a tensor in place ({node.target} at node {node.name}) in a way that cannot be "
            "undone; write it out of place (x = x + y, not x += y)"
        )
    sizes = _sizes(node.meta.get("val"))
    return Operation(node.name, "operation", node.target, args, kwargs, *sizes, is_view=is_view)


def _constant(value: Any, node: fx.Node, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise ValueError(f"step {name!r} cannot be captured: {node.target} is a {kind}, want a tensor")
    if value.nbytes > MAX_CONSTANT_BYTES:
        raise ValueError(
            f"step {name!r} captures a tensor of {value.nbytes / 2**30:.1f} GiB ({tuple(value.shape)}, "
            f"node {node.name}); make it an input of the step"
        )
    return value.detach()


def _sizes(value: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[torch.dtype, ...]]:
    """Shapes and dtypes of the tensors in a (possibly nested) value."""
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return tuple(tuple(map(int, each.shape)) for each in tensors), tuple(each.dtype for each in tensors)


def _is_view(target: Any) -> bool:
    """Does the value share memory with the first argument, without any work?"""
    if target is operator.getitem:
        return True
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.returns or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write and schema.returns[0].alias_info is not None


def _edges(operations: tuple[Operation, ...]) -> Int64[np.ndarray, "2 edges"]:
    pairs = [(producer, node) for node, each in enumerate(operations) for producer in each.producers]
    return np.array(pairs, np.int64).reshape(-1, 2).T.copy()


def _is_state(path: KeyPath) -> bool:
    """Is it an entry of a dictionary that is the first input: a parameter, or what goes with one?"""
    return path[0] == pytree.SequenceKey(0) and isinstance(path[1], pytree.MappingKey)


def _updates(
    inputs: Sequence[KeyPath], results: Sequence[KeyPath], outputs: Sequence[Any]
) -> Iterator[tuple[int, int]]:
    """(node that makes the new value of a parameter, input node of that parameter): the first input and the second
    output are dictionaries, and their names agree."""
    numbers = {path[1:]: number for number, path in enumerate(inputs) if len(path) > 1 and _is_state(path)}
    for path, output in zip(results, outputs, strict=True):
        is_new = len(path) > 1 and path[0] == pytree.SequenceKey(1) and path[1:] in numbers
        if is_new and isinstance(output, Reference):
            yield output.node, numbers[path[1:]]


def _ties(flat: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Pairs of inputs that are the same memory: a weight given under two names."""
    first: dict[tuple[int, torch.Size], int] = {}
    numbered = [(number, (value.data_ptr(), value.shape)) for number, value in enumerate(flat) if value.numel()]
    return [(first[home], number) for number, home in numbered if first.setdefault(home, number) != number]


def _parameter_homes(
    operations: Sequence[Operation], updates: dict[int, int], parameters: set[int]
) -> Int64[np.ndarray, " nodes"]:
    homes = np.full(len(operations), -1, np.int64)
    for node, operation in enumerate(operations):
        if node in parameters:
            homes[node] = node
        elif node in updates:
            homes[node] = updates[node]
        elif operation.is_view and operation.producers:
            homes[node] = homes[operation.producers[0]]
    return homes
