"""Call graphs of binaries: nodes, edges, node features and labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64

from experiments.reproductions.elf.binary import RELOCATION, Binary, Section
from experiments.reproductions.elf.code import (
    CALLS_SLOT,
    JUMPS_TO_CODE,
    JUMPS_TO_SLOT,
    KINDS,
    RELATIVE,
    SYMBOLIC,
    stub_slots,
    sweep,
)
from experiments.reproductions.elf.functions import GO_MARKS, function_bounds
from gst.data.malnet import DEGREE_COLUMNS, degree_profile

MISSING = -1
TEXTS = (".rodata", ".data.rel.ro")
NODE_FEATURES = (
    *(f"log_{column}" for column in DEGREE_COLUMNS), "log_callers", "log_callees", "log_bytes",
    "log_instructions", "imported",
    *(f"share_of_{kind}" for kind in KINDS),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class CallGraph:
    """Functions, ascending by address, and after them the functions imported from elsewhere, by name.

    Args:
        bounds: first address and end of each function.
        instructions: how many of each of `KINDS` a function has.
        imports: names of the imported functions that are called.
        edges: row 0 calls row 1, directly or by a jump to its start; every pair once.
        unresolved: direct calls with an unknown callee.
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
        ValueError: the binary has no table of functions.
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
    resolved = (callees != MISSING) & ~(jumps & (callers == callees))  # a jump to one's own start is a loop
    num_nodes = len(bounds) + len(imports)
    edges = np.stack(np.divmod(np.unique(callers[resolved] * num_nodes + callees[resolved]), num_nodes))
    return CallGraph(bounds, instructions, imports, edges, int((callees[~jumps] == MISSING).sum()))


def _disassemble(binary: Binary, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Instructions of each function by kind; caller, target address and mode of each branch that leaves a function."""
    counts, branches = [np.zeros((0, len(KINDS)), np.int64)], [np.zeros((3, 0), np.int64)]
    for section in binary.code():
        first, last = np.searchsorted(bounds[:, 0], [section.address, section.end])
        of_section = sweep(_code(binary, section), section.address, bounds[first:last])
        counts.append(of_section[0])
        branches.append(of_section[1] + [[first], [0], [0]])
    return np.concatenate(counts), np.concatenate(branches, axis=1)


def _code(binary: Binary, section: Section) -> np.ndarray:
    return binary.data[section.offset : section.offset + section.size]


def _position(sorted_numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(sorted_numbers, wanted), len(sorted_numbers) - 1)
    return np.where(sorted_numbers[place] == wanted, place, MISSING)


def _slots_of_stubs(binary: Binary, targets: np.ndarray) -> np.ndarray:
    """Address of the slot through which the stub at each target jumps; MISSING for targets that are no stub."""
    slots = np.full(len(targets), MISSING)
    for section in binary.linkage_tables():
        inside = np.flatnonzero((targets >= section.address) & (targets < section.end))
        stubs, which = np.unique(targets[inside], return_inverse=True)
        slots[inside] = stub_slots(_code(binary, section), section.address, stubs)[which]
    return slots


def _loaded(binary: Binary, starts: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Node of the function whose address the loader writes to each slot, and the names of the imported functions."""
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
    """Content of each slot after loading: an address of this binary or the name of an import."""
    relocations = np.concatenate([binary.table(name, RELOCATION) for name in (".rela.plt", ".rela.dyn")])
    relocations = relocations[np.isin(relocations["offset"], slots)]
    rows = dict(zip(relocations["offset"].tolist(), relocations.tolist(), strict=True))
    fillings: list[int | str] = []
    for slot in slots.tolist():
        _, kind, symbol, addend = rows.get(slot, (slot, None, 0, 0))
        if kind in SYMBOLIC and symbol < len(binary.symbols):
            entry = binary.symbols[symbol]
            fillings.append(int(entry["value"]) if entry["section"] else binary.string(int(entry["name"])))
        else:
            fillings.append(addend if kind in RELATIVE else binary.word(slot))
    return fillings


# Node features -------------------------------------------------------------------------------------------------------


def node_features(graph: CallGraph) -> Float32[np.ndarray, "nodes features"]:
    """The columns of `NODE_FEATURES`: the local degree profile, numbers of callers and callees, of bytes and
    instructions, all as log(1 + number); 1 for an imported function; the share of each kind among its instructions.

    Columns that describe code are 0 for an imported function.
    """
    functions, instructions = len(graph.bounds), graph.instructions.sum(1)
    counts = np.zeros((graph.num_nodes, 4))
    counts[:, 0] = np.bincount(graph.edges[1], minlength=graph.num_nodes)
    counts[:, 1] = np.bincount(graph.edges[0], minlength=graph.num_nodes)
    counts[:functions, 2] = graph.bounds[:, 1] - graph.bounds[:, 0]
    counts[:functions, 3] = instructions
    imported = np.arange(graph.num_nodes) >= functions
    shares = np.zeros((graph.num_nodes, len(KINDS)))
    shares[:functions] = graph.instructions / np.maximum(instructions, 1)[:, None]
    profile = degree_profile(graph.edges, graph.num_nodes)
    return np.column_stack([np.log1p(profile), np.log1p(counts), imported, shares]).astype(np.float32)


# Labels --------------------------------------------------------------------------------------------------------------


def language(binary: Binary) -> str:
    """The programming language of most of the binary, by the traces of its compiler.

    Go by its build information; Rust by its compiler's name in `.comment` or the paths of its library; C++ by the
    libraries it needs, by mangled names, or by the type names of a C++ library linked into it; C otherwise.
    """
    if binary.section(*GO_MARKS):
        return "Go"
    if _holds(binary, (".comment",), b"rustc version") or _holds(binary, TEXTS, b"/rustc/"):
        return "Rust"
    needed = binary.needed()
    if any(name.startswith(("libstdc++.", "libc++.")) for name in needed):
        return "C++"
    mangled = _holds(binary, (".dynstr",), b"\0_ZN", b"\0_ZS", b"\0_ZT")
    return "C++" if mangled or _holds(binary, TEXTS, b"St9bad_alloc", b"N10__cxxabiv1") else "C"


def _holds(binary: Binary, sections: tuple[str, ...], *words: bytes) -> bool:
    contents = (binary.content(name).tobytes() for name in sections)
    return any(word in content for content in contents for word in words)
