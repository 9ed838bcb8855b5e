"""A function of tensors -> an fx graph of aten operations that change nothing in place and draw nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def trace(function: Callable[..., Any], inputs: Sequence[Tensor], labels: Sequence[str], name: str) -> fx.GraphModule:
    """Trace `function` with fake tensors; nothing is computed. It is traced again, functionalised, only where it
    writes in place, so that `x += y` becomes `x + y` and later reads see the sum.

    Args:
        function: of flat tensors, returns a list.
        inputs: flat tensors.
        labels: of the inputs, for messages.
        name: of the step, for messages.

    Raises:
        ValueError: it depends on values, cannot be traced, draws random numbers, writes into a tensor that it
            captured, or into an input without returning the new value.
    """
    module = _traced(function, inputs, name)
    _refuse_random(module, name)
    if not any(_mutates(node.target) for node in module.graph.nodes):
        return module
    _refuse_writes_into_constants(module, name)
    module = _traced(functionalize(module, remove="mutations"), inputs, name)
    _drop_returned_copies(module, inputs, labels, name)
    return module


def _traced(function: Callable[..., Any], inputs: Sequence[Tensor], name: str) -> fx.GraphModule:
    tables = {aten.native_batch_norm.default: _batch_norm}
    try:
        with _without_collection():
            # Constants that the step closes over are real tensors: allowed, they become 'constant' nodes.
            module = make_fx(function, tables, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except Exception as error:  # whatever the user's code or the tracer raises
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        raise ValueError(
            f"step {name!r} cannot be captured: {type(error).__name__}: {first_line}; "
            "it must be a pure function whose operations do not depend on the values of tensors"
        ) from error
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        if _is_symbolic(node.meta.get("val")):
            raise ValueError(
                f"step {name!r} cannot be captured: what {node.target} makes at node {node.name} depends on the values "
                "of tensors; use torch.where or a mask instead of boolean indices, and return tensors, not numbers"
            )
    return module


def _is_symbolic(value: Any) -> bool:
    """Is it a number that only values of tensors tell, or a tensor of such a shape?"""
    if isinstance(value, list | tuple):
        return any(map(_is_symbolic, value))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or (
        isinstance(value, Tensor) and any(map(_is_symbolic, value.shape))
    )


@contextmanager
def _without_collection() -> Iterator[None]:
    """A trace makes hundreds of thousands of objects that all stay: looking for garbage among them takes longer."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    """`native_batch_norm` writes into the running statistics without saying so; its successor says so."""
    if not training or mean is None:
        return NotImplemented
    return aten._native_batch_norm_legit(x, weight, bias, mean, variance, training, momentum, epsilon)


def _mutates(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _refuse_random(module: fx.GraphModule, name: str) -> None:
    for node in module.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and _draws(node):
            raise ValueError(
                f"step {name!r} draws random numbers ({node.target} at node {node.name}), and operations run in any "
                "order; switch dropout off (model.eval()) or give the numbers or masks as inputs"
            )


def _draws(node: fx.Node) -> bool:
    """Not if the operation has a dropout whose probability is 0 or that is switched off."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {argument.name: argument.default_value for argument in arguments}
    given |= dict(zip(given, node.args, strict=False)) | dict(node.kwargs)
    return given.get("dropout_p", 1.0) != 0.0 and given.get("train", True) is not False


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes into whose values `node` writes."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    for position, argument in enumerate(arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            yield from (each for each in (value if isinstance(value, list | tuple) else [value])
                        if isinstance(each, fx.Node))  # fmt: skip


def _refuse_writes_into_constants(module: fx.GraphModule, name: str) -> None:
    for node in filter(lambda node: _mutates(node.target), module.graph.nodes):
        if any(written.op == "get_attr" for written in _written(node)):
            raise ValueError(
                f"step {name!r} writes into a tensor that it captured ({node.target} at node {node.name}); make it an "
                "input of the step and return its new value, or switch BatchNorm to model.eval()"
            )


def _drop_returned_copies(module: fx.GraphModule, inputs: Sequence[Tensor], labels: Sequence[str], name: str) -> None:
    """Functionalised code ends by copying new values into the inputs it changed: needless if they are returned."""
    returned = set(module.graph.output_node().args[0])  # type: ignore[arg-type]
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    homes = [value.untyped_storage().data_ptr() for value in inputs]
    for node in module.graph.find_nodes(op="call_function", target=aten.copy_.default):
        changed, value = node.args[:2]
        if changed not in placeholders:
            continue
        number = placeholders.index(changed)
        if value not in returned:
            raise ValueError(
                f"step {name!r} changes its input {labels[number]} in place; return the new value too, or write it "
                "out of place (x = x + y); for BatchNorm's statistics, model.eval()"
            )
        if homes.count(homes[number]) > 1:
            raise ValueError(
                f"step {name!r} changes its input {labels[number]} in place, which shares memory with another input; "
                "give one of them only, or write it out of place (x = x + y)"
            )
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
