"""Captured programs (`gst.programs`) as operators that kernels are made of: ATen calls by the names of FX sources."""

from __future__ import annotations

import math
from typing import Any

from experiments.reproductions.graphnet.reader import Operation, Value
from experiments.reproductions.timm.step_time.steps import cast_kind, in_order
from gst.programs import Program
from gst.programs.operation import GETITEM, Reference, form_of_target, references

KINDS = {
    "convolution": "conv2d", "mm": "linear", "addmm": "linear", "baddbmm": "matmul", "bmm": "matmul",
    "native_layer_norm": "layer_norm", "native_layer_norm_backward": "layer_norm",
    "native_group_norm": "group_norm", "native_group_norm_backward": "group_norm",
    "native_batch_norm": "batch_norm", "native_batch_norm_backward": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm", "_native_batch_norm_legit_no_training": "batch_norm",
    "_softmax": "softmax", "_log_softmax": "softmax", "_softmax_backward_data": "softmax",
    "_log_softmax_backward_data": "softmax", "avg_pool2d_backward": "avg_pool2d",
    "max_pool2d_with_indices": "max_pool2d", "max_pool2d_with_indices_backward": "max_pool2d",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "copy": "clone", "constant_pad_nd": "pad", "upsample_nearest2d": "interpolate", "slice_scatter": "setitem",
    "select_scatter": "setitem", "index_put": "setitem",
}  # fmt: skip
"""Kind of an operation by the name of its operator, where these differ."""
ADDED_FIRST = frozenset({"addmm", "baddbmm"})
"""Operators whose first argument is added to the product of the two that follow."""


def operators(program: Program) -> list[Operation]:
    """Return the operators of a captured program, in order, for `step_time.kernels.kernels_of`.

    Gradients of a convolution are two convolutions, those of attention 2.5 times its products. Tensors are assumed to
    be contiguous.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.Linear(2, 3), (torch.zeros(5, 2),))
        >>> [(each.kind, each.writes[0].shape) for each in operators(program) if not each.is_view]
        [('linear', (5, 3))]
    """
    return [each for node in operators_by_node(program) for each in node]


def operators_by_node(program: Program) -> list[list[Operation]]:
    """Return the operators of each node of a captured program; none for inputs, constants and items of a result."""
    made: list[tuple[Value, ...]] = []
    result: list[list[Operation]] = [[] for _ in program.operations]
    count = 0
    for node, operation in enumerate(program.operations):
        read = references(operation.args, tuple(operation.kwargs.values()))  # what is read twice is there twice
        reads = tuple(value for each in read for value in made[each][:1])
        if operation.kind != "operation":
            is_parameter = operation.kind == "constant" or int(program.parameter_home[node]) == node
        else:
            is_parameter = bool(reads) and all(value.is_parameter for value in reads)
        name = "" if operation.target is None else form_of_target(operation.target).split("::")[-1].partition(".")[0]
        is_view = operation.is_view or name == "_unsafe_view"
        if name == GETITEM:
            source, item = operation.args[0].node, operation.args[1]
            made.append((made[source][_position(program.operations[source].args, len(made[source]), item)],))
            continue
        writes = []
        for shape, dtype in zip(operation.shapes, operation.dtypes, strict=True):
            storage = reads[0].storage if is_view and reads else count
            writes.append(Value(count, storage, shape, in_order(shape), dtype, is_parameter))
            count += 1
        made.append(tuple(writes))
        if operation.kind == "operation" and writes:
            result[node] += _operators(name, operation.args, reads, tuple(writes), is_view, made)
    return result


def _operators(
    name: str, arguments: tuple[Any, ...], reads: tuple[Value, ...], writes: tuple[Value, ...], is_view: bool,
    made: list[tuple[Value, ...]],
) -> list[Operation]:  # fmt: skip
    """Return the operators of one call: itself, or the products of a gradient."""
    constants: dict[int | str, Any] = {
        place: each for place, each in enumerate(arguments) if not any(True for _ in references(each))
    }
    if name == "convolution_backward":
        gradient, first, weight = (made[each.node][0] for each in arguments[:3] if isinstance(each, Reference))
        if arguments[7]:  # transposed: it maps the gradient as a convolution maps its input
            gradient, first = first, gradient
        products = [write for write in writes if len(write.shape) > 1]
        stride: dict[int | str, Any] = {3: arguments[4]}
        return [
            Operation("conv2d", (first, weight), (write._replace(shape=gradient.shape),), stride, False)
            for write in products
        ]
    if name.endswith("attention_for_cpu_backward"):
        query = made[arguments[1].node][0]
        half = query._replace(shape=(*query.shape[:-1], max(1, query.shape[-1] // 2)))
        rest = [made[each.node][0] for each in arguments[2:4]]
        kind = "scaled_dot_product_attention"
        return [Operation(kind, (each, *rest), (writes[0],), {}, False) for each in (query, query, half)]
    if name in ADDED_FIRST:
        reads = (*reads[1:], reads[0]) if len(reads) == 3 else reads
    if name == "embedding":  # it reads the rows that it looks up
        reads = (reads[0]._replace(shape=writes[0].shape), *reads[1:])
    if "conv" in name and len(reads) > 1 and arguments[6:7] == (True,):  # transposed: the products of its gradient
        writes = (writes[0]._replace(shape=reads[0].shape),)
        reads = (reads[0]._replace(shape=(reads[0].shape[0], reads[1].shape[1], *writes[0].shape[2:])), *reads[1:])
    kind = cast_kind(writes[0].dtype) if name == "_to_copy" else KINDS.get(name, name)
    kept = writes if kind not in ("layer_norm", "group_norm", "batch_norm") else writes[:1]
    return [Operation(kind, reads, kept, constants, is_view)]


def _position(arguments: tuple[Any, ...], count: int, item: int) -> int:
    """Return the position of item `item` among the `count` results of a call, which omits unrequested gradients."""
    wanted = arguments[-1] if arguments and isinstance(arguments[-1], list | tuple) else ()
    if count == len(wanted) or not all(isinstance(each, bool) for each in wanted):
        return item
    return sum(wanted[:item]) if sum(wanted) == count else item


def batch_of(program: Program) -> tuple[int, int]:
    """Return the batch of a step, the first size of its largest input, and the side of its images, 0 without any."""
    inputs = [
        operation for node, operation in enumerate(program.operations)
        if operation.kind == "input" and int(program.parameter_home[node]) != node and operation.shapes[0]
    ]  # fmt: skip
    if not inputs:
        return 1, 0
    largest = max(inputs, key=lambda each: each.output_bytes)
    is_image = len(largest.shapes[0]) == 4 and largest.dtypes[0].is_floating_point
    return int(largest.shapes[0][0]), round(math.sqrt(math.prod(largest.shapes[0][2:]))) if is_image else 0


def is_training(program: Program) -> bool:
    """True if the program computes gradients."""
    return any(
        "backward" in str(each.target) or (each.kind == "operation" and int(home) >= 0 and not each.is_view)
        for each, home in zip(program.operations, program.parameter_home, strict=True)
    )


def parameter_bytes(program: Program) -> float:
    """Sum the bytes of the parameters and constants that a program reads, whole also where rows are looked up."""
    read = {each for operation in program.operations for each in operation.producers}
    homes = program.parameter_home
    return math.fsum(
        operation.output_bytes for node, operation in enumerate(program.operations)
        if node in read and (operation.kind == "constant" or (operation.kind == "input" and int(homes[node]) == node))
    )  # fmt: skip


def peak_memory(operations: list[Operation]) -> tuple[float, float]:
    """Return the bytes of parameters that are read, and the peak of other values, each freed after its last use."""
    last: dict[int, int] = {}
    size: dict[int, float] = {}
    parameters: dict[int, float] = {}
    for place, operation in enumerate(operations):
        for value in (*operation.reads, *operation.writes):
            held = parameters if value.is_parameter else size
            held[value.storage] = max(held.get(value.storage, 0.0), float(value.numel * value.dtype.itemsize))
            last[value.storage] = place
    now = most = 0.0
    alive: set[int] = set()
    ends: dict[int, list[int]] = {}
    for storage, place in last.items():
        ends.setdefault(place, []).append(storage)
    for place, operation in enumerate(operations):
        for value in (*operation.reads, *operation.writes):
            if value.storage in size and value.storage not in alive:
                alive.add(value.storage)
                now += size[value.storage]
        most = max(most, now)
        now -= sum(size[storage] for storage in ends.get(place, ()) if storage in size)
    return math.fsum(parameters.values()), most
