"""HLO text, as XLA prints it, to the messages that its protobuf has."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gst.data.hlo.attributes import ATTRIBUTES, CALLEES
from gst.data.hlo.messages import HloComputation, HloModule
from gst.data.hlo.shapes import read_number, read_shape
from gst.data.hlo.shorthand import opcode_and_stage, wrapped
from gst.data.hlo.tokens import END, Tokens

_SECTIONS = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_GROUPED = ("convolution", "custom-call")  # they have one group of features and of batches unless more are printed

Scope = dict[str, int]
"""Names and what they stand for: ids of instructions in a computation, ids of computations in a module."""


def parse_module(text: str) -> Any:
    """An `HloModule` with the fields that the features of a graph need. Ids are numbers in the order of the text.

    What a feature does not tell of is passed over: literals, metadata, `backend_config`, shardings, and attributes
    that XLA may be given later. A shape without a layout has the usual one, with the last dimension innermost.

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
    if tokens.token == "ENTRY":
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
    _declare(tokens, computations, computation.name, computation.id)


def _instruction(tokens: Tokens, instruction: Any, instructions: Scope, module: Any, computations: Scope) -> None:
    tokens.expect("=")
    read_shape(tokens, instruction.shape)
    opcode, stage = opcode_and_stage(tokens.word())
    instruction.opcode = f"async-{stage}" if stage in ("update", "done") else opcode
    if instruction.opcode in _GROUPED:
        instruction.feature_group_count = instruction.batch_group_count = 1
    if tokens.token != "(":
        raise tokens.error(f"got {tokens.found()}, want the operands of {instruction.name[:40]!r}")
    _operands(tokens, instruction, instructions)
    while tokens.token == ",":
        tokens.take()
        _attribute(tokens, instruction, computations)
    if tokens.token not in ("\n", "}"):
        raise tokens.error(f"{instruction.name[:40]!r} goes on with {tokens.found()}")
    if stage == "start":
        module.computations.append(wrapped(instruction, len(module.computations)))


def _operands(tokens: Tokens, instruction: Any, instructions: Scope) -> None:
    given = tokens.group(keep=instruction.opcode != "constant")
    if instruction.opcode == "parameter":
        instruction.parameter_number = read_number(tokens, "".join(given))
        return
    for name in _last_of_each(given):
        instruction.operand_ids.append(_look_up(tokens, instructions, name, "instruction of this computation"))


def _last_of_each(tokens: list[str]) -> list[str]:
    """The last token of each part between commas: an operand may stand behind its shape."""
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
