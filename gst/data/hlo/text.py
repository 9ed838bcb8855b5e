"""HLO text, as XLA prints it, parsed into the protobuf messages of `gst.data.hlo.messages`."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from typing import Any

from gst.data.columns import ELEMENT_TYPES, opcode_number
from gst.data.hlo.messages import HloComputation, HloInstruction, HloModule
from gst.data.hlo.tokens import END, Tokens

DEEPEST_TUPLE = 32
_OTHER_TYPE = re.compile(r"[sufc]\d\w*")  # of elements: f8e4m3fn, s4, ...
_NUMBER_OF_OTHER_TYPE = -1
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_INTEGERS = frozenset(ELEMENT_TYPES[name] for name in ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"))
_SHORTHAND = re.compile(r"(.+)-(start|update|done)")
_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")
_DIM_LABELS = re.compile(r"([bf?\d]+)_([io?\d]+)->([bf?\d]+)")
_WINDOW = {
    "size": "size", "stride": "stride", "lhs_dilate": "base_dilation", "rhs_dilate": "window_dilation",
    "rhs_reversal": "window_reversal",
}  # fmt: skip
CALLEES = frozenset({
    "to_apply", "calls", "called_computations", "branch_computations", "true_computation", "false_computation",
    "condition", "body", "select", "scatter",
})  # fmt: skip
"""Attributes that name the computations that an instruction calls."""
_SECTIONS = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_GROUPED = ("convolution", "custom-call")  # they have one group of features and of batches unless more are printed

Scope = dict[str, int]
"""Ids by name: of the instructions of a computation, or of the computations of a module."""

Attribute = Callable[[Any, list[str]], None]
"""Writes the value of an attribute, as tokens without the outer brackets, into an `HloInstruction`; raises ValueError
or KeyError if it is not as XLA prints it."""


def parse_module(text: str) -> Any:
    """Parse a module into an `HloModule` with the fields of `gst.data.hlo.messages`; ids count in text order.

    Literals other than whole numbers, metadata, shardings and unknown attributes are skipped. A shape without a layout
    has the default one, with the last dimension innermost.

    Examples:
        >>> lines = ["HloModule m", "ENTRY e {", "x = f32[3] parameter(0)", "ROOT y = f32[3] negate(x)", "}"]
        >>> module = parse_module("\\n".join(lines))
        >>> [(each.name, each.opcode, list(each.operand_ids)) for each in module.computations[0].instructions]
        [('x', 'parameter', []), ('y', 'negate', [0])]

    Raises:
        ValueError: the text is not as XLA prints it; the message names the line.
    """
    tokens, module = Tokens(text), HloModule()
    tokens.skip_lines()
    tokens.expect("HloModule")
    module.name = tokens.word()
    tokens.skip_line()
    computations: Scope = {}
    while True:
        tokens.skip_lines()
        if tokens.token == END:
            return module
        if tokens.token in _SECTIONS or tokens.token.isdigit():
            tokens.skip_line()
        else:
            _computation(tokens, module, computations)


def _computation(tokens: Tokens, module: Any, computations: Scope) -> None:
    is_entry = tokens.token == "ENTRY"
    if is_entry:
        tokens.take()
    computation = HloComputation(name=tokens.word())
    if tokens.skip_line() != "{":
        raise tokens.error(f"got {computation.name[:40]!r}, want a computation and {{ at the end of its line")
    instructions: Scope = {}
    rooted = False
    tokens.skip_lines()
    while tokens.token != "}":
        is_root = tokens.token == "ROOT"
        if is_root:
            tokens.take()
        instruction = computation.instructions.add(name=tokens.word(), id=len(instructions))
        _instruction(tokens, instruction, instructions, module, computations)
        if is_root or not rooted:  # the last one, unless one is marked
            computation.root_id = instruction.id
        rooted |= is_root
        _declare(tokens, instructions, instruction.name, instruction.id)
        tokens.skip_lines()
    tokens.skip_line()
    computation.id = len(module.computations)
    module.computations.append(computation)
    if is_entry or computation.id == 0:
        module.entry_computation_id = computation.id
    _declare(tokens, computations, computation.name, computation.id)


def _instruction(tokens: Tokens, instruction: Any, instructions: Scope, module: Any, computations: Scope) -> None:
    tokens.expect("=")
    _shape(tokens, instruction.shape)
    opcode, stage = _opcode_and_stage(tokens.word())
    instruction.opcode = f"async-{stage}" if stage in ("update", "done") else opcode
    if instruction.opcode in _GROUPED:
        instruction.feature_group_count = instruction.batch_group_count = 1
    if tokens.token != "(":
        raise tokens.error(f"got {tokens.shown()}, want the operands of {instruction.name[:40]!r}")
    _operands(tokens, instruction, instructions)
    while tokens.token == ",":
        tokens.take()
        _attribute(tokens, instruction, computations)
    if tokens.token not in ("\n", "}"):
        raise tokens.error(f"{instruction.name[:40]!r} goes on with {tokens.shown()}")
    if stage == "start":
        module.computations.append(_wrapped(instruction, len(module.computations)))


def _operands(tokens: Tokens, instruction: Any, instructions: Scope) -> None:
    is_scalar = not instruction.shape.dimensions and not instruction.shape.tuple_shapes
    operands = tokens.group(keep=instruction.opcode != "constant" or is_scalar)
    if instruction.opcode == "constant":
        if len(operands) == 1 and instruction.shape.element_type in _INTEGERS and _INTEGER.fullmatch(operands[0]):
            instruction.literal.s64s.append(int(operands[0]))
        return
    if instruction.opcode == "parameter":
        instruction.parameter_number = _size(tokens, "".join(operands))
        return
    for name in _last_of_each(operands):
        instruction.operand_ids.append(_look_up(tokens, instructions, name, "instruction of this computation"))


def _last_of_each(tokens: list[str]) -> list[str]:
    """Return the last token of each part between commas: an operand may follow its shape."""
    names, depth = [], 0
    for token, following in pairwise([*tokens, ","]):
        depth += (token in "({[") - (token in ")}]")
        if following == "," and depth == 0 and token != ",":
            names.append(token)
    return names


def _attribute(tokens: Tokens, instruction: Any, computations: Scope) -> None:
    key = tokens.word()
    tokens.expect("=")
    value = tokens.value(keep=key in CALLEES or key in ATTRIBUTES)
    if key in CALLEES:
        for name in value:
            if name != ",":
                callee = _look_up(tokens, computations, name, "computation")
                instruction.called_computation_ids.append(callee)
    elif key in ATTRIBUTES:
        try:
            ATTRIBUTES[key](instruction, value)
        except (ValueError, KeyError):
            raise tokens.error(f"the {key[:40]} of {instruction.name[:40]!r} cannot be read") from None


def _look_up(tokens: Tokens, scope: Scope, name: str, kind: str) -> int:
    name = name.removeprefix("%")
    if name not in scope:
        raise tokens.error(f"{name[:40]!r} is no earlier {kind}")
    return scope[name]


def _declare(tokens: Tokens, scope: Scope, name: str, number: int) -> None:
    if name in scope:
        raise tokens.error(f"{name[:40]!r} is declared twice")
    scope[name] = number


def _opcode_and_stage(printed: str) -> tuple[str, str]:
    """Split the shorthand `slice-start` into `slice`, `start`; other opcodes, such as `copy-start`, have no stage."""
    match = _SHORTHAND.fullmatch(printed)
    if match and not opcode_number(printed) and opcode_number(match[1]):
        return match[1], match[2]
    return printed, ""


def _wrapped(instruction: Any, number: int) -> Any:
    """Make of `instruction`, a start in shorthand, an `async-start`; return the computation `number` that it calls."""
    if len(instruction.shape.tuple_shapes) < 2:
        raise ValueError(f"{instruction.name!r} has no tuple of operands and result as its shape")
    operands, result, *_ = instruction.shape.tuple_shapes
    computation = HloComputation(name=f"{instruction.name}.wrapped", id=number, root_id=len(operands.tuple_shapes))
    for place, shape in enumerate(operands.tuple_shapes):
        computation.instructions.add(opcode="parameter", id=place, parameter_number=place, shape=shape)
    inner = computation.instructions.add()
    inner.CopyFrom(instruction)
    inner.id = computation.root_id
    inner.shape.CopyFrom(result)
    inner.operand_ids[:] = range(computation.root_id)
    instruction.CopyFrom(
        HloInstruction(
            name=instruction.name, opcode="async-start", shape=instruction.shape, id=instruction.id,
            operand_ids=instruction.operand_ids, called_computation_ids=[number],
        )
    )  # fmt: skip
    return computation


def _shape(tokens: Tokens, shape: Any, depth: int = 0) -> None:
    """Parse `f32[8,<=4]{1,0:T(8,128)}` (`<=` bounds a dynamic size), the buffer of such an array, `b(f32[8]{0})`, which
    is read as the array, or a tuple of shapes, `(f32[8]{0}, token[])`."""
    if tokens.token == "(":
        shape.element_type = ELEMENT_TYPES["tuple"]
        if depth == DEEPEST_TUPLE:
            raise tokens.error(f"more than {DEEPEST_TUPLE} tuples within each other")
        tokens.take()
        while tokens.token != ")":
            _shape(tokens, shape.tuple_shapes.add(), depth + 1)
            if tokens.token != ")":
                tokens.expect(",")
        tokens.take()
        return
    name = tokens.word()
    if name == "b" and tokens.token == "(":
        tokens.take()
        _array(tokens, shape, tokens.word())
        tokens.expect(")")
    else:
        _array(tokens, shape, name)


def _array(tokens: Tokens, shape: Any, name: str) -> None:
    """Parse what follows the name of a type of elements: the sizes and the layout of an array."""
    name = {"opaque": "opaque_type"}.get(name, name)
    if name not in ELEMENT_TYPES and not _OTHER_TYPE.fullmatch(name):
        raise tokens.error(f"{name[:40]!r} is no type of elements")
    shape.element_type = ELEMENT_TYPES.get(name, _NUMBER_OF_OTHER_TYPE)
    if tokens.token != "[":
        raise tokens.error(f"got {tokens.shown()}, want the sizes of {name}[...]")
    sizes = "".join(tokens.group()).replace("<=", "")
    if "?" in sizes:
        raise ValueError(f"line {tokens.line}: {name}[{sizes[:40]}] has a size without a bound; give all sizes to XLA")
    shape.dimensions.extend(_size(tokens, size) for size in sizes.split(",") if size)
    _layout(tokens, shape)


def _layout(tokens: Tokens, shape: Any) -> None:
    """Parse `{1,0:T(8,128)}`: the order from minor to major, then tiles and memory, which no feature needs."""
    rank = len(shape.dimensions)
    order = list(range(rank - 1, -1, -1))
    if tokens.token == "{":
        text = "".join(tokens.group()).partition(":")[0]
        order = [_size(tokens, place) for place in text.split(",") if place]
        if sorted(order) != list(range(rank)):
            raise tokens.error(f"the layout {{{text[:40]}}} does not order {rank} dimensions")
    shape.layout.minor_to_major.extend(order)


def _size(tokens: Tokens, text: str) -> int:
    """Parse a whole number below 10**18."""
    if not _NUMBER.fullmatch(text):
        raise tokens.error(f"{text[:40]!r} is no size or place (those must be known, and less than 10**18)")
    return int(text)


def _numbers(tokens: list[str]) -> list[int]:
    return [int(number) for number in "".join(tokens).split(",") if number]


def _list(path: str) -> Attribute:
    """Return a parser of a list of numbers, given the path of its field."""
    return lambda instruction, tokens: attrgetter(path)(instruction).extend(_numbers(tokens))


def _number(field: str) -> Attribute:
    """Return a parser of an attribute that is one number."""
    return lambda instruction, tokens: setattr(instruction, field, int("".join(tokens)))


def _text(field: str) -> Attribute:
    """Return a parser of an attribute that is a text, with or without quotes."""
    return lambda instruction, tokens: setattr(instruction, field, "".join(tokens).strip('"'))


def _backend_config(instruction: Any, tokens: list[str]) -> None:
    """Parse JSON, with or without quotes around it."""
    instruction.backend_config = "".join(tokens).strip('"').replace('\\"', '"').encode()


def _is_stable(instruction: Any, tokens: list[str]) -> None:
    instruction.is_stable = tokens == ["true"]


def _slice(instruction: Any, tokens: list[str]) -> None:
    """Parse `[0:10:2],[3:4]`: start, limit and stride, 1 by default."""
    text = "".join(tokens)
    for bounds in text.split(",") if text else []:
        if not (match := _SLICE.fullmatch(bounds)):
            raise ValueError(bounds)
        start, limit, stride = match.groups("1")
        instruction.slice_dimensions.add(start=int(start), limit=int(limit), stride=int(stride))


def _padding(instruction: Any, tokens: list[str]) -> None:
    """Parse `1_2x0_3_1`: low and high edge, and interior padding, which no feature needs."""
    text = "".join(tokens)
    for edges in text.split("x") if text else []:
        low, high, *_ = map(int, edges.split("_"))
        instruction.padding_config.dimensions.add(edge_padding_low=low, edge_padding_high=high)


def _window(instruction: Any, tokens: list[str]) -> None:
    """Parse `size = 3 x 3 stride = 2 x 2 pad = 0_1 x 0_1`; strides and dilations are 1 and padding is 0 by default."""
    numbers = {name: value.split("x") for name, value in zip(tokens[::3], tokens[2::3], strict=True)}
    window = instruction.window.dimensions
    for size in numbers.get("size", []):
        window.add(size=int(size), stride=1, window_dilation=1, base_dilation=1)
    for name, values in numbers.items():
        for dimension, value in zip(window, values, strict=True):
            if name == "pad":
                dimension.padding_low, dimension.padding_high = map(int, value.split("_"))
            else:
                field = _WINDOW[name]
                setattr(dimension, field, value != "0" if field == "window_reversal" else int(value))


def _dim_labels(instruction: Any, tokens: list[str]) -> None:
    """Parse `b01f_01io->b01f`: places of batch, feature and spatial dimensions in input, kernel and output."""
    match = _DIM_LABELS.fullmatch("".join(tokens))
    if not match:
        raise ValueError("".join(tokens))
    source, kernel, output = match.groups()
    numbers = instruction.convolution_dimension_numbers
    numbers.input_batch_dimension, numbers.input_feature_dimension = source.index("b"), source.index("f")
    numbers.kernel_input_feature_dimension = kernel.index("i")
    numbers.kernel_output_feature_dimension = kernel.index("o")
    numbers.output_batch_dimension, numbers.output_feature_dimension = output.index("b"), output.index("f")
    for spatial in range(sum(label.isdigit() for label in source)):
        numbers.input_spatial_dimensions.append(source.index(str(spatial)))
        numbers.kernel_spatial_dimensions.append(kernel.index(str(spatial)))


ATTRIBUTES: dict[str, Attribute] = {
    "dimensions": _list("dimensions"),
    "iota_dimension": _list("dimensions"),
    "inferred_dimension": _list("dimensions"),
    "dynamic_slice_sizes": _list("dynamic_slice_sizes"),
    "feature_group_count": _number("feature_group_count"),
    "batch_group_count": _number("batch_group_count"),
    "is_stable": _is_stable,
    "index": _number("tuple_index"),
    "lhs_contracting_dims": _list("dot_dimension_numbers.lhs_contracting_dimensions"),
    "rhs_contracting_dims": _list("dot_dimension_numbers.rhs_contracting_dimensions"),
    "lhs_batch_dims": _list("dot_dimension_numbers.lhs_batch_dimensions"),
    "rhs_batch_dims": _list("dot_dimension_numbers.rhs_batch_dimensions"),
    "direction": _text("comparison_direction"),
    "custom_call_target": _text("custom_call_target"),
    "backend_config": _backend_config,
    "slice": _slice,
    "padding": _padding,
    "window": _window,
    "dim_labels": _dim_labels,
}
"""Parsers of the attributes that are read."""
