"""Linked ELF files: sections, dynamic symbols and relocations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

MACHINE = "EM_X86_64"
MOST_SECTIONS = 4096
MOST_BYTES = 1 << 30
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
DYNAMIC = np.dtype([("tag", "<i8"), ("value", "<u8")])
NEEDED = 1  # tag of an entry of .dynamic
LOADED, EXECUTABLE = 0x2, 0x4  # flags of a section
HIGHEST_ADDRESS = 1 << 61


@dataclass(frozen=True)
class Section:
    """A range of the file and, if it is loaded, its address; `size` counts only bytes that the file holds."""

    name: str
    address: int
    offset: int
    size: int
    loaded: bool
    executable: bool

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, eq=False)
class Binary:
    """Make it with `open_binary`.

    Args:
        data: the whole file, memory-mapped.
    """

    path: Path
    data: UInt8[np.ndarray, " bytes"]
    sections: tuple[Section, ...]

    def section(self, *names: str) -> Section | None:
        """The first section with one of these names."""
        return next((section for section in self.sections if section.name in names), None)

    def content(self, *names: str) -> UInt8[np.ndarray, " bytes"]:
        """Bytes of the first section with one of these names; none without such a section."""
        section = self.section(*names)
        return self.data[section.offset : section.offset + section.size] if section else self.data[:0]

    def code(self) -> list[Section]:
        """Executable sections by address, without linkage tables and, in damaged files, without overlaps."""
        sections: list[Section] = []
        for section in sorted(self.sections, key=lambda section: section.address):
            if section.executable and not section.name.startswith(".plt"):
                sections += [section] * (not sections or sections[-1].end <= section.address)
        return sections

    def linkage_tables(self) -> list[Section]:
        """Sections of stubs that jump to functions of other libraries."""
        return [section for section in self.sections if section.executable and section.name.startswith(".plt")]

    def word(self, address: int) -> int:
        """The 64-bit number at this address of the file; 0 outside of the file."""
        for section in self.sections:
            if section.loaded and section.address <= address <= section.end - 8:
                at = section.offset + address - section.address
                return int.from_bytes(self.data[at : at + 8].tobytes(), "little")
        return 0

    def table(self, name: str, row: np.dtype) -> Shaped[np.ndarray, " rows"]:
        """The rows of a section, without an incomplete last one."""
        content = self.content(name)
        return content[: len(content) // row.itemsize * row.itemsize].view(row)

    def string(self, offset: int) -> str:
        """The name at this offset of the dynamic string table."""
        return self._strings[offset : self._strings.find(b"\0", offset)].decode(errors="replace")

    @cached_property
    def _strings(self) -> bytes:
        return self.content(".dynstr").tobytes()

    @cached_property
    def symbols(self) -> Shaped[np.ndarray, " symbols"]:
        """The dynamic symbol table."""
        return self.table(".dynsym", SYMBOL)

    def needed(self) -> list[str]:
        """Names of the libraries that the binary needs."""
        entries = self.table(".dynamic", DYNAMIC)
        return [self.string(int(value)) for value in entries["value"][entries["tag"] == NEEDED]]


def open_binary(path: Path) -> Binary:
    """Read the headers of a program or library.

    Raises:
        ValueError: it is no linked ELF file of a known machine, or damaged; the message does not name the file.
        OSError: it cannot be read.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError("larger than 1 GiB")
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise ValueError("not an ELF file")
        try:
            elf = ELFFile(file)
            problem = _problem(elf)
            sections = () if problem else tuple(_section(section, size) for section in elf.iter_sections())
        except (ELFError, ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
            raise ValueError("damaged: headers cannot be read") from error
    if any(section.address > HIGHEST_ADDRESS for section in sections):
        problem = "damaged: a section lies beyond the address space"
    elif sum(section.size for section in sections) > size:
        problem = "damaged: sections overlap"
    if problem:
        raise ValueError(problem)
    return Binary(path, np.memmap(path, np.uint8, "r"), sections)


def _problem(elf: Any) -> str:
    """Reason to refuse a file by its first header; empty if there is none."""
    if elf["e_type"] not in ("ET_EXEC", "ET_DYN"):
        return "not a linked program or library"
    if elf["e_machine"] != MACHINE or elf.elfclass != 64 or not elf.little_endian:
        return f"for another machine ({elf['e_machine']})"
    return "damaged: too many sections" if elf.num_sections() > MOST_SECTIONS else ""


def _section(section: Any, file_bytes: int) -> Section:
    """A section header within the bounds of the file: what lies outside, or is not stored in it, has size 0."""
    offset, flags = section["sh_offset"], section["sh_flags"]
    size = 0 if section["sh_type"] == "SHT_NOBITS" else max(0, min(section["sh_size"], file_bytes - offset))
    return Section(section.name, section["sh_addr"], offset, size, bool(flags & LOADED), bool(flags & EXECUTABLE))
