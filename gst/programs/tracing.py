"""Capture of a step as a `Program`: one trace with fake tensors, made functional, as a flat list of ATen operations."""

from __future__ import annotations

import gc
import operator
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from gst.programs.described import DEVICE, is_foreign, run_described
from gst.programs.features import colocate, program_graph
from gst.programs.operation import KINDS, PLAIN, Operation, Reference, opened, special_kind
from gst.programs.program import Program
from gst.programs.step import Step, inference_step, training_step
from gst.programs.untouched import OUTSIDE, VALUE, untouched, words
from gst.programs.users_code import FirstOfValues, is_symbolic, users_line
from gst.util.untrusted import first_line

aten = torch.ops.aten
MAX_CONSTANT_BYTES = 2**30
OUTPUTS = (*PLAIN, torch.SymInt, torch.SymFloat, torch.SymBool)  # other than tensors

KeyPath = tuple[Any, ...]
"""Keys that lead to a leaf of nested tuples, lists and dictionaries."""


def capture(step: Step, kind: str = "cpu", may_renew: bool = True) -> Program:
    """Trace `step` into a program of aten operations; nothing is computed, shapes are those of `step.inputs`.

    Operations in place become operations out of place; `detach` and repeated views are dropped.

    Args:
        step: its inputs lie on the CPU.
        kind: one of `KINDS`, of the device that operations are chosen for; it need not be here.
        may_renew: take a step that writes to an input in place and returns the new value; the program returns it alone.

    Raises:
        ValueError: there is no such kind, an input is no tensor, the step depends on values (`.item()`, `if loss > 0`),
            draws random numbers, changes an input in place without returning the new value, captures a tensor of more
            than a GiB, or cannot be traced.

    Examples:
        >>> program = capture(Step("double", lambda x: {"twice": x + x}, (torch.ones(2),)))
        >>> [str(operation.target) for operation in program.operations]
        ['None', 'aten.add.Tensor']
    """
    if kind == "cpu":
        return _captured(step, may_renew)
    if kind not in KINDS:
        raise ValueError(f"there is no capture for {kind!r}; want {' or '.join(KINDS)}")
    specs: list[pytree.TreeSpec] = []  # in this process alone: a file holds no classes of the user
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "program"

        def save() -> None:
            program = _captured(step, may_renew, FakeTensorMode(allow_non_fake_inputs=True))
            specs.append(program.output_spec)
            _without_values(program).save(directory)

        run_described(save)
        program = Program.load(directory)
        inputs = tuple(value.detach() for value in pytree.tree_leaves(step.inputs))
        return replace(program, inputs=inputs, output_spec=[*specs, program.output_spec][0])


def _without_values(program: Program) -> Program:
    """Return a program with inputs of one element, expanded to their shapes; refuse operators of CPUs alone."""
    for operation in program.operations:
        if operation.kind == "operation" and is_foreign(str(operation.target)):
            raise ValueError(f"step {program.name!r} calls {operation.target} itself, which only CPUs run")
    inputs = tuple(torch.zeros((), dtype=each.dtype, device="cpu").expand(each.shape) for each in program.inputs)
    return replace(program, inputs=inputs)


class _ConstantsOnDevice(TorchFunctionMode):
    """Tensors that a step closes over, moved to the device for which it is captured; `_flatten` drops the copies."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self._on_device, (args, kwargs or {}))
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": DEVICE}  # whatever the code names: the program belongs to one kind
        return func(*args, **kwargs)

    def _on_device(self, value: Tensor) -> Tensor:
        if isinstance(value, FakeTensor) or type(value) is not Tensor or value.device.type != "cpu":
            return value
        if id(value) not in self.moved:
            self.moved[id(value)] = value, value.to(DEVICE)
        return self.moved[id(value)][1]


def _captured(step: Step, may_renew: bool, fake: FakeTensorMode | None = None) -> Program:
    """Trace a step on the CPU, or in a mode that has described devices as if its inputs were on one."""
    pairs, spec = pytree.tree_flatten_with_path(step.inputs)
    labels = [pytree.keystr(path) for path, _ in pairs]
    for position, (_, value) in enumerate(pairs):
        if not isinstance(value, Tensor):
            raise ValueError(f"step {step.name!r}: flat input {position} is a {type(value).__name__}, want tensors")
        if kind := special_kind(value):
            raise ValueError(f"step {step.name!r} cannot be captured: its input {labels[position]} is a {kind}")
    flat = [value.detach() for _, value in pairs]
    examples = flat
    if fake is not None:
        with fake:
            examples = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=DEVICE) for x in flat]
    result: list[tuple[list[Any], pytree.TreeSpec]] = []

    def flat_step(*tensors: Tensor) -> list[Any]:
        with nullcontext() if fake is None else _ConstantsOnDevice():
            results = step.function(*pytree.tree_unflatten(list(tensors), spec))
        paths, tree = pytree.tree_flatten_with_path(opened(results))
        for path, leaf in paths:
            kind = special_kind(leaf) or ("" if isinstance(leaf, (Tensor, *OUTPUTS)) else type(leaf).__name__)
            if kind:
                raise ValueError(f"its output {pytree.keystr(path)} is a {kind}")
        result.append(([path for path, _ in paths], tree))
        return [leaf for _, leaf in paths]

    with _pure(step):
        module = _trace(flat_step, examples, labels, step.name, may_renew)
    operations, outputs = _flatten(module, step.name)
    paths, output_spec = result[0]
    updates = dict(_updates([path for path, _ in pairs], paths, outputs))
    parameters = {number for number, (path, _) in enumerate(pairs) if len(path) > 1 and _is_state(path)}
    return Program(
        step.name, program_graph(operations, step.name), operations, tuple(flat), outputs, output_spec,
        colocate(operations, updates, _ties(flat)), _parameter_homes(operations, updates, parameters),
    )  # fmt: skip


@contextmanager
def _pure(step: Step) -> Iterator[None]:
    """Undo what a trace changes in the user's objects, and refuse a step that changes them, or that reads clocks, files
    or random numbers that are not PyTorch's."""
    failure = None
    with untouched(step.function, inputs=step.inputs, notes_calls=True) as state:
        try:
            yield
        except ValueError as error:
            failure = error
    if any(each.kind != VALUE or failure is None for each in state.changes):
        advice = "return new values and leave its objects as they are"
        if all(each.kind == OUTSIDE for each in state.changes):
            advice = "the program would keep that for ever, so give it as an input or draw with torch from a seed"
        elif getattr(step.function, "__module__", "") != training_step.__module__:
            advice += " (gst.programs.training_step makes such a step of training)"
        raise ValueError(
            f"step {step.name!r} cannot be captured: it {words(state.changes)} when it runs; {advice}"
        ) from failure
    if failure is not None:
        raise failure


def capture_module(model: nn.Module, inputs: Sequence[Any], name: str | None = None) -> Program:
    """Capture `model(*inputs)` without gradients; parameters and buffers are inputs of the program, by name.

    Args:
        model: in the mode in which it is to be captured; `model.eval()` switches dropout off.
        inputs: examples.
        name: of the program; the name of the model's class if not given.

    Raises:
        ValueError: as `capture`.

    Examples:
        >>> program = capture_module(nn.Linear(2, 3), (torch.zeros(1, 2),))
        >>> [operation.kind for operation in program.operations]
        ['input', 'input', 'input', 'operation', 'operation']
    """
    return capture(inference_step(model, inputs, name))


def _flatten(module: fx.GraphModule, name: str) -> tuple[tuple[Operation, ...], tuple[Any, ...]]:
    """Return one `Operation` per node of the traced module, inputs first, and the flat outputs."""

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
        is_moved = node.target is aten._to_copy.default and _is_moved_constant(operations, args, kwargs)
        if is_moved or node.target is aten.detach.default:
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


def _is_moved_constant(operations: Sequence[Operation], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a copy of a constant to `DEVICE`, and nothing else."""
    constant = operations[args[0].node].constant
    if constant is None or kwargs.get("device") != DEVICE:
        return False
    same = {"device": DEVICE, "dtype": constant.dtype, "layout": constant.layout}
    return all(key in same and value == same[key] for key, value in kwargs.items())


def _operation(
    module: fx.GraphModule, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], is_view: bool, name: str
) -> Operation:
    if node.op == "get_attr":
        constant = _constant(operator.attrgetter(str(node.target))(module), node, name)
        return Operation(node.name, "constant", None, (), {}, *_sizes(constant), constant=constant)
    if node.op == "placeholder":
        return Operation(node.name, "input", None, (), {}, *_sizes(node.meta["val"]))
    assert callable(node.target), node.target
    if _mutates(node.target):
        raise ValueError(
            f"step {name!r} changes a tensor in place ({node.target} at node {node.name}) in a way that cannot be "
            "undone; write it out of place (x = x + y, not x += y)"
        )
    for value in pytree.tree_leaves(node.meta.get("val")):
        if kind := special_kind(value):
            raise ValueError(f"step {name!r} cannot be captured: {node.target} makes a {kind} at node {node.name}")
    sizes = _sizes(node.meta.get("val"))
    return Operation(node.name, "operation", node.target, args, kwargs, *sizes, is_view=is_view)


def _constant(value: Any, node: fx.Node, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise ValueError(f"step {name!r} cannot be captured: {node.target} is a {kind}, want a tensor")
    if special := special_kind(value):
        raise ValueError(f"step {name!r} cannot be captured: it holds a {special} of shape {tuple(value.shape)}")
    if value.nbytes > MAX_CONSTANT_BYTES:
        raise ValueError(
            f"step {name!r} captures a tensor of {value.nbytes / 2**30:.1f} GiB ({tuple(value.shape)}, "
            f"node {node.name}); make it an input of the step"
        )
    return value.detach()


def _sizes(value: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[torch.dtype, ...]]:
    """Return shapes and dtypes of the tensors in a (possibly nested) value."""
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return tuple(tuple(map(int, each.shape)) for each in tensors), tuple(each.dtype for each in tensors)


def _is_view(target: Any) -> bool:
    """True if the value shares memory with the first argument, without any work."""
    if target is operator.getitem:
        return True
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.returns or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write and schema.returns[0].alias_info is not None


def _is_state(path: KeyPath) -> bool:
    """True for an entry of a dictionary that is the first input: a parameter, or state of one."""
    return path[0] == pytree.SequenceKey(0) and isinstance(path[1], pytree.MappingKey)


def _updates(
    inputs: Sequence[KeyPath], results: Sequence[KeyPath], outputs: Sequence[Any]
) -> Iterator[tuple[int, int]]:
    """Yield (node of the new value of a parameter, input node of that parameter), by equal names in the first input and
    the second output."""
    numbers = {path[1:]: number for number, path in enumerate(inputs) if len(path) > 1 and _is_state(path)}
    for path, output in zip(results, outputs, strict=True):
        is_new = len(path) > 1 and path[0] == pytree.SequenceKey(1) and path[1:] in numbers
        if is_new and isinstance(output, Reference):
            yield output.node, numbers[path[1:]]


def _ties(flat: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return pairs of inputs that share memory: a weight given under two names."""
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


# The trace -----------------------------------------------------------------------------------------------------------


def _trace(
    function: Callable[..., Any], inputs: Sequence[Tensor], labels: Sequence[str], name: str, may_renew: bool
) -> fx.GraphModule:
    """Trace a function of flat tensors with fake ones. A function that writes in place is traced again, functionalised,
    so that `x += y` becomes `x + y`."""
    module = _traced(function, inputs, name)
    _refuse_random(module, name)
    if not any(_mutates(node.target) for node in module.graph.nodes):
        return module
    _refuse_writes_into_constants(module, name)
    module = _traced(functionalize(module, remove="mutations"), inputs, name)
    _drop_returned_copies(module, inputs, labels, name, may_renew)
    return module


def _traced(function: Callable[..., Any], inputs: Sequence[Tensor], name: str) -> fx.GraphModule:
    tables = {aten.native_batch_norm.default: _batch_norm}
    try:
        with _without_collection(), _without_mkldnn():
            # Constants that the step closes over are real tensors: allowed, they become 'constant' nodes.
            module = make_fx(function, tables, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except Exception as error:  # whatever the user's code or the tracer raises
        reason = first_line(error)
        if isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException | DynamicOutputShapeException):
            reason = "it depends on the values of tensors (torch.where or a mask does not)"
        raise ValueError(
            f"step {name!r} cannot be captured: {reason}{users_line(traceback.extract_tb(error.__traceback__))}; "
            "it must be a pure function whose operations do not depend on the values of tensors"
        ) from error
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        if is_symbolic(node.meta.get("val")):
            raise ValueError(
                f"step {name!r} cannot be captured: what {node.target} makes at node {node.name}"
                f"{_line_of_values(function, inputs)} depends on the values of tensors; use torch.where or a mask "
                "instead of boolean indices, and return tensors, not numbers"
            )
    return module


def _line_of_values(function: Callable[..., Any], inputs: Sequence[Tensor]) -> str:
    """Trace a function once more, and return the line of the user at which values of tensors are first read."""
    with suppress(Exception), FirstOfValues() as lines:
        make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    return lines.line


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage: a trace makes hundreds of thousands of objects that all stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Trace LSTM as its basic operations: Inductor cannot compile that of MKL-DNN with its backward pass."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


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
                "order; switch dropout off (model.eval()), draw from a seed (training_step(..., seed=0), "
                "gst.programs.drawn_from) or give the numbers as inputs"
            )


def _draws(node: fx.Node) -> bool:
    """True unless the operation has a dropout whose probability is 0 or that is switched off."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    values = {argument.name: argument.default_value for argument in arguments}
    values |= dict(zip(values, node.args, strict=False)) | dict(node.kwargs)
    return values.get("dropout_p", 1.0) != 0.0 and values.get("train", True) is not False


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes into whose values `node` writes."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    for position, argument in enumerate(arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            yield from (
                each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, fx.Node)
            )


def _refuse_writes_into_constants(module: fx.GraphModule, name: str) -> None:
    for node in filter(lambda node: _mutates(node.target), module.graph.nodes):
        if any(written.op == "get_attr" for written in _written(node)):
            raise ValueError(
                f"step {name!r} writes into a tensor that it captured ({node.target} at node {node.name}); make it an "
                "input of the step and return its new value, or switch BatchNorm to model.eval()"
            )


def _drop_returned_copies(
    module: fx.GraphModule, inputs: Sequence[Tensor], labels: Sequence[str], name: str, may_renew: bool
) -> None:
    """Drop the copies of new values into changed inputs at the end of functionalised code, if they are returned."""
    returned = set(module.graph.output_node().args[0])  # type: ignore[arg-type]
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    homes = [value.untyped_storage()._cdata for value in inputs]  # fake ones have no address
    for node in module.graph.find_nodes(op="call_function", target=aten.copy_.default):
        changed, value = node.args[:2]
        if changed not in placeholders:
            continue
        number = placeholders.index(changed)
        if value not in returned or not may_renew:
            advice = "return the new value too, or write it" if may_renew else "write it"
            raise ValueError(
                f"step {name!r} changes its input {labels[number]} in place; {advice} out of place (x = x + y); for "
                "BatchNorm's statistics, model.eval()"
            )
        if homes.count(homes[number]) > 1:
            raise ValueError(
                f"step {name!r} changes its input {labels[number]} in place, which shares memory with another input; "
                "give one of them only, or write it out of place (x = x + y)"
            )
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
