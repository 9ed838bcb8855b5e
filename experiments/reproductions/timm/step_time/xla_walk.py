"""Walk through an HLO module, which collects groups of operators with their repeats, and facts about the inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from experiments.reproductions.graphnet.reader import Operation, Value
from experiments.reproductions.timm.step_time.steps import in_order
from experiments.reproductions.timm.step_time.xla_operations import VIEWS, kind_of, shapes_of
from gst.data.columns import ELEMENT_TYPES

DTYPES = {
    ELEMENT_TYPES[name]: dtype for name, dtype in (
        ("pred", torch.bool), ("s8", torch.int8), ("s16", torch.int16), ("s32", torch.int32), ("s64", torch.int64),
        ("u8", torch.uint8), ("u16", torch.int16), ("u32", torch.int32), ("u64", torch.int64), ("f16", torch.float16),
        ("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16), ("c64", torch.complex64),
        ("c128", torch.complex128),
    )
}  # fmt: skip
"""Types of torch by number of element type; others (f8e4m3fn, s4) have one byte."""
TRIPS = re.compile(rb"known_trip_count\W+n\W+(\d{1,15})")
MOST_DEPTH = 100  # of calls within calls
MOST_INSTRUCTIONS = 200_000  # of a program, those of a computation at each of its calls
MOST_ELEMENTS = 1 << 50  # of an array
SAME_ARRAY = VIEWS | {"convert", "copy", "transpose", "get-tuple-element"}

Result: TypeAlias = Value | tuple[Any, ...]
"""An array, or a tuple of results."""


@dataclass
class Walk:
    """Walk through a module, callees where they are called, that collects operators; `weights` number its inputs."""

    module: Any
    is_compiled: bool
    weights: frozenset[int] = frozenset()
    groups: list[list[Operation]] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)
    inputs: dict[int, Value] = field(default_factory=dict)
    origin: dict[int, int] = field(default_factory=dict)  # number of the input that a value is, in another form
    first: set[int] = field(default_factory=set)  # inputs that are the first operand of a product
    first_of_inputs: set[int] = field(default_factory=set)  # of these, those whose second operand is an input too
    second: set[int] = field(default_factory=set)  # inputs that are the second, or looked up in
    images: dict[int, tuple[int, int]] = field(default_factory=dict)  # batch and side of inputs of convolutions
    unknown_loops: int = 0
    count: int = 0
    steps: int = 0
    depth: int = 0

    def run(self, entry: Any) -> Result:
        """Go through the module from its entry and return the result of the entry."""
        self.computations = {each.id: each for each in self.module.computations}
        return self.computation(entry, None, 1, self.region(1))

    def region(self, repeats: int) -> list[Operation]:
        self.groups.append([])
        self.repeats.append(repeats)
        return self.groups[-1]

    def value(self, shape: Any, is_parameter: bool, like: Value | None = None) -> Value:
        self.count += 1
        sizes = tuple(shape.dimensions)
        if any(size < 0 for size in sizes) or math.prod(sizes) > MOST_ELEMENTS:
            raise ValueError(f"an array of {list(sizes[:6])}; want sizes from 0, and at most {MOST_ELEMENTS} elements")
        dtype, storage = DTYPES.get(shape.element_type, torch.uint8), self.count if like is None else like.storage
        return Value(self.count, storage, sizes, in_order(sizes), dtype, is_parameter)

    def result(self, shape: Any, is_parameter: bool) -> Result:
        if shape.tuple_shapes:
            return tuple(self.result(each, is_parameter) for each in shape.tuple_shapes)
        return self.value(shape, is_parameter)

    def computation(
        self, computation: Any, arguments: Sequence[Result] | None, repeats: int, group: list[Operation] | None
    ) -> Result:
        """Return the result of the root. Operators go to `group`; without it each instruction has its own group."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise ValueError(f"computation {computation.name[:40]!r} is within more than {MOST_DEPTH} calls")
        results: dict[int, Result] = {}
        for each in computation.instructions:
            self.steps += 1
            if self.steps > MOST_INSTRUCTIONS:
                raise ValueError(f"it has more than {MOST_INSTRUCTIONS} instructions, each call counted")
            try:
                results[each.id] = self.instruction(each, results, arguments, repeats, group)
            except (LookupError, TypeError, AttributeError) as error:
                problem = f"instruction {each.name[:40]!r} ({each.opcode[:40]}) contradicts its operands"
                raise ValueError(problem) from error
        self.depth -= 1
        if computation.root_id not in results:
            raise ValueError(f"computation {computation.name[:40]!r} lacks its root; the file is damaged")
        return results[computation.root_id]

    def instruction(
        self, each: Any, results: dict[int, Result], arguments: Sequence[Result] | None, repeats: int,
        group: list[Operation] | None,
    ) -> Result:  # fmt: skip
        operands = [results[number] for number in each.operand_ids]
        called = [self.computations[number] for number in each.called_computation_ids]
        match each.opcode:
            case "parameter":
                return self.parameter(each) if arguments is None else arguments[each.parameter_number]
            case "constant":
                return self.result(each.shape, True)
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                return operands[0][each.tuple_index]
            case "async-done" | "async-update" | "opt-barrier" | "add-dependency" | "domain":
                return operands[0]
            case "fusion":
                inside = self.region(repeats)
                return self.computation(called[0], operands, repeats, inside)
            case "call" | "async-start":
                return self.computation(called[0], operands, repeats, group)
            case "while":
                return self.loop(each, called, operands, repeats)
            case "conditional":
                return self.branches(each, called, operands, repeats)
        if each.opcode.endswith("-done") and (moved := _moved(each.shape, operands[0])) is not None:
            return moved  # its start has done the work
        return self.operator(each, operands, group if group is not None else self.region(repeats), repeats)

    def parameter(self, each: Any) -> Result:
        number = each.parameter_number
        small = len(each.shape.dimensions) < 2 and each.shape.element_type in (10, 11, 12, 16)
        result = self.result(each.shape, number in self.weights or small)
        if isinstance(result, Value):
            self.inputs[number], self.origin[result.name] = result, number
        return result

    def loop(self, each: Any, called: Sequence[Any], operands: list[Result], repeats: int) -> Result:
        body = next((one for one in called if _root(one).shape.element_type != ELEMENT_TYPES["pred"]), called[0])
        trips = _trips(each, called)
        self.unknown_loops += trips is None
        times = repeats * (1 if trips is None else trips)
        if times:
            self.computation(body, operands, times, None if self.is_compiled else self.region(times))
            if not self.is_compiled:
                self.region(repeats)  # what follows the loop
        return self.result(each.shape, False)

    def branches(self, each: Any, called: Sequence[Any], operands: list[Result], repeats: int) -> Result:
        """Walk the branch with the most operators."""
        before = len(self.groups)
        longest = max(called, key=lambda one: len(one.instructions))
        operand = operands[1 + called.index(longest)]
        self.computation(longest, [operand], repeats, None if self.is_compiled else self.region(repeats))
        if len(self.groups) > before and not self.is_compiled:
            self.region(repeats)
        return self.result(each.shape, False)

    def operator(self, each: Any, operands: list[Result], group: list[Operation], repeats: int) -> Result:
        if not self.is_compiled:
            group = self.groups[-1] if self.repeats[-1] == repeats else group
        reads = tuple(value for operand in operands for value in leaves(operand))
        is_view = each.opcode in VIEWS or (not self.is_compiled and each.opcode in ("transpose", "slice", "copy"))
        is_parameter = bool(reads) and all(value.is_parameter for value in reads)
        if is_view and reads and not each.shape.tuple_shapes:
            result: Result = self.value(each.shape, is_parameter, reads[0])
        else:
            result = self.result(each.shape, is_parameter)
        writes = tuple(leaves(result))
        if each.opcode in SAME_ARRAY and reads and reads[0].name in self.origin and isinstance(result, Value):
            self.origin[result.name] = self.origin[reads[0].name]
        kind = kind_of(each, reads, writes)
        shapes = shapes_of(each, kind, reads, writes)
        if shapes.images is not None and reads[0].name in self.origin:
            self.images[self.origin[reads[0].name]] = shapes.images
        self.note(kind, reads)
        if writes:
            group.append(Operation(kind, shapes.reads, shapes.writes, shapes.constants, is_view))
        return result

    def note(self, kind: str, reads: Sequence[Value]) -> None:
        """Record the inputs that are first or second operands of a product, or tables of a look-up."""
        first, second = ([self.origin.get(value.name) for value in reads[:2]] + [None, None])[:2]
        if kind == "embedding" and first is not None and reads[0].dtype.is_floating_point:
            self.second.add(first)
        if kind in ("linear", "matmul", "conv1d", "conv2d", "conv3d"):
            if first is not None:
                self.first.add(first)
                self.first_of_inputs |= set() if second is None else {first}
            if second is not None:
                self.second.add(second)

    def likely_weights(self) -> frozenset[int]:
        """Return the inputs that are likely weights.

        Weights are second operands, as in `x @ w`, or first ones with a computed second one. Data are first operands
        with a weight, and second ones in its gradient.
        """
        return frozenset((self.second - self.first) | (self.first - self.first_of_inputs))


def leaves(result: Result) -> list[Value]:
    """Return the arrays of a result, in order."""
    return [result] if isinstance(result, Value) else [value for part in result for value in leaves(part)]


def _moved(shape: Any, started: Result) -> Result | None:
    """Return the part of what a start returned that its done returns: the last one of these sizes, None without any."""
    wanted = _sizes(shape)
    parts = [started, *(started if isinstance(started, tuple) and not isinstance(started, Value) else ())]
    return next((part for part in reversed(parts) if [each.shape for each in leaves(part)] == wanted), None)


def _sizes(shape: Any) -> list[tuple[int, ...]]:
    """Return the sizes of the arrays of a shape, in order."""
    if shape.element_type == ELEMENT_TYPES["tuple"]:
        return [sizes for each in shape.tuple_shapes for sizes in _sizes(each)]
    return [tuple(shape.dimensions)]


def _root(computation: Any) -> Any:
    for each in computation.instructions:
        if each.id == computation.root_id:
            return each
    raise ValueError(f"computation {computation.name[:40]!r} lacks its root; the file is damaged")


def _trips(each: Any, called: Sequence[Any]) -> int | None:
    """Return the trip count of a loop that the compiler noted, else the limit of its condition; None without either."""
    if noted := TRIPS.search(each.backend_config):
        return int(noted[1])
    condition = next((one for one in called if _root(one).shape.element_type == ELEMENT_TYPES["pred"]), None)
    if condition is None or _root(condition).comparison_direction not in ("LT", "LE"):
        return None
    by_id = {one.id: one for one in condition.instructions}
    limit = by_id.get(list(_root(condition).operand_ids)[-1])
    numbers = [] if limit is None else [*limit.literal.s32s, *limit.literal.s64s]
    return None if len(numbers) != 1 else max(numbers[0] + (_root(condition).comparison_direction == "LE"), 0)
