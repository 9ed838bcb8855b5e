"""Kinds of machine instructions, the same for all processors, and how branches name their targets."""

from __future__ import annotations

KINDS = (
    "other", "move", "load", "store", "address", "arithmetic", "vector", "stack", "call", "indirect_call", "jump",
    "branch", "return",
)  # fmt: skip
"""An integer operation with a memory operand is arithmetic, everything on vector or floating point registers is vector.
A call through a slot in memory at a known address, which the loader fills, is a call; an indirect call goes through any
other pointer. A branch is conditional, a jump is not."""
OTHER, MOVE, LOAD, STORE, ADDRESS, ARITHMETIC, VECTOR, STACK, CALL, INDIRECT_CALL, JUMP, BRANCH, RETURN = range(13)

NOWHERE, CALLS_CODE, JUMPS_TO_CODE, CALLS_SLOT, JUMPS_TO_SLOT = range(-1, 4)
"""Modes of branches: the target is named by its address, or by the address of a slot in memory that holds it."""

PADDING = 16
"""Readable bytes that a sweep needs after the last instruction: none is longer than 15."""
