"""Steps of a program: operations that move data, with casts of autocast and copies before products; their classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from experiments.reproductions.graphnet.reader import Operation, Value

PRODUCTS = {
    "conv1d": "conv", "conv2d": "conv", "conv3d": "conv", "linear": "linear", "matmul": "matmul", "bmm": "matmul",
    "baddbmm": "matmul", "addmm": "matmul", "einsum": "matmul", "scaled_dot_product_attention": "attention",
}  # fmt: skip
CLASSES = (
    "conv 1x1", "conv kxk", "conv depthwise", "conv grouped", "conv stem", "linear", "matmul", "attention",
    "batch norm", "layer norm", "group norm", "softmax", "reduction", "pool", "pointwise", "add", "multiply",
    "concatenate", "copy", "cast", "resize", "pad", "fused pointwise", "fused reduction",
)  # fmt: skip
KINDS = {
    "batch_norm": "batch norm", "layer_norm": "layer norm", "rms_norm": "layer norm", "group_norm": "group norm",
    "instance_norm": "group norm", "softmax": "softmax", "log_softmax": "softmax", "normalize": "layer norm",
    "mean": "reduction", "sum": "reduction", "var": "reduction", "std": "reduction", "amax": "reduction",
    "adaptive_avg_pool2d": "reduction", "adaptive_max_pool2d": "reduction", "norm": "reduction", "cumsum": "reduction",
    "avg_pool2d": "pool", "max_pool2d": "pool", "add": "add", "iadd": "add", "sub": "add", "add_": "add",
    "mul": "multiply", "mul_": "multiply", "div": "multiply", "addcmul": "multiply", "cat": "concatenate",
    "stack": "concatenate", "contiguous": "copy", "reshape": "copy", "flatten": "copy", "repeat": "copy",
    "roll": "copy", "repeat_interleave": "copy", "reshape_as": "copy", "clone": "copy", "setitem": "copy",
    "flip": "copy", "getitem": "copy", "copy of a slice": "copy", "to": "cast", "type_as": "cast",
    "float": "cast", "half": "cast", "long": "cast", "interpolate": "resize", "grid_sample": "resize", "pad": "pad",
}  # fmt: skip
"""Class of an operation by its kind; any other is pointwise."""
REDUCTIONS = frozenset({"layer norm", "group norm", "softmax", "reduction"})
NOTHING = frozenset({"dropout", "dropout2d", "dropout1d", "feature_alpha_dropout", "detach", "size", "dim"})
"""Kinds without effect at inference."""
COMPACT = frozenset({"linear", "matmul", "conv2d", "layer_norm", "softmax", "log_softmax"})
"""Kinds that copy an operand if their kernel cannot read its strides."""
SLICE = "copy of a slice"
"""Kind of the copy that a convolution makes of a slice of its input, with any compiler."""
TO_HALF = frozenset({*PRODUCTS, "prelu"})
TO_FLOAT = frozenset({
    "layer_norm", "group_norm", "softmax", "log_softmax", "normalize", "exp", "pow", "rsqrt", "sum", "cumsum", "norm",
    "log", "reciprocal", "softplus", "instance_norm",
})  # fmt: skip


class Step(NamedTuple):
    """An operation that moves data, its class in `CLASSES`, and its values; a view counts as the value it shows."""

    operation: Operation
    label: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


def steps_of(operations: Sequence[Operation], precision: str) -> tuple[list[Step], dict[int, int], dict[int, int]]:
    """Return operations that move data, with casts; bytes of an element of each value; elements of each memory."""
    width: dict[int, int] = {}
    full: dict[int, int] = {}  # elements of a memory: an expanded view reads no more
    root: dict[int, Value] = {}
    steps: list[Step] = []
    halves: dict[int, Value] = {}
    fresh = -1

    def bytes_of(value: Value) -> int:
        if value.name not in width:
            is_float = value.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
            width[value.name] = 2 if is_float and precision == "half" else min(value.dtype.itemsize, 4)
        full.setdefault(value.storage, value.numel)
        return width[value.name]

    def cast(value: Value, size: int) -> Value:
        nonlocal fresh
        before = bytes_of(value)
        if before == size or before not in (2, 4) or not value.dtype.is_floating_point:
            return value
        if size == 2 and value.name in halves:  # autocast keeps casts of weights, and readers share one in practice
            return halves[value.name]._replace(shape=value.shape, strides=_dense(value))
        source = root.get(value.name, value)
        result = value._replace(name=fresh, storage=fresh, strides=_dense(value))
        fresh -= 1
        width[result.name], full[result.storage] = size, full[value.storage]
        steps.append(Step(Operation("to", (source,), (result,), {}, False), "cast", (source,), (result,)))
        if size == 2:
            halves[value.name] = result
        return result

    def compact(value: Value, strides: tuple[int, ...], kind: str) -> Value:
        nonlocal fresh
        source = _as_seen(root.get(value.name, value), value)
        result = value._replace(name=fresh, storage=fresh, strides=strides)
        fresh -= 1
        width[result.name], full[result.storage] = width[value.name], value.numel
        steps.append(Step(Operation(kind, (source,), (result,), {}, False), "copy", (source,), (result,)))
        return result

    for operation in operations:
        kind = operation.kind
        for value in operation.reads:
            bytes_of(value)
        if operation.is_view or kind in NOTHING:
            for value in operation.writes:
                if operation.reads and value.name != operation.reads[0].name:
                    width[value.name] = width[operation.reads[0].name]
                    root[value.name] = root.get(operation.reads[0].name, operation.reads[0])
                    full.setdefault(value.storage, value.numel)
            continue
        reads = operation.reads
        sizes = [width[value.name] for value in reads if value.dtype.is_floating_point]
        size = max(sizes, default=4)
        if precision == "amp" and kind in TO_HALF:
            reads, size = tuple(cast(value, 2) for value in reads), 2
        elif precision == "amp" and kind in TO_FLOAT:
            reads, size = tuple(cast(value, 4) for value in reads), 4
        elif kind == "batch_norm" and reads:
            size = width[reads[0].name]
        elif kind in ("type_as", "to", "float", "half"):
            size = {"float": 4, "half": 2}.get(kind, sizes[-1] if sizes else 4)
        if kind in COMPACT:
            reads = tuple(
                value if value.is_parameter or (strides := _wanted(kind, value)) is None
                else compact(value, strides, SLICE if kind == "conv2d" and _is_slice(value, strides) else "clone")
                for value in reads
            )  # fmt: skip
        for value in operation.writes:
            width[value.name] = size if value.dtype.is_floating_point else min(value.dtype.itemsize, 4)
            full.setdefault(value.storage, value.numel)
        steps.append(Step(operation, label_of(operation), reads, operation.writes))
    # what is read is looked up through views, so that a value and its views are one
    plain = [
        step._replace(reads=tuple(_as_seen(root[v.name], v) if v.name in root else v for v in step.reads))
        for step in steps
    ]
    return plain, width, full


def cast_kind(dtype: torch.dtype) -> str:
    """Return the kind of the operation that casts to `dtype`: half, float or to."""
    return {2: "half", 4: "float"}.get(dtype.itemsize, "to") if dtype.is_floating_point else "to"


def label_of(operation: Operation) -> str:
    product = PRODUCTS.get(operation.kind)
    if product != "conv":
        return product or KINDS.get(operation.kind, "pointwise")
    weight = operation.reads[1].shape
    groups = groups_of(operation.reads[0], weight)
    if groups > 1:
        return "conv depthwise" if weight[1] == 1 else "conv grouped"
    if weight[1] <= 4:
        return "conv stem"
    return "conv 1x1" if math.prod(weight[2:]) == 1 else "conv kxk"


def _wanted(kind: str, value: Value) -> tuple[int, ...] | None:
    """Return the strides of the copy that a kernel makes of an operand; None if it reads the operand in place."""
    shape, strides = value.shape, value.strides  # products also read transposes, and convolutions NHWC
    if kind in ("linear", "matmul") and len(shape) >= 2 and strides[-2] < strides[-1]:
        shape, strides = (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    if kind == "conv2d" and is_nhwc(value):
        _, channels, height, width = shape
        nhwc = (height * width * channels, 1, width * channels, channels)
        return None if _is_as(shape, strides, nhwc) else nhwc
    return None if _is_as(shape, strides, in_order(shape)) else in_order(value.shape)


def _is_as(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """True if strides are equal in the first dimension, of one sample here, and wherever sizes are not 1."""
    pairs = enumerate(zip(shape, strides, wanted, strict=True))
    return all(own == other or (place > 0 and size == 1) for place, (size, own, other) in pairs)


def _is_slice(value: Value, strides: tuple[int, ...]) -> bool:
    """True if the value has these strides except for gaps."""
    return _is_as(value.shape, _dense(value), strides)


def is_nhwc(value: Value) -> bool:
    """True if the value is a batch of images in NHWC."""
    shape, strides = value.shape, value.strides
    return len(shape) == 4 and shape[1] > 1 and strides[1] == 1 and max(shape[2:]) > 1


def _dense(value: Value) -> tuple[int, ...]:
    """Return the strides of a result with the same order of dimensions and no gaps, as casts make."""
    result, step = [0] * len(value.shape), 1
    for place in sorted(range(len(value.shape)), key=lambda each: (value.strides[each], -each)):
        result[place] = step
        step *= value.shape[place]
    return tuple(result)


def groups_of(first: Value, weight: tuple[int, ...]) -> int:
    return first.shape[1 - len(weight)] // max(weight[1], 1)


def _as_seen(root: Value, view: Value) -> Value:
    """Return the base of a view with the shape and strides of the view."""
    return root._replace(shape=view.shape, strides=view.strides)


def in_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor: (12, 4, 1) for the shape (2, 3, 4)."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
