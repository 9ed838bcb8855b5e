"""A linked ELF file: its sections, and the tables that name what it imports and exports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

MACHINES = {"EM_X86_64": "x86-64", "EM_AARCH64": "aarch64"}
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
    """A stretch of the file and, if it is loaded, its address; `size` is what the file really holds of it."""

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
        machine: one of the values of `MACHINES`.
    """

    path: Path
    data: UInt8[np.ndarray, " bytes"]
    machine: str
    sections: tuple[Section, ...]

    def section(self, *names: str) -> Section | None:
        """The first section with one of these names."""
        return next((section for section in self.sections if section.name in names), None)

    def content(self, *names: str) -> UInt8[np.ndarray, " bytes"]:
        """Its bytes; none where there is no such section."""
        section = self.section(*names)
        return self.data[section.offset : section.offset + section.size] if section else self.data[:0]

    def code(self) -> list[Section]:
        """Executable sections by address, linkage tables left out; those of a damaged file that overlap, too."""
        kept: list[Section] = []
        for section in sorted(self.sections, key=lambda section: section.address):
            if section.executable and not section.name.startswith(".plt"):
                kept += [section] * (not kept or kept[-1].end <= section.address)
        return kept

    def linkage_tables(self) -> list[Section]:
        """Stubs that jump to the functions of other libraries."""
        return [section for section in self.sections if section.executable and section.name.startswith(".plt")]

    def word(self, address: int) -> int:
        """The 64-bit number that the file has at this address; 0 where it has none."""
        for section in self.sections:
            if section.loaded and section.address <= address <= section.end - 8:
                at = section.offset + address - section.address
                return int.from_bytes(self.data[at : at + 8].tobytes(), "little")
        return 0

    def table(self, name: str, row: np.dtype) -> Shaped[np.ndarray, " rows"]:
        """The rows of a section, without what is left of a last one that is cut short."""
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
        """Of the dynamic symbol table."""
        return self.table(".dynsym", SYMBOL)

    def needed(self) -> list[str]:
        """Names of the libraries it asks for."""
        entries = self.table(".dynamic", DYNAMIC)
        return [self.string(int(value)) for value in entries["value"][entries["tag"] == NEEDED]]


def open_binary(path: Path) -> Binary:
    """Read the headers of a program or library.

    Raises:
        ValueError: it is no such file, or a damaged one; the message is the reason, without the name of the file.
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
    return Binary(path, np.memmap(path, np.uint8, "r"), MACHINES[elf["e_machine"]], sections)


def _problem(elf: Any) -> str:
    """Why the file is of no use, by its first header; empty if it is."""
    if elf["e_type"] not in ("ET_EXEC", "ET_DYN"):
        return "not a linked program or library"
    if elf["e_machine"] not in MACHINES or elf.elfclass != 64 or not elf.little_endian:
        return f"for another machine ({elf['e_machine']})"
    return "damaged: too many sections" if elf.num_sections() > MOST_SECTIONS else ""


def _section(section: Any, file_bytes: int) -> Section:
    """The header as numbers within bounds: what lies outside of the file, or is not loaded from it, has size 0."""
    offset, flags = section["sh_offset"], section["sh_flags"]
    size = 0 if section["sh_type"] == "SHT_NOBITS" else max(0, min(section["sh_size"], file_bytes - offset))
    return Section(section.name, section["sh_addr"], offset, size, bool(flags & LOADED), bool(flags & EXECUTABLE))
