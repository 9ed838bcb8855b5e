"""Who calls whom in a binary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from gst.data.elf import arm64, x86
from gst.data.elf.binary import RELOCATION, Binary, Section
from gst.data.elf.functions import function_bounds
from gst.data.elf.instructions import CALLS_SLOT, JUMPS_TO_CODE, JUMPS_TO_SLOT, KINDS, PADDING

MACHINES = {"x86-64": x86, "aarch64": arm64}
MISSING = -1


@dataclass(frozen=True, eq=False)
class CallGraph:
    """Functions, ascending by address, and after them the functions imported from elsewhere, by name.

    Args:
        bounds: first address and end of each function.
        instructions: how many of each of `KINDS` a function has.
        imports: names of the imported functions that are called.
        edges: row 0 calls row 1, directly or by a jump to its start; every pair once.
        unresolved: calls, other than indirect ones, of which the callee was not found.
    """

    bounds: Int64[np.ndarray, "functions 2"]
    instructions: Int64[np.ndarray, "functions kinds"]
    imports: tuple[str, ...]
    edges: Int64[np.ndarray, "2 edges"]
    unresolved: int

    @property
    def num_nodes(self) -> int:
        return len(self.bounds) + len(self.imports)


def call_graph(binary: Binary) -> CallGraph:
    """Disassemble every function; resolve its calls and the jumps that leave it.

    A call through the linkage table (`.plt`) or a slot in memory (an entry of the global offset table, a global
    pointer) leads to the function whose address the loader will put there: one of this binary, or an imported one.
    Calls through other pointers, and calls into the middle of a function, lead nowhere.

    Raises:
        ValueError: no functions are found; the message is the reason.
    """
    bounds = function_bounds(binary)
    if not len(bounds):
        raise ValueError("no function bounds (neither .eh_frame nor .gopclntab)")
    instructions, (callers, targets, modes) = _disassemble(binary, bounds)
    callees = _position(bounds[:, 0], targets)
    slots = np.where(modes >= CALLS_SLOT, targets, _slots_of_stubs(binary, targets))
    linked = slots != MISSING
    callees[linked], imports = _loaded(binary, bounds[:, 0], slots[linked])

    jumps = (modes == JUMPS_TO_CODE) | (modes == JUMPS_TO_SLOT)
    found = (callees != MISSING) & ~(jumps & (callers == callees))  # a jump to one's own start is a loop
    num_nodes = len(bounds) + len(imports)
    edges = np.stack(np.divmod(np.unique(callers[found] * num_nodes + callees[found]), num_nodes))
    return CallGraph(bounds, instructions, imports, edges, int((callees[~jumps] == MISSING).sum()))


def _disassemble(binary: Binary, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Instructions of each function by kind; caller, target address and mode of each branch that leaves a function."""
    counts, branches = [np.zeros((0, len(KINDS)), np.int64)], [np.zeros((3, 0), np.int64)]
    for section in binary.code():
        first, last = np.searchsorted(bounds[:, 0], [section.address, section.end])
        inside = bounds[first:last] - section.address
        swept = MACHINES[binary.machine].sweep(_padded(binary, section), inside[:, 0], inside[:, 1])
        counts.append(swept[0])
        branches.append(swept[1] + [[first], [section.address], [0]])
    return np.concatenate(counts), np.concatenate(branches, axis=1)


def _padded(binary: Binary, section: Section) -> np.ndarray:
    content = binary.data[section.offset : section.offset + section.size]
    return np.concatenate([content, np.zeros(PADDING, np.uint8)])


def _position(sorted_numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(sorted_numbers, wanted), len(sorted_numbers) - 1)
    return np.where(sorted_numbers[place] == wanted, place, MISSING)


def _slots_of_stubs(binary: Binary, targets: np.ndarray) -> np.ndarray:
    """The slot through which the stub at each target jumps; MISSING where there is no stub."""
    slots = np.full(len(targets), MISSING)
    for section in binary.linkage_tables():
        inside = np.flatnonzero((targets >= section.address) & (targets < section.end))
        stubs, which = np.unique(targets[inside] - section.address, return_inverse=True)
        found = MACHINES[binary.machine].stub_slots(_padded(binary, section), stubs, section.address)
        slots[inside] = found[which]
    return slots


def _loaded(binary: Binary, starts: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Node of the function whose address the loader puts in each slot, and the names of the imported ones."""
    distinct, which = np.unique(slots, return_inverse=True)
    named, addresses = {}, np.full(len(distinct), MISSING)
    for i, filling in enumerate(_fillings(binary, distinct)):
        if isinstance(filling, str):
            named[i] = filling
        elif 0 <= filling <= starts[-1]:
            addresses[i] = filling
    nodes = _position(starts, addresses)
    imports = sorted(set(named.values()))
    number = {name: len(starts) + i for i, name in enumerate(imports)}
    nodes[list(named)] = [number[name] for name in named.values()]
    return nodes[which], tuple(imports)


def _fillings(binary: Binary, slots: np.ndarray) -> list[int | str]:
    """What each slot will hold: an address of this binary or the name of an import."""
    machine = MACHINES[binary.machine]
    relocations = np.concatenate([binary.table(name, RELOCATION) for name in (".rela.plt", ".rela.dyn")])
    relocations = relocations[np.isin(relocations["offset"], slots)]
    rows = dict(zip(relocations["offset"].tolist(), relocations.tolist(), strict=True))
    fillings: list[int | str] = []
    for slot in slots.tolist():
        _, kind, symbol, addend = rows.get(slot, (slot, None, 0, 0))
        if kind in machine.SYMBOLIC and symbol < len(binary.symbols):
            entry = binary.symbols[symbol]
            fillings.append(int(entry["value"]) if entry["section"] else binary.string(int(entry["name"])))
        else:
            fillings.append(addend if kind in machine.RELATIVE else binary.word(slot))
    return fillings
