"""The shorthand in which XLA prints an asynchronous instruction: `slice-start(x)` for an `async-start` that calls a
computation whose one instruction is the slice."""

from __future__ import annotations

import re
from typing import Any

from gst.data.hlo.messages import HloComputation, HloInstruction
from gst.data.hlo.opcodes import opcode_number

_SHORTHAND = re.compile(r"(.+)-(start|update|done)")


def opcode_and_stage(printed: str) -> tuple[str, str]:
    """`slice`, `start` for `slice-start`; a kind of its own, such as `copy-start` or `add`, and no stage otherwise."""
    match = _SHORTHAND.fullmatch(printed)
    if match and not opcode_number(printed) and opcode_number(match[1]):
        return match[1], match[2]
    return printed, ""


def wrapped(instruction: Any, number: int) -> Any:
    """The computation, with the id `number`, that a start in shorthand wraps; `instruction`, read as what it starts,
    becomes an `async-start` that calls it.

    Raises:
        ValueError: its shape is not the tuple of the operands, the result and what the backend adds.
    """
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
