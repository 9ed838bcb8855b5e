"""x86-64 machine code by capstone: instructions of each kind in a function, and the targets of its branches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

KINDS = (
    "other", "move", "load", "store", "address", "arithmetic", "vector", "stack", "call", "indirect_call", "jump",
    "branch", "return",
)  # fmt: skip
"""An integer operation with a memory operand is arithmetic, everything on vector or floating point registers is vector.
A call through a slot in memory at a known address, which the loader fills, is a call; an indirect call goes through any
other pointer. A branch is conditional, a jump is not."""
OTHER, MOVE, LOAD, STORE, ADDRESS, ARITHMETIC, VECTOR, STACK, CALL, INDIRECT_CALL, JUMP, BRANCH, RETURN = range(13)

CALLS_CODE, JUMPS_TO_CODE, CALLS_SLOT, JUMPS_TO_SLOT = range(4)
"""Modes of branches: the target is named by its address, or by the address of a slot in memory that holds it."""
SYMBOLIC, RELATIVE = (6, 7), (8, 37)
"""Relocations that fill a slot with the address of a symbol, or with one of this binary (System V ABI, AMD64
supplement, table 4.9). The last, IRELATIVE, names the function that chooses which address it will be."""

STUB_BYTES = 16  # of a linkage table
_PREFIX = re.compile("(?:lock|rep|repe|repne|repz|repnz|bnd|notrack) ")
_VECTOR = re.compile(r"[fvk]|cvt|emms")
_ARITHMETIC = re.compile(
    "add|sub|xor|and|or|adc|sbb|cmp|test|sh[lr]|sa[lr]|ro[lr]|rc[lr]|inc|dec|neg|not|i?mul|i?div|cdq|cqo|cdqe|cwde|cbw|cwd|"
    "bt[src]?|bs[fr]|[tl]zcnt|popcnt|bswap|sh[lr]d|xadd|cmpxchg|movbe|crc32|adcx|adox|andn|bextr|bls(i|msk|r)|bzhi|mulx|"
    "pdep|pext|rorx|sarx|sh[lr]x|set.*"
)
_MOVES = ("mov", "movabs", "movzx", "movsx", "movsxd")
_NAMED = {"lea": ADDRESS, "jmp": JUMP, "ret": RETURN, "iretq": RETURN, "movnti": STORE}
_NAMED |= dict.fromkeys(("push", "pop", "enter", "leave", "pushfq", "popfq"), STACK)

Instruction = tuple[int, int, str, str]  # address, length, mnemonic, operands


def disassemble(code: UInt8[np.ndarray, " bytes"], address: int) -> Iterator[Instruction]:
    """Yield the instructions of a linear sweep; bytes that start none are skipped, one at a time."""
    instructions: Iterator[Instruction] = _machine().disasm_lite(code.tobytes(), address)
    return instructions


@lru_cache(1)
def _machine() -> Any:
    try:
        import capstone
    except ImportError as error:
        raise ValueError("reading code takes capstone; pip install 'graph-segment-training[experiments]'") from error
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    machine.skipdata = True
    return machine


@lru_cache(1 << 16)
def kind_of(mnemonic: str, operands: str) -> int:
    """Return the number of an instruction's kind in `KINDS`.

    Examples:
        >>> [KINDS[kind_of(*each)] for each in (("mov", "rax, qword ptr [rdi]"), ("call", "0x1040"), ("jne", "0x10"))]
        ['load', 'call', 'branch']
    """
    name = _PREFIX.sub("", mnemonic)
    if "mm" in operands or "st(" in operands or _VECTOR.match(name):
        return VECTOR
    if name in _MOVES or name.startswith("cmov"):
        first, _, second = operands.partition(", ")
        return STORE if "[" in first else LOAD if "[" in second else MOVE
    if _ARITHMETIC.fullmatch(name):
        return ARITHMETIC
    if name == "call":
        return CALL if operands.startswith("0x") or "[rip" in operands else INDIRECT_CALL
    return _NAMED.get(name, BRANCH if name[0] == "j" or name.startswith("loop") else OTHER)


def sweep(
    code: UInt8[np.ndarray, " bytes"], address: int, bounds: Int64[np.ndarray, "functions 2"]
) -> tuple[Int64[np.ndarray, "functions kinds"], Int64[np.ndarray, "3 branches"]]:
    """Decode every function.

    Args:
        code: a section that lies at `address`.
        bounds: first address and end of each function, within the section.

    Returns:
        instructions of each function by kind; and of every call, and of every jump or branch that leaves its function,
        the number of the function, the address that it names, and the mode.
    """
    counts, branches = np.zeros((len(bounds), len(KINDS)), np.int64), []
    for function, (start, end) in enumerate(bounds.tolist()):
        for at, length, mnemonic, operands in disassemble(code[start - address : end - address], start):
            kind = kind_of(mnemonic, operands)
            counts[function, kind] += 1
            if kind not in (CALL, JUMP, BRANCH):
                continue
            target, in_slot = target_of(at + length, operands)
            if target is not None and (in_slot or kind == CALL or not start <= target < end):
                branches.append((function, target, 2 * in_slot + (kind != CALL)))
    return counts, np.array(branches, np.int64).reshape(-1, 3).T


def target_of(after: int, operands: str) -> tuple[int | None, bool]:
    """Return the address that a branch names, and True if it is that of a slot; None for other operands.

    Args:
        after: address of the next instruction.
    """
    if "[rip" in operands:
        return after + int(operands.partition("rip")[2].replace(" ", "").rstrip("]") or "0", 16), True
    return (int(operands, 16) if operands.startswith("0x") else None), False


def stub_slots(
    code: UInt8[np.ndarray, " bytes"], address: int, stubs: Int64[np.ndarray, " stubs"]
) -> Int64[np.ndarray, " stubs"]:
    """Return the address of the slot through which each stub of a linkage table jumps; -1 where it does not.

    Args:
        code: of the table, which lies at `address`.
        stubs: addresses.
    """
    slots = np.full(len(stubs), -1)
    for i, stub in enumerate(stubs.tolist()):
        first = stub - address
        for at, length, mnemonic, operands in list(disassemble(code[first : first + STUB_BYTES], stub))[:2]:
            target, in_slot = target_of(at + length, operands)
            if in_slot and mnemonic in ("jmp", "bnd jmp"):  # it may stand after endbr64
                slots[i] = target
                break
    return slots
