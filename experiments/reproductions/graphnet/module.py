"""A GraphNet sample as a module that runs: its parsed calls as an `fx.GraphModule`, with random weights and inputs.

Nothing of a sample is executed as Python. The calls of `model.py` become nodes of an `fx.Graph` whose functions are
looked up here: those of `graphnet/reader.py`, and those that PyTorch lists as functions of tensors.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import get_overridable_functions

from experiments.reproductions.graphnet.reader import (
    BINARY,
    FUNCTIONS,
    IGNORED,
    METHODS,
    UNARY,
    FxSource,
    Weight,
    is_parameter_input,
)
from gst.util.untrusted import plain, shown

LEAST_VARIANCE = 1e-2  # of a batch normalisation; one pixel of one image has none
ROOMS = {"torch": torch, "torch.nn.functional": torch.nn.functional, "torch.functional": torch.functional}
ATTRIBUTES = ("shape", "dtype", "device", "ndim", "T", "mT")


def _functions() -> dict[str, Callable[..., Any]]:
    listed = get_overridable_functions()
    found = {
        f"{name}.{each.__name__}": each for name, room in ROOMS.items() for each in listed[room] if _is_plain(each)
    }
    found["torch._native_multi_head_attention"] = torch._native_multi_head_attention
    return found | FUNCTIONS


def _is_plain(function: Callable[..., Any]) -> bool:
    return not function.__name__.startswith("_")


CALLS = _functions()
TENSOR_METHODS = METHODS | {each.__name__ for each in get_overridable_functions()[Tensor] if _is_plain(each)} - {
    "apply_", "backward", "map_", "map2_", "numpy", "register_hook", "share_memory_", "tofile", "tolist",
}  # fmt: skip
IN_PLACE = {ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul, ast.Div: operator.itruediv}


def module_of(source: FxSource, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module of a sample in evaluation mode, for inference (no parameter requires a gradient), and its inputs.

    Weights and inputs are drawn from the normal distribution with the mean and the deviation that the sample states;
    what is never negative, such as a variance, from the log-normal one; batch normalisations get the statistics of what
    they read. Sizes kept as symbols are the batch.

    Args:
        source: of the sample.
        seed: of weights and inputs.

    Raises:
        ValueError: a call is none of those that may be made; the message names file and line.

    Examples:
        >>> model = '''
        ... class GraphModule:
        ...     def forward(self, L_x_, L_self_parameters_w_):
        ...         y = torch.nn.functional.linear(L_x_, L_self_parameters_w_)
        ...         return (y.relu(),)
        ... '''
        >>> entry = 'class A:\\n name = "{}"\\n shape = {}\\n dtype = "torch.float32"\\n data = None\\n'
        >>> weights = entry.format("L_x_", [2, 3]) + entry.format("L_self_parameters_w_", [4, 3])
        >>> module, inputs = module_of(FxSource("small", model, weights))
        >>> module(*inputs)[0].shape
        torch.Size([2, 4])
    """
    generator = torch.Generator().manual_seed(seed)
    names = [each.arg for each in source.forward.args.args if each.arg != "self"]
    if missing := [name for name in names if name not in source.inputs]:
        raise ValueError(f"{source.where}/model.py: input {shown(missing[0])} is not in its weight_meta.py")
    values = {name: _drawn(source.inputs[name], generator) for name in names}
    is_input = {name: isinstance(value, Tensor) and not is_parameter_input(name) for name, value in values.items()}
    inputs = tuple(value for name, value in values.items() if is_input[name])
    batch = inputs[0].shape[0] if inputs and inputs[0].dim() else 1
    root, translation = nn.Module(), _Translation(f"{source.where}/model.py")
    for name, value in values.items():
        if not isinstance(value, Tensor):
            is_symbol = name.startswith("s") and name[1:].isdigit()
            translation.names[name] = batch if is_symbol else value
        elif is_input[name]:
            translation.names[name] = translation.graph.placeholder(name)
        else:
            short = name.removeprefix("L_self_").strip("_")
            if "parameters" in name and value.is_floating_point():
                root.register_parameter(short, nn.Parameter(value, requires_grad=False))
            else:
                root.register_buffer(short, value)
            translation.names[name] = translation.graph.get_attr(short)
    translation.run(source.forward)
    module = fx.GraphModule(root, translation.graph).eval()
    with torch.no_grad():
        _Normalised(module).run(*inputs)
    return module, inputs


class _Normalised(fx.Interpreter):
    """Runs a module once and gives each batch normalisation the statistics of what it reads, as training would have:
    random weights would make numbers grow from layer to layer until they are infinite."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.nn.functional.batch_norm and len(args) > 2 and isinstance(args[1], Tensor):
            x, mean, variance = args[:3]
            dims = [dim for dim in range(x.dim()) if dim != 1]
            mean.copy_(x.mean(dims))
            variance.copy_(x.var(dims, correction=0).clamp(min=LEAST_VARIANCE))
        return super().call_function(target, args, kwargs)


def _drawn(weight: Weight, generator: torch.Generator) -> Any:
    """A random tensor, or the tensor or the number that the file holds."""
    if weight.data is not None:
        if not weight.shape and len(weight.data) == 1:
            return float(weight.data[0]) if weight.dtype.is_floating_point else int(weight.data[0])
        return torch.tensor(weight.data, dtype=weight.dtype).reshape(weight.shape)
    if weight.dtype == torch.bool or not weight.dtype.is_floating_point:
        least, most = int(weight.least or 0), int(1 if weight.most is None else weight.most)
        return torch.randint(least, most + 1, weight.shape, generator=generator).to(weight.dtype)
    mean, std = weight.mean or 0.0, 1.0 if weight.std is None else weight.std
    normal = torch.randn(weight.shape, generator=generator)
    if weight.least == 0 and mean > 0:  # log-normal with this mean and deviation: some way from zero, as variances are
        spread = torch.tensor(1 + (std / mean) ** 2).log()
        return (mean * (normal * spread.sqrt() - spread / 2).exp()).to(weight.dtype)
    return (mean + std * normal).to(weight.dtype)


class _Translation:
    """Turns the statements of `forward` into nodes of an `fx.Graph`; what involves numbers alone is worked out."""

    def __init__(self, where: str) -> None:
        self.where, self.graph = where, fx.Graph()
        self.names: dict[str, Any] = {"Ellipsis": Ellipsis}

    def run(self, forward: ast.FunctionDef) -> None:
        for line in forward.body:
            try:
                if isinstance(line, ast.Assign):
                    value = self.evaluate(line.value)
                    for target in line.targets:
                        self.assign(target, value)
                elif isinstance(line, ast.AugAssign) and isinstance(line.target, ast.Name):
                    function = IN_PLACE.get(type(line.op)) or BINARY[type(line.op)]
                    value = self.apply(function, self.evaluate(line.target), self.evaluate(line.value))
                    self.assign(line.target, value)
                elif isinstance(line, ast.Expr):
                    self.evaluate(line.value)
                elif isinstance(line, ast.Return):
                    self.graph.output(None if line.value is None else self.evaluate(line.value))
                    return
                else:
                    raise ValueError(f"{type(line).__name__} is no statement of an FX source")
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
                raise ValueError(f"{self.where}, line {line.lineno}: {plain(error)}") from error
        raise ValueError(f"{self.where}: forward returns nothing")

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            count = len(target.elts)
            if isinstance(value, fx.Node):
                parts = [self.graph.call_function(operator.getitem, (value, number)) for number in range(count)]
            else:
                parts = [None] * count if value is None else list(value)
            for each, part in zip(target.elts, parts, strict=True):
                self.assign(each, part)
        elif isinstance(target, ast.Subscript):
            place = (self.evaluate(target.value), self.evaluate(target.slice), value)
            self.graph.call_function(operator.setitem, place)
        else:
            raise ValueError(f"{ast.unparse(target)[:60]} is assigned to")

    def evaluate(self, node: ast.expr) -> Any:
        """A node of the graph, a constant, or a structure of both."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in self.names:
                    raise ValueError(f"{name} has no value")
                return self.names[name]
            case ast.Tuple(elts=elements):
                return tuple(self.evaluate(each) for each in elements)
            case ast.List(elts=elements):
                return [self.evaluate(each) for each in elements]
            case ast.Dict(keys=keys, values=values):
                return {
                    ast.literal_eval(key or node): self.evaluate(each) for key, each in zip(keys, values, strict=True)
                }
            case ast.UnaryOp(op=sign, operand=operand):
                return self.apply(UNARY[type(sign)], self.evaluate(operand))
            case ast.BinOp(op=sign, left=left, right=right):
                return self.apply(BINARY[type(sign)], self.evaluate(left), self.evaluate(right))
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                return self.apply(BINARY[type(sign)], self.evaluate(left), self.evaluate(right))
            case ast.Subscript(value=value, slice=index):
                return self.apply(operator.getitem, self.evaluate(value), self.evaluate(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if each is None else self.evaluate(each) for each in (lower, upper, step)))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
        raise ValueError(f"{type(node).__name__} is no expression of an FX source")

    def apply(self, function: Callable[..., Any], *operands: Any) -> Any:
        """A node for an operator, or its result where the operands are numbers."""
        if any(isinstance(each, fx.Node) for each in _leaves(operands)):
            return self.graph.call_function(function, operands)
        if function is operator.pow and any(abs(each) > 2**20 for each in operands):
            raise ValueError(f"{operands[0]} ** {operands[1]} is too large")
        if function is operator.mul and not all(isinstance(each, int | float) for each in operands):
            raise ValueError("only numbers are multiplied")
        return function(*operands)

    def _attribute(self, node: ast.Attribute) -> Any:
        dtype = getattr(torch, node.attr, None)
        if ast.unparse(node.value) == "torch" and isinstance(dtype, torch.dtype | torch.memory_format | torch.layout):
            return dtype
        value = self.evaluate(node.value)
        if isinstance(value, fx.Node) and node.attr in ATTRIBUTES:
            return self.graph.call_function(getattr, (value, node.attr))
        raise ValueError(f"{ast.unparse(node)[:60]} is not an attribute that may be read")

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            raise ValueError("a call with * or **")
        name = ast.unparse(node.func)
        if name in IGNORED:
            return None
        if name in ("device", "torch.device"):
            return torch.device("cpu")
        named = {str(each.arg): self.evaluate(each.value) for each in node.keywords}
        if name in CALLS:
            arguments = tuple(self.evaluate(each) for each in node.args)
            everything = _leaves((*arguments, *named.values()))
            if not name.startswith("torch.") and not any(isinstance(each, fx.Node) for each in everything):
                return CALLS[name](*arguments, **named)
            return self.graph.call_function(CALLS[name], arguments, named)
        if isinstance(node.func, ast.Attribute) and node.func.attr in TENSOR_METHODS:
            tensor = self.evaluate(node.func.value)
            arguments = tuple(self.evaluate(each) for each in node.args)
            if isinstance(tensor, fx.Node):
                return self.graph.call_method(node.func.attr, (tensor, *arguments), named)
            if node.func.attr == "item" and isinstance(tensor, int | float):
                return tensor
        raise ValueError(f"{name[:80]} is not a function that may be called")


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in _leaves(part)]
    return _leaves((value.start, value.stop, value.step)) if isinstance(value, slice) else [value]
