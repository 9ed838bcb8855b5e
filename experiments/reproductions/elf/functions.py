"""Bounds of the functions of a binary, without its symbols, which may have been stripped."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from experiments.reproductions.elf.binary import Binary

# Pointer encodings of .eh_frame: the low four bits are the format, the next three what the value is relative to.
# https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/dwarfext.html
FORMATS = {0x0: "<q", 0x2: "<H", 0x3: "<I", 0x4: "<q", 0xA: "<h", 0xB: "<i", 0xC: "<q"}
TO_ITSELF = 0x10

GO_MARKS = (".go.buildinfo", ".note.go.buildid")
GO_TABLES = (".gopclntab", ".data.rel.ro.gopclntab", ".data.rel.ro", ".rodata")
GO_MAGIC = tuple(
    version + b"\xff\xff\xff\0\0" + step + b"\x08"  # Go 1.18 or 1.20; instructions of x86-64 or of aarch64; 64 bits
    for version in (b"\xf0", b"\xf1")
    for step in (b"\x01", b"\x04")
)


def function_bounds(binary: Binary) -> Int64[np.ndarray, "functions 2"]:
    """First address and end of every function, ascending; functions neither overlap nor leave their section.

    They come from the call frame information (`.eh_frame`) and, in programs written in Go, from the table of functions
    (`.gopclntab`). A part that the compiler moved away from its function (`.cold`) counts as a function.
    """
    bounds = np.array([*_call_frames(binary), *_go_functions(binary)], np.int64).reshape(-1, 2)
    bounds = bounds[np.unique(bounds[:, 0], return_index=True)[1]]
    kept = [bounds[:0]]
    for section in binary.code():
        inside = bounds[(bounds[:, 0] >= section.address) & (bounds[:, 0] < section.end)]
        following = np.append(inside[1:, 0], section.end)[: len(inside)]
        kept.append(np.stack([inside[:, 0], np.minimum(inside[:, 1], following)], axis=1))
    found = np.concatenate(kept)
    return found[found[:, 1] > found[:, 0]]


def _call_frames(binary: Binary) -> Iterator[tuple[int, int]]:
    """Start and end of the code of every frame description entry."""
    section = binary.section(".eh_frame")
    if section is None:
        return
    data = binary.content(".eh_frame").tobytes()
    encodings: dict[int, int | None] = {}
    at = 0
    while at + 8 <= len(data):
        length, common = struct.unpack_from("<II", data, at)
        if length == 0 or length == 0xFFFFFFFF:  # the end; no linker writes the 64-bit form
            return
        if common == 0:
            encodings[at] = _encoding(data[at + 8 : at + 4 + length])
        else:
            encoding = encodings.get(at + 4 - common)
            frame = None if encoding is None else _frame(data, at + 8, section.address, encoding)
            if frame is not None:
                yield frame
        at += 4 + length


def _frame(data: bytes, at: int, address: int, encoding: int) -> tuple[int, int] | None:
    form = FORMATS.get(encoding & 0xF)
    if form is None or encoding & 0xF0 not in (0, TO_ITSELF) or at + 2 * struct.calcsize(form) > len(data):
        return None
    start, size = struct.unpack_from("<" + 2 * form[1], data, at)
    if encoding & TO_ITSELF:
        start += address + at
    return (start, start + size) if 0 <= start < start + size < 1 << 62 else None


def _encoding(entry: bytes) -> int | None:
    """Encoding of the addresses of the frames of a common information entry; None if it cannot be parsed.

    Args:
        entry: from its version on.
    """
    try:
        end = entry.index(0, 1)
        version, augmentation, at = entry[0], entry[1:end].decode(), end + 1
        if not augmentation:
            return 0
        for _ in range(2 if version == 1 else 3):  # alignment of code and of data, the register of the return address
            at = _after_leb128(entry, at)
        at = _after_leb128(entry, at + (version == 1))
        for letter in augmentation[1:]:
            if letter == "R":
                return entry[at]
            if letter == "P":
                at += struct.calcsize(FORMATS[entry[at] & 0xF])
            at += letter in "PL"
        return 0
    except (LookupError, ValueError):
        return None


def _after_leb128(entry: bytes, at: int) -> int:
    while entry[at] & 0x80:
        at += 1
    return at + 1


def _go_functions(binary: Binary) -> Iterator[tuple[int, int]]:
    """Start and end of every function in the table of a Go program (`pcHeader` in runtime/symtab.go of Go)."""
    code = binary.section(".text")
    if code is None or not binary.section(*GO_MARKS):
        return
    for name in GO_TABLES:
        content = binary.content(name)
        at = next((at for magic in GO_MAGIC if (at := content.tobytes().find(magic)) >= 0), len(content))
        table = content[at : at + (len(content) - at) // 8 * 8]
        if len(table) < 72:
            continue
        num_functions, _, text, *_, first = (int(number) for number in table[8:72].view("<u8"))
        if first % 4 or num_functions >= (len(table) - first) // 8:
            continue
        offsets = table[first : first + 8 * num_functions + 4].view("<u4")[::2].astype(np.int64)
        entries = ((text or code.address) + offsets).tolist()
        yield from itertools.pairwise(entries)
        return
