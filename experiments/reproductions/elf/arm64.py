"""aarch64 machine code -> instructions of each kind in a function, and targets of its branches, as in `x86`.

Arm Architecture Reference Manual for A-profile (DDI 0487), chapter C4. There is no kind `stack`: registers are saved by
stores. Calls through slots are indirect calls here, except from the linkage table.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int64, UInt8

from experiments.reproductions.elf import instructions as ins
from partitioners.compiled import compiled

SYMBOLIC, RELATIVE = (1025, 1026), (1027, 1032)
"""Relocations that fill a slot with the address of a symbol or with one of this binary (ELF for the Arm 64-bit
architecture, table of dynamic relocations)."""


def sweep(
    code: UInt8[np.ndarray, " bytes"], starts: Int64[np.ndarray, " functions"], ends: Int64[np.ndarray, " functions"]
) -> tuple[Int64[np.ndarray, "functions kinds"], Int64[np.ndarray, "3 branches"]]:
    """As `x86.sweep`."""
    counts: np.ndarray
    branches: np.ndarray
    counts, branches = _sweep(_words(code), starts // 4, ends // 4)
    return counts, branches


def stub_slots(
    code: UInt8[np.ndarray, " bytes"], stubs: Int64[np.ndarray, " stubs"], address: int
) -> Int64[np.ndarray, " stubs"]:
    """As `x86.stub_slots`. A stub is `adrp x16, page; ldr x17, [x16, offset]; ...`, perhaps after `bti c`."""
    words = _words(code).astype(np.int64)
    at = stubs // 4
    at = at + (words[at] == 0xD503245F)
    page, load = words[at], words[np.minimum(at + 1, len(words) - 1)]
    pages = ((page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3) << 12
    pages -= (pages >> 32 & 1) << 33
    slots = (address + 4 * at & ~0xFFF) + pages + (load >> 10 & 0xFFF) * 8
    is_stub = (page & 0x9F00001F == 0x90000010) & (load & 0xFFC003FF == 0xF9400211)
    return np.where(is_stub, slots, -1)


def _words(code: np.ndarray) -> np.ndarray:
    return code[: len(code) // 4 * 4].view("<u4")


@compiled
@no_type_check
def _sweep(words, starts, ends):
    counts = np.zeros((len(starts), len(ins.KINDS)), np.int64)
    branches = np.empty((3, 1024), np.int64)
    found = 0
    for function in range(len(starts)):
        for at in range(starts[function], ends[function]):
            kind, mode, distance = _decode(np.int64(words[at]))
            counts[function, kind] += 1
            target = at + distance
            if mode == ins.NOWHERE or (mode == ins.JUMPS_TO_CODE and starts[function] <= target < ends[function]):
                continue
            if found == branches.shape[1]:
                branches = np.concatenate((branches, np.empty_like(branches)), axis=1)
            branches[0, found], branches[1, found], branches[2, found] = function, 4 * target, mode
            found += 1
    return counts, branches[:, :found].copy()


@compiled
@no_type_check
def _decode(word):
    """Kind, mode of branching, and distance in instructions from this one to its target."""
    group = word >> 25 & 0xF
    if group & 0b1110 == 0b1000:  # data processing, immediate
        if word >> 24 & 0x1F == 0b10000:
            return ins.ADDRESS, ins.NOWHERE, 0
        return (ins.MOVE if word >> 23 & 0x3F == 0b100101 else ins.ARITHMETIC), ins.NOWHERE, 0
    if group & 0b1110 == 0b1010:
        return _branch(word)
    if group & 0b0101 == 0b0100:
        if word >> 26 & 1:
            return ins.VECTOR, ins.NOWHERE, 0
        return (ins.LOAD if _loads(word) else ins.STORE), ins.NOWHERE, 0
    if group & 0b0111 == 0b0101:  # data processing, registers; moving one is an OR with the zero register
        return (ins.MOVE if word & 0x7FE0FFE0 == 0x2A0003E0 else ins.ARITHMETIC), ins.NOWHERE, 0
    return (ins.VECTOR if group & 0b0111 == 0b0111 or group == 0b0010 else ins.OTHER), ins.NOWHERE, 0


@compiled
@no_type_check
def _branch(word):
    if word >> 26 & 0x1F == 0b00101:
        calls = word >> 31
        return (ins.CALL if calls else ins.JUMP), (ins.CALLS_CODE if calls else ins.JUMPS_TO_CODE), _signed(word, 26)
    if word >> 24 == 0b01010100 or word >> 25 & 0x3F == 0b011010:
        return ins.BRANCH, ins.JUMPS_TO_CODE, _signed(word >> 5, 19)
    if word >> 25 & 0x3F == 0b011011:
        return ins.BRANCH, ins.JUMPS_TO_CODE, _signed(word >> 5, 14)
    if word >> 25 == 0b1101011:
        operation = word >> 21 & 7
        return (ins.JUMP if operation == 0 else ins.INDIRECT_CALL if operation == 1 else ins.RETURN), ins.NOWHERE, 0
    return ins.OTHER, ins.NOWHERE, 0


@compiled
@no_type_check
def _loads(word):
    """True if a load or store of integer registers is a load."""
    if word >> 27 & 7 == 0b011 and not word >> 24 & 1:  # load of a literal
        return True
    if word >> 27 & 7 == 0b111:  # one register
        return word >> 22 & 3 != 0
    return word >> 22 & 1 != 0  # pairs and exclusive access


@compiled
@no_type_check
def _signed(word, bits):
    value = word & (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
