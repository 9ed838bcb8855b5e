"""Kernels that a program runs: operator graph, precision and compiler -> table of floating-point operations and bytes.

Eager: every operation that moves data is one kernel. Compiled: pointwise operations, reductions and normalizations that
follow each other without a product between them are one kernel, which reads and writes what crosses its border (the
rule by which TorchInductor groups). Under autocast, dtypes follow the lists of PyTorch's CUDA autocast, casts included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64

from gst.data.graphnet import Operation, Value

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
    "flip": "copy", "getitem": "copy", "to": "cast", "type_as": "cast", "float": "cast", "half": "cast",
    "long": "cast", "interpolate": "resize", "grid_sample": "resize", "pad": "pad",
}  # fmt: skip
"""Class of an operation by its kind; any other is pointwise."""
REDUCTIONS = frozenset({"layer norm", "group norm", "softmax", "reduction"})
NOTHING = frozenset({"dropout", "dropout2d", "dropout1d", "feature_alpha_dropout", "detach", "size", "dim"})
"""Kinds that do nothing at inference."""
TO_HALF = frozenset({*PRODUCTS, "prelu"})
TO_FLOAT = frozenset({
    "layer_norm", "group_norm", "softmax", "log_softmax", "normalize", "exp", "pow", "rsqrt", "sum", "cumsum", "norm",
    "log", "reciprocal", "softplus", "instance_norm",
})  # fmt: skip


class Kernels(NamedTuple):
    """The kernels of a program for one sample of input, in order.

    Args:
        kind: place in `CLASSES`.
        columns: the columns of `COLUMNS`, of each kernel.
        grows: share of the work that grows with the batch: 1, or 0 where a kernel works on parameters alone.
    """

    kind: Int64[np.ndarray, " kernels"]
    columns: Float32[np.ndarray, "kernels columns"]
    grows: Float32[np.ndarray, " kernels"]


COLUMNS = (
    "flops", "bytes read", "bytes written", "bytes of parameters", "rows", "outputs", "inner", "window", "stride",
    "groups", "positions", "operations", "is half",
)  # fmt: skip
"""flops; bytes of activations that are read and written; bytes of parameters; `rows` x `outputs` x `inner` is the shape
of a product (rows grow with the batch); kernel size, stride and groups of a convolution; spatial positions of the
result; operations that were fused; 1 where the product runs in a half precision."""


class _Step(NamedTuple):
    operation: Operation
    label: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


def kernels_of(operations: Sequence[Operation], precision: str, is_compiled: bool) -> Kernels:
    """The kernels that run `operations`.

    Args:
        precision: `fp32`; `half`: weights and inputs of 16 bits; `amp`: 32 bits under autocast to 16.
        is_compiled: by TorchInductor.

    Raises:
        ValueError: there is no such precision.
    """
    if precision not in ("fp32", "half", "amp"):
        raise ValueError(f"precision is {precision!r}; choose fp32, half, amp")
    steps, width, full = _steps(operations, precision)
    return _table(_fused(steps, width, full) if is_compiled else [_alone(step, width, full) for step in steps])


def kernels_of_groups(groups: Sequence[Sequence[Operation]]) -> Kernels:
    """The kernels of a program whose compiler has grouped its operations: one of each group that moves data.

    Raises:
        ValueError: none does.
    """
    number = {id(operation): place for place, group in enumerate(groups) for operation in group}
    steps, width, full = _steps([operation for group in groups for operation in group], "fp32")
    places: dict[int, list[int]] = {}
    for place, step in enumerate(steps):
        places.setdefault(number[id(step.operation)], []).append(place)
    return _table(_rows(steps, places, width, full))


def _table(rows: Sequence[Row]) -> Kernels:
    if not rows:
        raise ValueError("it has no operation that moves data")
    kinds, columns, grows = zip(*rows, strict=True)
    return Kernels(np.array(kinds, np.int64), np.array(columns, np.float32), np.array(grows, np.float32))


def _steps(operations: Sequence[Operation], precision: str) -> tuple[list[_Step], dict[int, int], dict[int, int]]:
    """Operations that move data, with casts; bytes of an element of each value; elements of each memory."""
    width: dict[int, int] = {}
    full: dict[int, int] = {}  # elements of a memory: an expanded view reads no more
    root: dict[int, Value] = {}
    steps: list[_Step] = []
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
            return halves[value.name]._replace(shape=value.shape)
        source = root.get(value.name, value)
        result = value._replace(name=fresh, storage=fresh)
        fresh -= 1
        width[result.name], full[result.storage] = size, full[value.storage]
        steps.append(_Step(Operation("to", (source,), (result,), {}, False), "cast", (source,), (result,)))
        if size == 2:
            halves[value.name] = result
        return result

    def compact(value: Value) -> Value:
        nonlocal fresh
        if value.is_parameter or value.name < 0 or _is_compact(value):
            return value  # a cast has written its result in order
        source = root.get(value.name, value)
        result = value._replace(name=fresh, storage=fresh)
        fresh -= 1
        width[result.name], full[result.storage] = width[value.name], value.numel
        steps.append(_Step(Operation("clone", (source,), (result,), {}, False), "copy", (source,), (result,)))
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
            size = 4
        elif kind == "batch_norm" and reads:
            size = width[reads[0].name]
        elif kind in ("type_as", "to", "float", "half"):
            size = {"float": 4, "half": 2}.get(kind, sizes[-1] if sizes else 4)
        if kind in ("linear", "matmul"):
            reads = tuple(compact(value) for value in reads)
        for value in operation.writes:
            width[value.name] = size if value.dtype.is_floating_point else min(value.dtype.itemsize, 4)
            full.setdefault(value.storage, value.numel)
        steps.append(_Step(operation, _label(operation), reads, operation.writes))
    # what is read is looked up through views, so that a value and its views are one
    plain = [
        step._replace(reads=tuple(root[v.name]._replace(shape=v.shape) if v.name in root else v for v in step.reads))
        for step in steps
    ]
    return plain, width, full


def _label(operation: Operation) -> str:
    product = PRODUCTS.get(operation.kind)
    if product != "conv":
        return product or KINDS.get(operation.kind, "pointwise")
    weight = operation.reads[1].shape
    groups = _groups(operation.reads[0], weight)
    if groups > 1:
        return "conv depthwise" if weight[1] == 1 else "conv grouped"
    if weight[1] <= 4:
        return "conv stem"
    return "conv 1x1" if math.prod(weight[2:]) == 1 else "conv kxk"


def _is_compact(value: Value) -> bool:
    """The matrices of the last two dimensions, or their transposes, lie one after the other."""
    shape, strides = value.shape, value.strides
    if len(shape) >= 2 and strides[-2] < strides[-1]:
        shape, strides = (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _groups(first: Value, weight: tuple[int, ...]) -> int:
    return first.shape[1 - len(weight)] // max(weight[1], 1)


def _bytes(value: Value, width: dict[int, int], full: dict[int, int]) -> float:
    return float(min(value.numel, full.get(value.storage, value.numel)) * width.get(value.name, 4))


Row = tuple[int, tuple[float, ...], float]


def _alone(step: _Step, width: dict[int, int], full: dict[int, int]) -> Row:
    return _row(step.label, [step], {v.name: v for v in step.reads}, {v.name: v for v in step.writes}, width, full)


def _row(
    label: str, steps: Sequence[_Step], reads: dict[int, Value], writes: dict[int, Value], width: dict[int, int],
    full: dict[int, int],
) -> Row:  # fmt: skip
    main = next((step for step in steps if step.operation.kind in PRODUCTS), None)
    activations = math.fsum(_bytes(v, width, full) for v in reads.values() if not v.is_parameter)
    parameters = math.fsum(_bytes(v, width, full) for v in reads.values() if v.is_parameter)
    written = math.fsum(_bytes(v, width, full) for v in writes.values())
    result = steps[-1].writes[0]
    spatial = math.prod(result.shape[2:]) if len(result.shape) == 4 else math.prod(result.shape[1:-1])
    grows = 0.0 if all(v.is_parameter for v in writes.values()) else 1.0
    work = float(sum(v.numel for step in steps for v in step.writes))
    shape: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    is_half = 0.0
    if main is not None:
        work, shape = _product(main)
        is_half = float(width.get(main.writes[0].name, 4) == 2)
    elif label in ("pool", "fused pointwise") and steps[-1].operation.kind in ("avg_pool2d", "max_pool2d"):
        work *= 9
    elif result.shape:
        shape = (result.numel / max(result.shape[-1], 1), float(result.shape[-1]), 1.0, 1.0, 1.0, 1.0)
    row = (work, activations, written, parameters, *shape, float(max(spatial, 1)), float(len(steps)), is_half)
    return CLASSES.index(label), row, grows


def _product(step: _Step) -> tuple[float, tuple[float, ...]]:
    """Floating-point operations; rows, outputs, inner size, window, stride, groups."""
    first, result = step.reads[0], step.writes[0]
    kind, constants = step.operation.kind, step.operation.constants
    if PRODUCTS[kind] == "conv":
        weight = step.reads[1].shape
        inner, window = math.prod(weight[1:]), math.prod(weight[2:])
        groups = _groups(first, weight)
        stride = constants.get(3, constants.get("stride", 1))
        stride = stride[0] if isinstance(stride, tuple | list) else stride
        shape = (result.numel / weight[0], weight[0] / groups, inner, window, stride, groups)
        return 2.0 * result.numel * inner, tuple(map(float, shape))
    if kind == "scaled_dot_product_attention":
        keys = step.reads[1].shape
        rows, width = first.shape[-2], first.shape[-1]
        heads = first.numel / (rows * width)
        return 4.0 * heads * rows * keys[-2] * width, (float(rows), float(keys[-2]), float(width), 1.0, 1.0, heads)
    if kind == "einsum":
        inputs, _, output = str(constants.get(0, "->")).partition("->")
        letters = dict(zip("".join(inputs.replace(" ", "").split(",")), sum((v.shape for v in step.reads), ()),
                           strict=False))  # fmt: skip
        inner = math.prod(size for letter, size in letters.items() if letter not in output)
    else:
        inner = first.shape[-1] if first.shape else 1
    outputs = result.shape[-1] if result.shape else 1
    groups = math.prod(result.shape[:-2]) if PRODUCTS[kind] == "matmul" else 1
    each = result.numel / max(outputs * groups, 1)
    return 2.0 * result.numel * inner, (each, float(outputs), float(inner), 1.0, 1.0, float(groups))


def _fused(steps: list[_Step], width: dict[int, int], full: dict[int, int]) -> list[Row]:
    """Kernels after fusion: operations join their producers where no product lies between them."""
    is_product = [step.operation.kind in PRODUCTS for step in steps]
    level = _levels(steps, is_product)
    parent = list(range(len(steps)))
    writer = {value.name: place for place, step in enumerate(steps) for value in step.writes}

    def top(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for place, step in enumerate(steps):
        if is_product[place] or step.label == "pool":
            continue  # the window of a pool would compute each of its producers again
        result = max(value.numel for value in step.writes)
        for value in step.reads:
            source = writer.get(value.name)
            if source is None or is_product[source] or level[source] != level[place]:
                continue
            if value.is_parameter != step.writes[0].is_parameter:
                continue
            read = max((each.numel for each in steps[source].reads if not each.is_parameter), default=0)
            if steps[source].label == "reduction" and value.numel * 4 <= read and result > 4 * value.numel:
                continue  # a kernel that reduces is over before its result is broadcast
            parent[top(place)] = top(source)
    groups: dict[int, list[int]] = {}
    for place in range(len(steps)):
        groups.setdefault(top(place), []).append(place)
    return _rows(steps, groups, width, full)


def _rows(
    steps: list[_Step], groups: dict[int, list[int]], width: dict[int, int], full: dict[int, int]
) -> list[Row]:  # fmt: skip
    """One kernel of each group, given as places of its steps: it reads and writes what crosses its border."""
    readers: dict[int, set[int]] = {}
    for root, places in groups.items():
        for value in (value for place in places for value in steps[place].reads):
            readers.setdefault(value.name, set()).add(root)
    rows = []
    for root, places in groups.items():
        members = [steps[place] for place in places]
        made = {v.name for step in members for v in step.writes}
        reads = {v.name: v for step in members for v in step.reads if v.name not in made}
        writes = {
            v.name: v for step in members for v in step.writes
            if readers.get(v.name, set()) - {root} or v.name not in readers
        }  # fmt: skip
        writes = writes or {v.name: v for v in members[-1].writes}
        label = next((step.label for step in members if step.operation.kind in PRODUCTS), "")
        if not label:
            has_reduction = any(step.label in REDUCTIONS for step in members)
            label = "fused reduction" if has_reduction else "fused pointwise"
        rows.append(_row(label, members, reads, writes, width, full))
    return rows


def _levels(steps: list[_Step], is_product: list[bool]) -> list[int]:
    """Number of products on the longest path to each step; of a pointwise step with one reader, that of its reader,
    because a compiler computes it there."""
    depth: dict[int, int] = {}  # of each value
    readers: dict[int, set[int]] = {}
    level = []
    for place, step in enumerate(steps):
        level.append(max((depth.get(value.name, 0) for value in step.reads), default=0))
        for value in step.reads:
            readers.setdefault(value.name, set()).add(place)
        depth.update({value.name: level[place] + is_product[place] for value in step.writes})
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        after = {reader for value in step.writes for reader in readers.get(value.name, ())}
        if is_product[place] or step.label in REDUCTIONS or step.label == "pool" or len(after) != 1:
            continue
        (reader,) = after
        if not is_product[reader] and steps[reader].label != "pool":
            level[place] = level[reader]
    return level
