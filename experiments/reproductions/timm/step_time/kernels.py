"""Kernels that a program runs: operator graph, precision and compiler -> table of floating-point operations and bytes.

Eager: every operation that moves data is one kernel. Compiled: pointwise operations, reductions and normalizations that
follow each other without a product between them are one kernel, which reads and writes what crosses its border (the
rule by which TorchInductor groups). Under autocast, dtypes follow the lists of PyTorch for GPUs, casts included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from experiments.reproductions.graphnet.reader import Operation, Value
from experiments.reproductions.timm.step_time.fusion import Group, fused, grouped
from experiments.reproductions.timm.step_time.steps import (
    CLASSES,
    PRODUCTS,
    REDUCTIONS,
    Step,
    groups_of,
    is_nhwc,
    steps_of,
)

__all__ = ["CLASSES", "COLUMNS", "PRODUCTS", "Kernels", "kernels_of", "kernels_of_groups"]


class Kernels(NamedTuple):
    """The kernels of a program for one sample of input, in order.

    Args:
        kind: place in `CLASSES`.
        columns: `COLUMNS` of each kernel.
        grows: 1, or 0 if a kernel works on parameters alone and does not grow with the batch.
        repeats: number of equal kernels of the program.
    """

    kind: Int64[np.ndarray, " kernels"]
    columns: Float32[np.ndarray, "kernels columns"]
    grows: Float32[np.ndarray, " kernels"]
    repeats: Int64[np.ndarray, " kernels"]


COLUMNS = (
    "flops", "bytes read", "bytes written", "bytes of parameters", "rows", "outputs", "inner", "window", "stride",
    "groups", "positions", "operations", "is half", "reads", "bytes scattered", "transcendental", "is channels last",
)  # fmt: skip
"""flops; bytes of activations that are read and written; bytes of parameters; `rows` x `outputs` x `inner` is the shape
of a product (rows grow with the batch), of a reduction `inner` is what it reduces; kernel size, stride and groups of a
convolution; spatial positions of the result; operations that were fused; 1 where the product runs in a half precision;
tensors read; bytes read in another order than they are written in; elements of exponentials and the like; 1 where
the images that it reads or writes lie in NHWC."""
PER_SAMPLE = (0, 1, 2, 4, 14, 15)
"""Columns that grow with the batch."""
TRANSCENDENTAL = frozenset({
    "gelu", "silu", "sigmoid", "tanh", "softmax", "log_softmax", "exp", "softplus", "mish", "elu", "selu", "celu",
    "erf", "sin", "cos", "log", "pow", "sigmoid_", "tanh_",
})  # fmt: skip


def kernels_of(
    operations: Sequence[Operation], precision: str, is_compiled: bool, is_channels_last: bool = False,
    is_cpu: bool = False,
) -> Kernels:  # fmt: skip
    """Return the kernels that run `operations`.

    Args:
        precision: `fp32`; `half`: weights and inputs of 16 bits; `amp`: 32 bits under autocast to 16; else ValueError.
        is_compiled: by TorchInductor, for a CPU if `is_cpu`.
        is_channels_last: True if images lie in NHWC, as the strides of `operations` show.
    """
    if precision not in ("fp32", "half", "amp"):
        raise ValueError(f"precision is {precision!r}; choose fp32, half, amp")
    steps, width, full = steps_of(operations, precision)
    groups = fused(steps, is_cpu) if is_compiled else [_alone(step) for step in steps]
    return _table(groups, width, full, is_channels_last)


def kernels_of_groups(groups: Sequence[Sequence[Operation]]) -> Kernels:
    """Return the kernels of groups of operations, one for each that moves data; raise ValueError if none does."""
    number = {id(operation): place for place, group in enumerate(groups) for operation in group}
    steps, width, full = steps_of([operation for group in groups for operation in group], "fp32")
    places: dict[int, list[int]] = {}
    for place, step in enumerate(steps):
        if id(step.operation) in number:  # no copy that was put in
            places.setdefault(number[id(step.operation)], []).append(place)
    return _table(grouped(steps, places.values()), width, full, False)


def _table(groups: Sequence[Group], width: dict[int, int], full: dict[int, int], is_channels_last: bool) -> Kernels:
    if not groups:
        raise ValueError("it has no operation that moves data")
    rows = [_row(group, width, full, is_channels_last) for group in groups]
    kinds, columns, grows = zip(*rows, strict=True)
    table = np.array(columns, np.float32)
    return Kernels(np.array(kinds, np.int64), table, np.array(grows, np.float32), np.ones(len(table), np.int64))


def _alone(step: Step) -> Group:
    return Group(step.label, [step], {v.name: v for v in step.reads}, {v.name: v for v in step.writes})


def _row(
    group: Group, width: dict[int, int], full: dict[int, int], is_channels_last: bool
) -> tuple[int, tuple[float, ...], float]:
    label, steps, reads, writes = group
    main = next((step for step in steps if step.operation.kind in PRODUCTS), None)
    read = {name: v for name, v in reads.items() if not v.is_parameter}
    activations = math.fsum(_bytes(v, width, full) for v in read.values())
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
        reduced = max((_reduced(step) for step in steps if step.label in REDUCTIONS), default=1.0)
        shape = (result.numel / max(result.shape[-1], 1), float(result.shape[-1]), reduced, 1.0, 1.0, 1.0)
    largest = max(writes.values(), key=lambda value: value.numel)
    scattered = math.fsum(_bytes(v, width, full) for v in read.values() if _is_scattered(v, largest))
    hard = float(sum(step.writes[0].numel for step in steps if step.operation.kind in TRANSCENDENTAL))
    images = [v for step in steps for v in (*step.reads, *step.writes) if len(v.shape) == 4 and not v.is_parameter]
    is_last = bool(images) and (is_channels_last or any(map(is_nhwc, images)))
    row = (work, activations, written, parameters, *shape, float(max(spatial, 1)), float(len(steps)), is_half,
           float(len(read)), scattered, hard, float(is_last))  # fmt: skip
    return CLASSES.index(label), row, grows


def _bytes(value: Value, width: dict[int, int], full: dict[int, int]) -> float:
    return float(min(value.numel, full.get(value.storage, value.numel)) * width.get(value.name, 4))


def _reduced(step: Step) -> float:
    """Return the number of elements that a reduction combines into one."""
    read, written = step.reads[0], step.writes[0]
    if step.label == "reduction":
        return read.numel / max(written.numel, 1)
    return float(read.shape[-1]) if read.shape else 1.0


def _is_scattered(value: Value, result: Value) -> bool:
    """True if the value is read with a stride while the result is written in order."""
    if value.numel <= max(value.shape, default=1) or value.numel * 8 < result.numel:
        return False
    place = len(result.shape) - 1
    if len(value.shape) == len(result.shape):
        fastest = [each for each, size in enumerate(result.shape) if size > 1 and result.strides[each] == 1]
        place = fastest[0] if fastest else place
        return value.shape[place] > 1 and value.strides[place] > 1
    return value.shape[-1] > 1 and value.strides[-1] > 1


def _product(step: Step) -> tuple[float, tuple[float, ...]]:
    """Return floating-point operations; and rows, outputs, inner size, window, stride, groups."""
    first, result = step.reads[0], step.writes[0]
    kind, constants = step.operation.kind, step.operation.constants
    if PRODUCTS[kind] == "conv":
        weight = step.reads[1].shape
        inner, window = math.prod(weight[1:]), math.prod(weight[2:])
        groups = groups_of(first, weight)
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
