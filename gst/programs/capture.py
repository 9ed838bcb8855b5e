"""A training step -> a `Program`: traced once with fake tensors, then a flat list of aten operations."""

from __future__ import annotations

import importlib
import operator
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from gst.graph import Graph
from gst.programs.colocation import colocate
from gst.programs.features import node_features, opcode
from gst.programs.program import Operation, Program, Reference
from gst.programs.workloads import WORKLOADS, TrainingStep


def capture(step: TrainingStep) -> Program:
    """Trace `step` into a program of aten operations; nothing is computed, shapes are those of `step.inputs`.

    `detach` and repeated views (the same transpose of the same weight) are dropped, as they compute nothing.

    Raises:
        ValueError: an input is no tensor, the step depends on values (`.item()`, `if loss > 0`) or does
            something else that cannot be traced, or it changes a tensor in place.
    """
    flat, spec = pytree.tree_flatten(step.inputs)
    for position, value in enumerate(flat):
        if not isinstance(value, Tensor):
            raise ValueError(f"step {step.name!r}: flat input {position} is a {type(value).__name__}, want tensors")
    flat = [value.detach() for value in flat]
    output_spec: list[pytree.TreeSpec] = []

    def flat_step(*tensors: Tensor) -> list[Any]:
        leaves, tree = pytree.tree_flatten(step.function(*pytree.tree_unflatten(list(tensors), spec)))
        output_spec.append(tree)
        return leaves

    try:
        # Constants that the step closes over are real tensors: allowed, they become 'constant' nodes.
        module = make_fx(flat_step, tracing_mode="fake", _allow_non_fake_inputs=True)(*flat)
    except Exception as error:  # whatever the user's code or the tracer raises
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        raise ValueError(
            f"step {step.name!r} cannot be captured: {type(error).__name__}: {first_line}; "
            "it must be a pure function whose operations do not depend on the values of tensors"
        ) from error
    operations, outputs = _flatten(module, step.name)
    edges = _edges(operations)
    opcodes = np.array([opcode(each) for each in operations], np.int64)
    graph = Graph(node_features(operations, edges), edges, opcodes, name=step.name)
    updates = _updates(step, spec, outputs, output_spec[-1])
    return Program(
        step.name, graph, operations, tuple(flat), outputs, output_spec[-1], colocate(operations, updates)
    )  # fmt: skip


def resolve(name: str) -> TrainingStep:
    """A bundled workload ('rnnlm'), or what the function without arguments 'module:function' returns.

    Raises:
        ValueError: no such module or function, or it does not return a `TrainingStep`.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]()
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        known = ", ".join(sorted(WORKLOADS))
        raise ValueError(f"no workload {name!r}; want module:function or one of {known}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"cannot import {module_name!r} of {name!r}: {error}; is it on PYTHONPATH?") from error
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise ValueError(f"module {module_name!r} has no function {function_name!r}")
    try:
        step = factory()
    except TypeError as error:
        raise ValueError(f"calling {name!r} without arguments failed: {error}") from error
    if not isinstance(step, TrainingStep):
        raise ValueError(f"{name!r} returned a {type(step).__name__}, want a gst.programs.TrainingStep")
    return step


def _flatten(module: fx.GraphModule, name: str) -> tuple[tuple[Operation, ...], tuple[Any, ...]]:
    """One `Operation` per node of the traced module, inputs first, and the flat outputs."""
    module.graph.eliminate_dead_code()

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
        is_view = node.op == "call_function" and _is_view(node.target)
        signature = f"{node.target} {args} {kwargs}"
        if is_view and signature in views:
            number_of[node] = views[signature]
            continue
        number_of[node] = Reference(len(operations))
        operations.append(_operation(module, node, args, kwargs, is_view, name))
        if is_view:
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
        constant = operator.attrgetter(str(node.target))(module)
        if not isinstance(constant, Tensor):
            kind = type(constant).__name__
            raise ValueError(f"step {name!r} cannot be captured: {node.target} is a {kind}, want a tensor")
        return Operation(node.name, "constant", None, (), {}, *_sizes(constant), constant=constant.detach())
    if node.op == "placeholder":
        return Operation(node.name, "input", None, (), {}, *_sizes(node.meta["val"]))
    assert callable(node.target), node.target
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        raise ValueError(
            f"step {name!r} changes a tensor in place ({node.target} at node {node.name}); operations run in "
            "any order, so write it out of place (x = x + y, not x += y)"
        )
    sizes = _sizes(node.meta.get("val"))
    return Operation(node.name, "operation", node.target, args, kwargs, *sizes, is_view=is_view)


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


def _updates(
    step: TrainingStep, spec: pytree.TreeSpec, outputs: tuple[Any, ...], output_spec: pytree.TreeSpec
) -> dict[int, int]:
    """Node that makes the new value of a parameter -> input node of that parameter, where names agree."""
    inputs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    results = pytree.tree_unflatten(list(outputs), output_spec)
    parameters = inputs[0] if inputs and isinstance(inputs[0], dict) else {}
    new = results[1] if isinstance(results, list | tuple) and len(results) > 1 else {}
    if not isinstance(new, dict):
        return {}
    return {
        new[name].node: number
        for name, number in parameters.items()
        if isinstance(number, int) and isinstance(new.get(name), Reference)
    }
