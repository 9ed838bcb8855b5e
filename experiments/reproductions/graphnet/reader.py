"""Reader of GraphNet samples: the syntax tree of `forward`, its inputs, and the functions that a source may call.

Nothing of a source is executed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch

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


def read_sources(path: Path | str) -> list[FxSource]:
    """Read the samples of `graphnet*.tar.xz`, or of a folder at any depth, by name.

    Raises:
        ValueError: the archive is cut off, or a sample lacks one of its two files; the message names it.
    """
    path = Path(path)
    waiting: dict[str, dict[str, str]] = {}
    sources = []
    for name, content in dataset_files(path, WANTED, "GraphNet"):
        folder, stem = PurePosixPath(name).parent, PurePosixPath(name).stem
        texts = waiting.setdefault(str(folder), {})
        try:
            texts[stem] = content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: {name} is not UTF-8 text: {error.reason}") from error
        if len(texts) == 2:
            del waiting[str(folder)]
            sources.append(FxSource(folder.name, texts["model"], texts["weight_meta"], str(path / folder.parent)))
    for name in sorted(waiting):
        raise ValueError(f"{path}: {name} has no {'weight_meta' if 'model' in waiting[name] else 'model'}.py")
    return sorted(sources, key=lambda each: each.where)


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
