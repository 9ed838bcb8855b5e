"""x86-64 machine code -> instructions of each kind in a function, and targets of its branches.

One linear sweep per function decodes only the length and kind of an instruction and the target of a branch, which is
tens of times as fast as a full disassembler (capstone). Opcode maps: Intel 64 and IA-32 manual, volume 2, chapter 2 and
appendix A; XOP: AMD64 manual, volume 6.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int64, UInt8

from experiments.reproductions.elf import instructions as ins
from partitioners.compiled import compiled

SYMBOLIC, RELATIVE = (6, 7), (8, 37)
"""Relocations that fill a slot with the address of a symbol, or with one of this binary (System V ABI, AMD64
supplement, table 4.9). The last, IRELATIVE, names the function that chooses which address it will be."""

FROM_MEMORY, TO_MEMORY, UNKNOWN = 20, 21, 22
"""Kinds for the tables only: moves that load or store if their operand is memory; no instruction."""


def _set(opcodes: str) -> UInt8[np.ndarray, "256"]:
    """`"00-03 62"` -> an array that is 1 at these opcodes."""
    chosen = np.zeros(256, np.uint8)
    for entry in opcodes.split():
        first, _, last = entry.partition("-")
        chosen[int(first, 16) : int(last or first, 16) + 1] = 1
    return chosen


def _kinds(**opcodes: str) -> UInt8[np.ndarray, "256"]:
    table = np.full(256, ins.OTHER, np.uint8)
    for name, chosen in opcodes.items():
        table[_set(chosen) == 1] = globals().get(name) or getattr(ins, name)
    return table


PREFIX = _set("26 2e 36 3e 64-67 f0 f2-f3")

# What follows an opcode of one byte (ModRM; an immediate of one byte; one of two or four), and what it does.
MODRM = _set(
    "00-03 08-0b 10-13 18-1b 20-23 28-2b 30-33 38-3b 62-63 69 6b 80-81 83-8f c0-c1 c4-c7 d0-d3 d8-df f6-f7 fe-ff"
)
BYTE = _set("04 0c 14 1c 24 2c 34 3c 6a-6b 70-80 83 a8 b0-b7 c0-c1 c6 cd e0-e7 eb")
WORD_OR_LONG = _set("05 0d 15 1d 25 2d 35 3d 68-69 81 a9 b8-bf c7")
KIND = _kinds(
    ARITHMETIC="00-05 08-0d 10-15 18-1d 20-25 28-2d 30-35 38-3d 69 6b 80-81 83-85 98-99 a8-a9 c0-c1 d0-d3 f6-f7 fe-ff",
    STACK="50-5f 68 6a 8f 9c-9d c8-c9",
    ADDRESS="8d",
    MOVE="b0-bf",
    LOAD="a0-a1",
    STORE="a2-a3",
    FROM_MEMORY="63 8a-8b 8e",
    TO_MEMORY="88-89 8c c6-c7",
    VECTOR="d8-df",
    CALL="e8",
    JUMP="e9 eb",
    BRANCH="70-7f e0-e3",
    RETURN="c2-c3 ca-cb cf",
    UNKNOWN="06-07 0e 16-17 1e-1f 27 2f 37 3f 60-61 82 9a d4-d6 ce ea",
)

# The same for the opcode after 0F.
NO_MODRM_0F = _set("04-0c 0e 30-37 77 80-8f a0-a2 a8-aa c8-cf")
BYTE_0F = _set("0f 70-73 a4 ac ba c2 c4-c6")
KIND_0F = _kinds(
    ARITHMETIC="90-9f a3-a5 ab-ad af-b1 b3 b8 ba-bd c0-c1 c8-cf",
    VECTOR="10-17 28-2f 50-7f c2 c4-c6 d0-fe",
    STORE="c3",
    FROM_MEMORY="40-4f b6-b7 be-bf",
    BRANCH="80-8f",
)


def sweep(
    code: UInt8[np.ndarray, " bytes"], starts: Int64[np.ndarray, " functions"], ends: Int64[np.ndarray, " functions"]
) -> tuple[Int64[np.ndarray, "functions kinds"], Int64[np.ndarray, "3 branches"]]:
    """Decode every function from its start to its end. A byte that starts no instruction counts as one.

    Args:
        code: followed by `PADDING` bytes that belong to no function.
        starts, ends: offsets into `code`.

    Returns:
        instructions of each function by kind; and of every branch that leaves its function: the function, the offset
        that it names (which may lie outside of `code`), and how it names it (see `instructions`).
    """
    counts: np.ndarray
    branches: np.ndarray
    counts, branches = _sweep(code, starts, ends)
    return counts, branches


def stub_slots(
    code: UInt8[np.ndarray, " bytes"], stubs: Int64[np.ndarray, " stubs"], address: int
) -> Int64[np.ndarray, " stubs"]:
    """Address of the slot through which each stub of a linkage table jumps; -1 where it does not.

    Args:
        code: of the table, followed by `PADDING` bytes.
        stubs: offsets into `code`.
        address: of the table.
    """
    slots: np.ndarray = _stub_slots(code, stubs, address)
    return slots


@compiled
@no_type_check
def _stub_slots(code, stubs, address):
    slots = np.full(len(stubs), -1)
    for i in range(len(stubs)):
        at = stubs[i]
        for _ in range(2):  # the jump may stand after endbr64
            if at < len(code) - ins.PADDING:
                length, _, mode, distance = _decode(code, at)
                at += length
                if mode == ins.JUMPS_TO_SLOT:
                    slots[i] = address + at + distance
                    break
    return slots


@compiled
@no_type_check
def _sweep(code, starts, ends):
    counts = np.zeros((len(starts), len(ins.KINDS)), np.int64)
    branches = np.empty((3, 1024), np.int64)
    found = 0
    for function in range(len(starts)):
        at = starts[function]
        while at < ends[function]:
            length, kind, mode, distance = _decode(code, at)
            at += length
            counts[function, kind] += 1
            target = at + distance
            if mode == ins.NOWHERE or (mode == ins.JUMPS_TO_CODE and starts[function] <= target < ends[function]):
                continue
            if found == branches.shape[1]:
                branches = np.concatenate((branches, np.empty_like(branches)), axis=1)
            branches[0, found], branches[1, found], branches[2, found] = function, target, mode
            found += 1
    return counts, branches[:, :found].copy()


@compiled
@no_type_check
def _decode(code, start):
    """Length, kind, mode of branching, and distance from the next instruction to what a branch names."""
    at, wide, narrow = _after_prefixes(code, start)
    at, opcode_map, opcode, vex = _after_opcode(code, at)
    kind, has_modrm, immediate = _form(code, at, opcode_map, opcode, vex, wide, narrow)
    if kind == UNKNOWN:
        return 1, ins.OTHER, ins.NOWHERE, 0
    extension = code[at] >> 3 & 7
    memory = has_modrm and code[at] < 0xC0
    relative = has_modrm and code[at] & 0xC7 == 5  # to the next instruction, by the four bytes after ModRM
    relative_at = at + 1
    if has_modrm:
        at += _modrm_length(code, at)
    end = at + immediate
    if kind == FROM_MEMORY:
        kind = ins.LOAD if memory else ins.MOVE
    elif kind == TO_MEMORY:
        kind = ins.STORE if memory else ins.MOVE
    elif kind == ins.CALL:
        return end - start, kind, ins.CALLS_CODE, _signed(code, at, immediate)
    elif kind == ins.JUMP or kind == ins.BRANCH:
        return end - start, kind, ins.JUMPS_TO_CODE, _signed(code, at, immediate)
    elif opcode_map == 0 and opcode == 0xFF and extension >= 2:
        if relative and extension == 2:
            return end - start, ins.CALL, ins.CALLS_SLOT, _signed(code, relative_at, 4)
        if relative and extension == 4:
            return end - start, ins.JUMP, ins.JUMPS_TO_SLOT, _signed(code, relative_at, 4)
        kind = ins.INDIRECT_CALL if extension < 4 else ins.JUMP if extension < 6 else ins.STACK
    return end - start, kind, ins.NOWHERE, 0


@compiled
@no_type_check
def _after_prefixes(code, at):
    """Return the offset of the opcode, and whether operands have 64 bits or 16."""
    wide = narrow = False
    for _ in range(ins.PADDING - 2):
        if PREFIX[code[at]]:
            narrow |= code[at] == 0x66
            wide = False
        elif code[at] >> 4 == 4:
            wide = (code[at] & 8) != 0
        else:
            break
        at += 1
    return at, wide, narrow and not wide


@compiled
@no_type_check
def _after_opcode(code, at):
    """Return the offset of the operands, the map of the opcode, the opcode, and whether a vector prefix names the map.

    Maps are 0: one byte, 1: 0F, 2: 0F 38, 3: 0F 3A. Vector prefixes are VEX, EVEX and XOP.
    """
    first = code[at]
    at += 1
    if first == 0x0F:
        if code[at] == 0x38 or code[at] == 0x3A:
            return at + 2, 2 + (code[at] == 0x3A), code[at + 1], False
        return at + 1, 1, code[at], False
    if first == 0xC5:
        return at + 2, 1, code[at + 1], True
    if first == 0xC4 or (first == 0x8F and code[at] & 0x1F >= 8):
        return at + 3, np.int64(code[at] & 0x1F), code[at + 2], True
    if first == 0x62:
        return at + 4, np.int64(code[at] & 7), code[at + 3], True
    return at, 0, first, False


@compiled
@no_type_check
def _form(code, at, opcode_map, opcode, vex, wide, narrow):
    """Kind, whether a ModRM byte follows, and bytes of immediate operands."""
    if opcode_map == 0 and not vex:
        return np.int64(KIND[opcode]), MODRM[opcode] != 0, _immediate(code, at, opcode, wide, narrow)
    if opcode_map == 1 and vex:
        return ins.VECTOR, opcode != 0x77, np.int64(BYTE_0F[opcode])
    if opcode_map == 1:
        immediate = 4 if opcode >> 4 == 8 else np.int64(BYTE_0F[opcode])
        return np.int64(KIND_0F[opcode]), NO_MODRM_0F[opcode] == 0, immediate
    if opcode_map == 2 or opcode_map == 3:
        integer = opcode >= 0xF0 and (vex or opcode_map == 2)
        return (ins.ARITHMETIC if integer else ins.VECTOR), True, opcode_map - 2
    if opcode_map == 5 or opcode_map == 6 or 8 <= opcode_map <= 10:  # half precision, XOP
        return ins.VECTOR, True, 1 if opcode_map == 8 else 4 if opcode_map == 10 else 0
    return UNKNOWN, False, 0


@compiled
@no_type_check
def _immediate(code, at, opcode, wide, narrow):
    """Bytes of immediate operands and displacements of an opcode of one byte."""
    if opcode == 0xE8 or opcode == 0xE9:
        return 4
    if opcode == 0xC2 or opcode == 0xCA:
        return 2
    if opcode == 0xC8:
        return 3
    if opcode >> 2 == 0xA0 >> 2 or (opcode >> 3 == 0xB8 >> 3 and wide):
        return 8
    if opcode == 0xF6 and code[at] & 0x38 < 0x10:  # TEST, alone of its group
        return 1
    if WORD_OR_LONG[opcode] or (opcode == 0xF7 and code[at] & 0x38 < 0x10):
        return BYTE[opcode] + (2 if narrow else 4)
    return np.int64(BYTE[opcode])


@compiled
@no_type_check
def _modrm_length(code, at):
    """Bytes of ModRM, SIB and displacement."""
    mode, register = code[at] >> 6, code[at] & 7
    if mode == 3:
        return 1
    has_sib = register == 4
    length = 2 if has_sib else 1
    if mode == 1:
        return length + 1
    base = code[at + 1] & 7 if has_sib else register
    return length + 4 if mode == 2 or base == 5 else length


@compiled
@no_type_check
def _signed(code, at, width):
    """A little-endian integer of 1 or 4 bytes."""
    value = 0
    for i in range(width):
        value |= np.int64(code[at + i]) << (8 * i)
    return value - (1 << 8 * width) if value >> (8 * width - 1) else value
