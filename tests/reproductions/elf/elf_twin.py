"""The call graph of a binary by pyelftools alone, of instructions as the package reads them: slow, obviously right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import capstone
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from experiments.reproductions.elf.code import KINDS, kind_of


@dataclass
class SlowCallGraph:
    """Functions are known by their address, imports by their name."""

    bounds: dict[int, int]
    edges: set[tuple[int, int | str]]


def slow_call_graph(path: Path) -> SlowCallGraph:
    """Of a binary for x86-64 with call frame information."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        tables = [section for section in elf.iter_sections() if section.name.startswith(".plt")]
        in_tables = lambda address: any(t["sh_addr"] <= address < t["sh_addr"] + t["sh_size"] for t in tables)  # noqa: E731
        frames = [entry for entry in elf.get_dwarf_info().EH_CFI_entries() if isinstance(entry, FDE)]
        sizes = {frame["initial_location"]: frame["address_range"] for frame in frames}
        bounds = {start: start + size for start, size in sizes.items() if not in_tables(start)}
        slots = _slots(elf)
        graph = SlowCallGraph(bounds, set())
        for start, end in bounds.items():
            for after, mnemonic, operands in _disassembled(elf, start, end - start):
                kind = KINDS[kind_of(mnemonic, operands)]
                if kind not in ("call", "jump", "branch"):
                    continue
                callee = _callee(elf, after, operands, slots, in_tables)
                if (callee in bounds or isinstance(callee, str)) and not (callee == start and kind != "call"):
                    graph.edges.add((start, callee))
        return graph


def _disassembled(elf: ELFFile, address: int, size: int) -> list[tuple[int, str, str]]:
    """Address after each instruction, mnemonic, operands."""
    offset = next(iter(elf.address_offsets(address)))
    elf.stream.seek(offset)
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    machine.skipdata = True
    code = elf.stream.read(size)
    return [(at + length, mnemonic, text) for at, length, mnemonic, text in machine.disasm_lite(code, address)]


def _slots(elf: ELFFile) -> dict[int, int | str]:
    slots: dict[int, int | str] = {}
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection):
            symbols = elf.get_section(section["sh_link"])
            for relocation in section.iter_relocations():
                if relocation["r_info_type"] in (8, 37):
                    slots[relocation["r_offset"]] = relocation["r_addend"]
                elif relocation["r_info_type"] in (6, 7):
                    symbol: Any = symbols.get_symbol(relocation["r_info_sym"])
                    defined = symbol["st_shndx"] != "SHN_UNDEF"
                    slots[relocation["r_offset"]] = symbol["st_value"] if defined else symbol.name
    return slots


def _callee(elf: ELFFile, after: int, operands: str, slots: dict[int, int | str], in_tables: Any) -> int | str | None:
    if "[rip" in operands:
        return slots.get(after + int(operands.partition("rip")[2].replace(" ", "").rstrip("]") or "0", 16))
    if not operands.startswith("0x"):
        return None
    target = int(operands, 16)
    if not in_tables(target):
        return target
    for after_stub, mnemonic, text in _disassembled(elf, target, 16)[:2]:
        if mnemonic in ("jmp", "bnd jmp") and "[rip" in text:
            return _callee(elf, after_stub, text, slots, in_tables)
    return None
