"""Conversion of HLO instructions to the kinds and shapes of operators of FX sources."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.reproductions.graphnet.reader import Value
from experiments.reproductions.timm.step_time.steps import cast_kind, in_order

VIEWS = frozenset({"bitcast", "reshape", "broadcast", "bitcast-convert"})
"""Opcodes that move no data; a broadcast is read by its consumers at the size of its operand."""
KINDS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "concatenate": "cat", "pad": "pad",
    "reduce": "sum", "gather": "embedding", "dynamic-slice": "getitem", "slice": "getitem", "scatter": "setitem",
    "dynamic-update-slice": "setitem", "copy": "clone", "copy-start": "clone", "transpose": "clone",
    "reverse": "flip", "batch-norm-training": "batch_norm", "batch-norm-inference": "batch_norm",
    "batch-norm-grad": "batch_norm", "select-and-scatter": "max_pool2d", "reduce-precision": "clone",
}  # fmt: skip
PART_READ = frozenset({"gather", "dynamic-slice", "slice"})
"""Opcodes that read as much of their first operand as they return."""
PART_WRITTEN = {"dynamic-update-slice": 1, "scatter": -1}
"""Opcodes that change an array in place, and which operand is the change."""
LARGEST_POOL = 64  # elements of a window; a larger one is a cumulative sum
GEMM = ("gemm", "matmul")
LETTERS = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")


class Shapes(NamedTuple):
    """Tensors of an operator in the shapes of FX sources: (batch, rows, inner), NCHW, OIHW.

    Args:
        constants: stride of a convolution.
        images: batch and side of the images that a convolution of two dimensions reads; None of others.
    """

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    constants: dict[int | str, Any]
    images: tuple[int, int] | None = None


def kind_of(each: Any, reads: Sequence[Value], writes: Sequence[Value]) -> str:
    """Return the kind of operator of an instruction."""
    opcode = each.opcode
    if is_convolution(each):
        return f"conv{min(max(len(each.convolution_dimension_numbers.input_spatial_dimensions), 1), 3)}d"
    if is_product(each):
        return "linear" if len(reads) > 1 and reads[1].is_parameter else "matmul"
    if opcode == "convert" and writes:
        return cast_kind(writes[0].dtype)
    if opcode == "reduce-window":
        return "max_pool2d" if math.prod(one.size for one in each.window.dimensions) <= LARGEST_POOL else "cumsum"
    return KINDS.get(opcode, opcode)


def is_convolution(each: Any) -> bool:
    """True for a convolution, also by the call of a library."""
    is_call = each.opcode == "custom-call" and bool(each.convolution_dimension_numbers.input_spatial_dimensions)
    return (each.opcode == "convolution" or is_call) and len(each.operand_ids) > 1


def is_product(each: Any) -> bool:
    """True for a product of matrices, also by the call of a library."""
    target = each.custom_call_target.lower()
    is_call = each.opcode == "custom-call" and any(name in target for name in GEMM)
    return (each.opcode == "dot" or is_call) and len(each.operand_ids) > 1


def shapes_of(each: Any, kind: str, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> Shapes:
    """Return the tensors of an instruction in the shapes of its operator; raise ValueError if they contradict."""
    if is_convolution(each):
        return _convolution(each, reads, writes[:1])
    if is_product(each):
        return _product(each, reads, writes[:1])
    if each.opcode in PART_READ and reads and writes:
        part = reads[0]._replace(shape=writes[0].shape, strides=writes[0].strides)
        return Shapes((part if part.numel < reads[0].numel else reads[0], *reads[1:]), writes, {})
    if each.opcode in PART_WRITTEN and len(reads) > 1:
        change = reads[PART_WRITTEN[each.opcode]]
        result = writes[0]._replace(shape=change.shape, strides=change.strides, storage=reads[0].storage)
        return Shapes(tuple(reads[1:]), (result,), {})
    if kind == "batch_norm":
        return Shapes(reads, writes[:1], {})
    return Shapes(reads, writes, {})


def _shaped(value: Value, shape: Sequence[int]) -> Value:
    return value._replace(shape=tuple(shape), strides=in_order(tuple(shape)))


def _product(each: Any, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> Shapes:
    first, second = reads[:2]
    left, right, left_batch, right_batch = _dimensions(each, first)
    _within(each, first, left + left_batch)
    _within(each, second, right + right_batch)
    inner = [first.shape[place] for place in left]
    if inner != [second.shape[place] for place in right]:
        raise ValueError(f"instruction {each.name[:40]!r} sums over {inner} of one operand and "
                         f"{[second.shape[place] for place in right]} of the other")  # fmt: skip
    batch = math.prod(first.shape[place] for place in left_batch)
    depth = math.prod(inner)
    rows = first.numel // max(batch * depth, 1)
    outputs = second.numel // max(batch * depth, 1)
    if writes[0].numel != batch * rows * outputs:
        raise ValueError(f"instruction {each.name[:40]!r} has a result of {list(writes[0].shape)}; its operands make "
                         f"{batch * rows * outputs} elements")  # fmt: skip
    lead = [batch] if batch > 1 else []
    one, two = _shaped(first, [*lead, rows, depth]), _shaped(second, [*lead, depth, outputs])
    return Shapes((one, two, *reads[2:]), (_shaped(writes[0], [*lead, rows, outputs]),), {})


def _dimensions(each: Any, first: Value) -> list[list[int]]:
    """Return contracted, then batch dimensions of both operands; those of a library's call from its configuration."""
    numbers = each.dot_dimension_numbers
    if each.opcode == "dot":
        return [list(getattr(numbers, f"{name}_dimensions")) for name in LETTERS]
    text = each.backend_config.decode(errors="replace")
    place = text.find('"dot_dimension_numbers":')
    try:
        record = json.JSONDecoder().raw_decode(text[place:].partition(":")[2])[0] if place >= 0 else {}
        found = [[int(one) for one in record.get(f"{name}_dimensions", [])] for name in LETTERS]
    except (ValueError, TypeError, AttributeError, RecursionError):
        found = []
    return found if found and found[0] else [[len(first.shape) - 1], [0], [], []]


def _within(each: Any, value: Value, places: Sequence[int]) -> None:
    if any(not 0 <= place < len(value.shape) for place in places):
        raise ValueError(f"instruction {each.name[:40]!r} names dimensions {list(places)} of {list(value.shape)}")


def _convolution(each: Any, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> Shapes:
    """Return the tensors of a convolution in NCHW and OIHW, of a gradient those of the convolution it amounts to."""
    # a gradient of weights has a window larger than its result, one of the input of a strided convolution has holes
    numbers, window = each.convolution_dimension_numbers, each.window.dimensions
    source = [numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions]
    kernel = [
        numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension,
        *numbers.kernel_spatial_dimensions,
    ]  # fmt: skip
    result = [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.input_spatial_dimensions]
    rest = [place for place in range(len(writes[0].shape)) if place not in result[:2]]
    result = [*result[:2], *rest]
    first, second, out = reads[0], reads[1], writes[0]
    if "BackwardFilter" in each.custom_call_target:  # labels are those of the forward convolution
        second, out = writes[0], reads[1]
    elif "BackwardInput" in each.custom_call_target:
        first, out = writes[0], reads[0]
    for value, places in ((first, source), (second, kernel), (out, result)):
        _within(each, value, places)
        if len(places) != len(value.shape):
            raise ValueError(f"instruction {each.name[:40]!r} labels {len(places)} dimensions of {list(value.shape)}")
    shapes = [[value.shape[place] for place in places]
              for value, places in ((first, source), (second, kernel), (out, result))]  # fmt: skip
    if not all(math.prod(shape) for shape in shapes):
        raise ValueError(f"instruction {each.name[:40]!r} is a convolution of an array without elements")
    is_input_image = len(window) == 2 and first is reads[0] and first.dtype.is_floating_point
    images = None
    if is_input_image and shapes[0][1] <= 4:
        images = (shapes[0][0], round(math.sqrt(shapes[0][2] * shapes[0][3])))
    groups = max(each.feature_group_count, 1) * max(each.batch_group_count, 1)
    (samples, channels, *_), (outputs, inputs, *_), _ = shapes
    if math.prod(shapes[1][2:]) > math.prod(shapes[2][2:]):  # the gradient of weights: its window is a result's image
        shapes = [[channels, samples, *shapes[0][2:]], [outputs, max(samples // groups, 1), *shapes[2][2:]],
                  [channels, outputs, *shapes[1][2:]]]  # fmt: skip
    elif any(one.base_dilation > 1 for one in window):
        shapes = [shapes[2], [inputs * groups, max(outputs // groups, 1), *shapes[1][2:]], shapes[0]]
    stride = window[0].stride if len(window) else 1
    made = [_shaped(value, shape) for value, shape in zip((reads[0], reads[1], writes[0]), shapes, strict=True)]
    return Shapes((made[0], made[1], *reads[2:]), (made[2],), {3: stride}, images)
