"""Reader of GraphNet samples: FX source text -> operator graph with the shape of every value.

Nothing of a source is executed. Its calls are parsed and applied to tensors of the meta device, which have no content.
A call that is not in `FUNCTIONS` or `METHODS` is an error that names its line.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.reproductions.dataset_files import dataset_files
from gst.util.untrusted import plain, shown

WANTED = re.compile(r"((?:.*/)?(?:model|weight_meta)\.py)")

DOTTED = """
torch: conv1d conv2d conv3d conv_transpose2d cat stack sigmoid tanh relu softmax log_softmax arange addcmul clamp roll
 rsqrt sqrt sum mean var std matmul bmm baddbmm permute zeros ones full zeros_like ones_like full_like eye mul add sub
 div transpose flatten square sin cos exp log abs unsqueeze squeeze rms_norm layer_norm einsum where tensor cumsum
 chunk split unbind reshape outer pow maximum minimum neg meshgrid linspace concat hstack addmm masked_fill erf
 reciprocal amax max_pool2d avg_pool1d adaptive_avg_pool1d prelu floor repeat_interleave flip tril triu finfo_min
 logical_not
torch.nn.functional: batch_norm relu relu6 dropout dropout2d dropout1d layer_norm silu hardswish group_norm hardtanh
 adaptive_avg_pool2d adaptive_avg_pool1d hardsigmoid leaky_relu max_pool2d max_pool1d avg_pool2d interpolate normalize
 adaptive_max_pool2d softmax log_softmax linear embedding gelu elu selu mish softplus pad conv2d conv1d conv3d
 scaled_dot_product_attention instance_norm unfold fold pixel_shuffle pixel_unshuffle glu rms_norm tanh sigmoid prelu
 celu logsigmoid avg_pool3d max_pool3d conv_transpose2d local_response_norm grid_sample feature_alpha_dropout
torch._C._nn: linear gelu scaled_dot_product_attention avg_pool2d pad softplus one_hot upsample_bilinear2d
 upsample_nearest2d upsample_bicubic2d unfold im2col
torch.functional: split einsum meshgrid norm
"""
"""Functions that a source may call, by the module that it names them in."""
METHODS = frozenset({
    "permute", "reshape", "transpose", "view", "mean", "sigmoid", "unbind", "contiguous", "mul_", "reshape_as",
    "flatten", "softmax", "mul", "unsqueeze", "type_as", "tensor_split", "chunk", "expand", "expand_as", "long",
    "sum", "repeat_interleave", "split", "exp", "to", "repeat", "pow", "matmul", "float", "tanh", "masked_fill",
    "squeeze", "ne", "int", "add", "add_", "sub", "sub_", "div", "div_", "neg", "abs", "sqrt", "rsqrt", "clamp",
    "clamp_", "clone", "detach", "movedim", "swapaxes", "swapdims", "unfold", "unflatten", "narrow", "select",
    "index_select", "gather", "cumsum", "amax", "max", "min", "std", "var", "square", "sin", "cos", "log",
    "log_softmax", "bmm", "baddbmm", "relu", "relu_", "gelu", "half", "bfloat16", "double", "bool", "eq", "lt",
    "gt", "le", "ge", "any", "all", "argmax", "norm", "view_as", "size", "dim", "numel", "item", "roll", "flip",
    "masked_fill_", "copy_", "fill_", "zero_", "addcmul", "new_zeros", "new_ones", "new_full", "t", "T", "mT",
    "sigmoid_", "tanh_", "hardtanh", "silu", "triu", "tril",
})  # fmt: skip
IGNORED = frozenset({"torch._C._log_api_usage_once", "torch._check", "torch._check_is_size", "torch.set_grad_enabled",
                     "torch._C._set_grad_enabled"})  # fmt: skip
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.MatMult: operator.matmul, ast.Pow: operator.pow,
    ast.Gt: operator.gt, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip
OPERATORS = {operator.matmul: "matmul", operator.truediv: "div", operator.floordiv: "floor_divide"}
UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
                                           ast.Not: operator.not_}  # fmt: skip


def _functions() -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {}
    for line in DOTTED.strip().replace("\n ", " ").splitlines():
        module, names = line.split(":")
        parent: Any = torch
        for part in module.split(".")[1:]:
            parent = getattr(parent, part)
        functions.update({f"{module}.{name}": getattr(parent, name) for name in names.split() if hasattr(parent, name)})
    functions["torch.sym_sum"] = lambda numbers: sum(numbers)
    functions.update({"slice": slice, "int": int, "float": float, "max": max, "min": min})
    return functions


FUNCTIONS = _functions()
"""Functions that a source may call, by name."""


class Value(NamedTuple):
    """A tensor that an operation reads or writes.

    Args:
        name: number of the value; equal for the operation that writes it and those that read it.
        storage: number of its memory; a view has that of what it views.
        strides: distance in elements from one index of a dimension to the next.
        is_parameter: True for weights, buffers, and values computed from these alone, which do not grow with the batch.
    """

    name: int
    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    is_parameter: bool

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Operation(NamedTuple):
    """A call of the source.

    Args:
        kind: last part of the function's name, such as `conv2d`; operators by their functions, such as `add`.
        reads: tensors among its arguments, in their order.
        constants: its other arguments, `{position or name: value}`.
        is_view: True if its result shares the memory of an argument and nothing is written.
    """

    kind: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    constants: dict[int | str, Any]
    is_view: bool


class Weight(NamedTuple):
    """An input of a program, as `weight_meta.py` describes it.

    Args:
        data: its elements where the file holds them; bounded integers have only this.
        mean, std, least, most: of its elements, if the file has them.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    data: tuple[float, ...] | None
    mean: float | None = None
    std: float | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class FxSource:
    """The two source texts of a sample.

    Args:
        model, weights: content of `model.py` and `weight_meta.py`.
        place: folder or archive that they were read from, for messages.
    """

    name: str
    model: str
    weights: str
    place: str = field(default="", compare=False)

    @property
    def where(self) -> str:
        """Name of the sample in its folder or archive."""
        return f"{self.place}/{self.name}" if self.place else self.name

    @cached_property
    def inputs(self) -> dict[str, Weight]:
        """Weights, buffers and images that are inputs of its program, by name; errors of `parse_weights`."""
        return parse_weights(self.weights, self.where)

    @cached_property
    def forward(self) -> ast.FunctionDef:
        """Syntax tree of the function `forward`; ValueError if there is none."""
        for node in ast.walk(_tree(self.model, f"{self.where}/model.py")):
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                return node
        raise ValueError(f"{self.where}/model.py: it has no function forward")


def read_sources(path: Path | str) -> Iterator[FxSource]:
    """Read samples as `stream_sources`, by name."""
    yield from sorted(stream_sources(path), key=lambda each: each.where)


def stream_sources(path: Path | str) -> Iterator[FxSource]:
    """Read the samples of `graphnet*.tar.xz`, or of a folder at any depth, one by one in the order of the files.

    Raises:
        ValueError: the archive is cut off, or a sample lacks one of its two files; the message names it.
    """
    path = Path(path)
    waiting: dict[str, dict[str, str]] = {}
    for name, content in dataset_files(path, WANTED, "GraphNet"):
        folder, stem = PurePosixPath(name).parent, PurePosixPath(name).stem
        texts = waiting.setdefault(str(folder), {})
        try:
            texts[stem] = content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: {name} is not UTF-8 text: {error.reason}") from error
        if len(texts) == 2:
            del waiting[str(folder)]
            yield FxSource(folder.name, texts["model"], texts["weight_meta"], str(path / folder.parent))
    for name in sorted(waiting):
        raise ValueError(f"{path}: {name} has no {'weight_meta' if 'model' in waiting[name] else 'model'}.py")


def sample_names(path: Path | str) -> list[str]:
    """List the names of the samples in the order of the files; raise ValueError if the archive is cut off."""
    files = dataset_files(Path(path), WANTED, "GraphNet")
    return [PurePosixPath(name).parent.name for name, _ in files if PurePosixPath(name).stem == "model"]


def parse_weights(text: str, where: str) -> dict[str, Weight]:
    """Parse the inputs that a `weight_meta.py` describes, by name.

    Raises:
        ValueError: it does not parse, or an entry lacks its name, shape or dtype; the message names the place.
    """
    weights = {}
    for block in _tree(text, f"{where}/weight_meta.py").body:
        if not isinstance(block, ast.ClassDef):
            continue
        fields = {}
        for line in block.body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                try:
                    fields[line.targets[0].id] = ast.literal_eval(line.value)
                except (ValueError, TypeError, SyntaxError, RecursionError) as error:
                    raise ValueError(f"{where}/weight_meta.py, line {line.lineno}: not a constant") from error
        shape, data, dtype = fields.get("shape"), fields.get("data"), _dtype(fields.get("dtype"))
        if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**40 for size in shape):
            raise ValueError(f"{where}/weight_meta.py, line {block.lineno}: want a name, a shape and a dtype of torch")
        if dtype is None or not isinstance(fields.get("name"), str):
            raise ValueError(f"{where}/weight_meta.py, line {block.lineno}: want a name, a shape and a dtype of torch")
        if data is not None and not (isinstance(data, list) and all(isinstance(each, int | float) for each in data)):
            raise ValueError(f"{where}/weight_meta.py, line {block.lineno}: data is {shown(data)}; want numbers")
        numbers = [fields.get(each) for each in ("mean", "std", "min_val", "max_val")]
        if wrong := [each for each in numbers if each is not None and not isinstance(each, int | float)]:
            raise ValueError(f"{where}/weight_meta.py, line {block.lineno}: {shown(wrong[0])} is no number")
        weights[fields["name"]] = Weight(tuple(shape), dtype, None if data is None else tuple(data), *numbers)
    return weights


def _dtype(name: Any) -> torch.dtype | None:
    dtype = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else None
    return dtype if isinstance(dtype, torch.dtype) else None


def _tree(text: str, where: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {plain(error)}; want Python source") from error


def is_parameter_input(name: str) -> bool:
    """True if an input is a weight or a buffer of the model."""
    return "parameters" in name or "buffers" in name or "self_" in name


def is_image_input(name: str, weight: Weight) -> bool:
    """True if an input is a batch of images."""
    return len(weight.shape) == 4 and not is_parameter_input(name)


def operator_graph(source: FxSource, image_size: int | None = None, is_channels_last: bool = False) -> list[Operation]:
    """Return the operations of a program for one sample of input, in order, with the shape of every value.

    Args:
        image_size: height and width of the images, the input of four dimensions that is no weight; None = the source's.
        is_channels_last: True if images and results of 2-D convolutions lie in NHWC, which the strides of values show.

    Raises:
        ValueError: a call is none of those that may be applied, or shapes contradict; the message names file and line.

    Examples:
        >>> block = "class {0}:\\n name = '{0}'\\n shape = {1}\\n dtype = 'torch.float32'\\n"
        >>> model = "def forward(self, x, w):\\n y = torch.conv2d(x, w, None, (2, 2), (1, 1), (1, 1), 1)\\n return y"
        >>> source = FxSource("small", model, block.format("x", [1, 3, 8, 8]) + block.format("w", [4, 3, 3, 3]))
        >>> [(operation.kind, operation.writes[0].shape) for operation in operator_graph(source)]
        [('conv2d', (1, 4, 4, 4))]
    """
    weights, forward = source.inputs, source.forward
    names = [each.arg for each in forward.args.args if each.arg != "self"]
    for name in names:
        if name not in weights:
            raise ValueError(f"{source.where}/model.py: input {shown(name)} is not in its weight_meta.py")
    given = {name: weights[name] for name in names}
    record = _Record(f"{source.where}/model.py", given, image_size, is_channels_last)
    with torch.no_grad(), torch.device("meta"):
        return record.run(forward)


class _Record:
    """Applies the calls of a source to meta tensors and records them."""

    def __init__(
        self, where: str, weights: Mapping[str, Weight], image_size: int | None, is_channels_last: bool
    ) -> None:
        self.where = where
        self.is_channels_last = is_channels_last
        self.operations: list[Operation] = []
        self.values: dict[int, Value] = {}
        self.alive: list[Tensor] = []  # values are identified by address: none may be freed
        self.storages: dict[int, int] = {}
        self.names: dict[str, Any] = {"Ellipsis": Ellipsis}
        for name, weight in weights.items():
            self.names[name] = self._input(name, weight, image_size)

    def _input(self, name: str, weight: Weight, image_size: int | None) -> Any:
        is_image = is_image_input(name, weight)
        if re.fullmatch(r"s\d+", name):
            return 1  # the batch, the only size that the sources keep as a symbol
        if weight.data is not None and not weight.shape and len(weight.data) == 1:
            return torch.tensor(weight.data[0], dtype=weight.dtype)
        shape = (1, weight.shape[1], image_size, image_size) if is_image and image_size else weight.shape
        tensor = torch.empty(shape, dtype=weight.dtype, device="meta")
        if is_image and self.is_channels_last:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        self._value(tensor, is_parameter_input(name))
        return tensor

    def _value(self, tensor: Tensor, is_parameter: bool) -> Value:
        value = self.values.get(id(tensor))
        if value is None:
            self.alive.append(tensor)
            address = tensor.untyped_storage()._cdata
            storage = self.storages.setdefault(address, len(self.storages))
            value = Value(len(self.alive), storage, tuple(tensor.shape), tensor.stride(), tensor.dtype, is_parameter)
            self.values[id(tensor)] = value
        return value

    def run(self, forward: ast.FunctionDef) -> list[Operation]:
        for line in forward.body:
            try:
                if isinstance(line, ast.Assign):
                    value = self._evaluate(line.value)
                    for target in line.targets:
                        self._assign(target, value)
                elif isinstance(line, ast.AugAssign) and isinstance(line.target, ast.Name):
                    value = self._binary(line.op, self._evaluate(line.target), self._evaluate(line.value))
                    self._assign(line.target, value)
                elif isinstance(line, ast.Expr):
                    self._evaluate(line.value)
                elif isinstance(line, ast.Return):
                    if line.value is not None:
                        self._evaluate(line.value)
                    break
                else:
                    raise ValueError(f"{type(line).__name__} is no statement of an FX source")
            except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
                    MemoryError) as error:  # fmt: skip
                raise ValueError(f"{self.where}, line {line.lineno}: {plain(error)}") from error
        return self.operations

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, Tensor) and value.dim() and len(value) != len(target.elts):  # before it is listed
                raise ValueError(f"{len(value)} values for {len(target.elts)} names")
            parts = [None] * len(target.elts) if value is None else list(value)
            if len(parts) != len(target.elts):
                raise ValueError(f"{len(parts)} values for {len(target.elts)} names")
            for each, part in zip(target.elts, parts, strict=True):
                self._assign(each, part)
        elif isinstance(target, ast.Subscript):
            place = self._evaluate(target.slice)
            self._record("setitem", operator.setitem, (self._evaluate(target.value), place, value), {})
        else:
            raise ValueError(f"{ast.unparse(target)[:60]} is assigned to")

    def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in self.names:
                    raise ValueError(f"{name} has no value")
                return self.names[name]
            case ast.Tuple(elts=elements):
                return tuple(self._evaluate(each) for each in elements)
            case ast.List(elts=elements):
                return [self._evaluate(each) for each in elements]
            case ast.UnaryOp(op=sign, operand=operand):
                function = UNARY[type(sign)]
                return self._record(function.__name__, function, (self._evaluate(operand),), {})
            case ast.BinOp(op=sign, left=left, right=right):
                return self._binary(sign, self._evaluate(left), self._evaluate(right))
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                return self._binary(sign, self._evaluate(left), self._evaluate(right))
            case ast.Subscript():
                read = (self._evaluate(node.value), self._evaluate(node.slice))
                return self._record("getitem", operator.getitem, read, {})
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if each is None else self._evaluate(each) for each in (lower, upper, step)))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
        raise ValueError(f"{type(node).__name__} is no expression of an FX source")

    def _attribute(self, node: ast.Attribute) -> Any:
        dtype = _dtype(ast.unparse(node))
        if dtype is not None:
            return dtype
        tensor = self._evaluate(node.value)
        if isinstance(tensor, Tensor) and node.attr in ("shape", "dtype", "device", "ndim", "T", "mT"):
            return getattr(tensor, node.attr)
        raise ValueError(f"{ast.unparse(node)[:60]} is not an attribute that may be read")

    def _binary(self, sign: ast.AST, left: Any, right: Any) -> Any:
        function = BINARY.get(type(sign))
        if function is None:
            raise ValueError(f"operator {type(sign).__name__} may not be applied")
        if not isinstance(left, Tensor) and not isinstance(right, Tensor):
            if not isinstance(left, int | float) or not isinstance(right, int | float):
                raise ValueError(f"{type(left).__name__} {type(sign).__name__} {type(right).__name__}")
            if max(abs(left), abs(right)) > 2**63:
                raise ValueError(f"a number is larger than {2**63}")
            if isinstance(sign, ast.Pow) and (abs(left) > 2**40 or abs(right) > 8):
                raise ValueError(f"{left} ** {right} is too large")
        return self._record(OPERATORS.get(function, function.__name__), function, (left, right), {})

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            raise ValueError("a call with * or **")
        name = ast.unparse(node.func)
        if name in IGNORED:
            return None
        if name == "device":
            return torch.device("meta")
        named: dict[str, Any] = {str(each.arg): self._evaluate(each.value) for each in node.keywords}
        if name in FUNCTIONS:
            if "device" in named:
                named["device"] = torch.device("meta")
            arguments = tuple(self._evaluate(each) for each in node.args)
            return self._record(name.rpartition(".")[2], FUNCTIONS[name], arguments, named)
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            tensor = self._evaluate(node.func.value)
            if isinstance(tensor, Tensor):
                arguments = tuple(self._evaluate(each) for each in node.args)
                return self._record(node.func.attr, getattr(Tensor, node.func.attr), (tensor, *arguments), named)
        raise ValueError(f"{name[:80]} is not a function that may be called")

    def _record(
        self, kind: str, function: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        everything: dict[int | str, Any] = dict(enumerate(positional)) | named
        reads = [each for part in everything.values() for each in _tensors(part)]
        versions = [each._version for each in reads]
        result = function(*positional, **named)
        if self.is_channels_last and kind == "conv2d" and result.is_meta:
            result = result.contiguous(memory_format=torch.channels_last)
        writes = _tensors(result) or ([positional[0]] if kind == "setitem" else [])
        if not any(each.is_meta for each in (*reads, *writes)):
            return result
        is_parameter = all(each.is_parameter for each in map(self.values.get, map(id, reads)) if each)
        inputs = tuple(self._value(each, True) for each in reads if each.is_meta)
        is_changed = any(each._version != before for each, before in zip(reads, versions, strict=True))
        if is_changed:  # an operation in place writes a new value in the old memory
            for each in writes:
                self.values.pop(id(each), None)
        outputs = tuple(self._value(each, is_parameter) for each in writes if each.is_meta)
        memories = {each.storage for each in inputs}
        is_view = not is_changed and bool(outputs) and all(each.storage in memories for each in outputs)
        constants = {place: part for place, part in everything.items() if not _tensors(part)}
        self.operations.append(Operation(kind, inputs, outputs, constants, is_view))
        return result


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [each for part in value for each in _tensors(part)] if isinstance(value, tuple | list) else []
