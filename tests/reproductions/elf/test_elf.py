"""Call graphs of binaries: one worked out by hand in every way it is linked, and damaged ones."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.elf import NODE_FEATURES, Binary, CallGraph, call_graph, node_features, open_binary
from experiments.reproductions.elf.binary import Section
from experiments.reproductions.elf.calls import language
from experiments.reproductions.elf.code import CALL, INDIRECT_CALL, JUMP, RETURN
from experiments.reproductions.elf.functions import function_bounds
from tests.files import FIXTURES

ELF = FIXTURES / "elf"
LIBRARY = ELF / "calls_x86_64.so"
LEAF, MIDDLE, SHARED, TOP, TAIL, RECURSE, THROUGH, LOOP, OUTSIDE = range(9)
EDGES = [
    (MIDDLE, LEAF), (SHARED, MIDDLE), (TOP, MIDDLE), (TOP, SHARED), (TOP, OUTSIDE), (TAIL, MIDDLE), (RECURSE, RECURSE),
]  # fmt: skip

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the twin reads x86-64 only")


def pairs(graph: CallGraph) -> list[tuple[int, int]]:
    return [(int(caller), int(callee)) for caller, callee in graph.edges.T]


def built(tmp_path: Path, *flags: str, language: str = "c", text: str | None = None) -> Path:
    source, library = tmp_path / f"source.{language}", tmp_path / "built.so"
    source.write_text((ELF / "calls.c").read_text() if text is None else text)
    command = ["gcc", "-fPIC", "-shared", "-o", str(library), *flags, str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return library


# A graph worked out by hand -------------------------------------------------------------------------


def test_the_calls_of_a_small_stripped_library() -> None:
    graph = call_graph(open_binary(LIBRARY))
    assert len(graph.bounds) == 8 and graph.imports == ("outside",) and graph.num_nodes == 9
    assert pairs(graph) == EDGES and graph.unresolved == 0
    sites = [
        (MIDDLE, CALL, 2), (SHARED, CALL, 1), (TOP, CALL, 3), (TAIL, CALL, 0), (TAIL, JUMP, 1), (THROUGH, CALL, 0),
        (THROUGH, INDIRECT_CALL, 1), (TAIL, RETURN, 0), (LEAF, RETURN, 1),
    ]  # fmt: skip
    assert all(graph.instructions[function, kind] == count for function, kind, count in sites)


@needs_gcc
@on_x86
@pytest.mark.parametrize("flags", [["-s"], ["-g"], ["-fno-plt"], ["-Wl,-z,now"], ["-fcf-protection=full"]], ids=str)
def test_whatever_way_it_is_linked(tmp_path: Path, flags: list[str]) -> None:
    library = built(tmp_path, "-O1", "-foptimize-sibling-calls", "-fno-inline", "-nostdlib", *flags)
    graph = call_graph(open_binary(library))
    assert pairs(graph) == EDGES and graph.imports == ("outside",)


# Bounds of functions, written byte by byte --------------------------------------------------------------


def made(*sections: tuple[str, int, bytes, bool]) -> Binary:
    """A binary of (name, address, content, executable)."""
    offset, found = 0, []
    for name, address, content, executable in sections:
        found.append(Section(name, address, offset, len(content), True, executable))
        offset += len(content)
    data = np.frombuffer(b"".join(content for _, _, content, _ in sections), np.uint8)
    return Binary(Path("made"), data, tuple(found))


def frames(encoding: int, entries: list[bytes]) -> bytes:
    common = struct.pack("<IB3sBBBBB", 0, 1, b"zR\0", 1, 0x78, 16, 1, encoding)
    table = struct.pack("<I", len(common)) + common
    for entry in entries:
        table += struct.pack("<II", 4 + len(entry), len(table) + 4) + entry
    return table + bytes(4)


CODE = (".text", 0x1000, b"\x90" * 64, True)


def test_call_frames_with_addresses_relative_and_absolute() -> None:
    absolute = frames(0x00, [struct.pack("<qq", 0x1000, 16), struct.pack("<qq", 0x1020, 8)])
    assert function_bounds(made(CODE, (".eh_frame", 0x2000, absolute, False))).tolist() == [[4096, 4112], [4128, 4136]]
    first = 0x2000 + 4 + 13 + 8  # where the first address stands
    relative = frames(0x1B, [struct.pack("<ii", 0x1000 - first, 16), struct.pack("<ii", 0x1020 - first - 16, 8)])
    assert function_bounds(made(CODE, (".eh_frame", 0x2000, relative, False))).tolist() == [[4096, 4112], [4128, 4136]]


def test_bounds_neither_overlap_nor_leave_their_section() -> None:
    entries = [(0x1000, 1 << 40), (0x1010, 8), (0x1010, 99), (0x1030, 999), (0x9000, 8), (0x1018, 0)]
    table = frames(0x00, [struct.pack("<qq", *entry) for entry in entries])
    bounds = function_bounds(made(CODE, (".eh_frame", 0x2000, table, False)))
    assert bounds.tolist() == [[0x1000, 0x1010], [0x1010, 0x1018], [0x1030, 0x1040]]


@pytest.mark.parametrize("name", [".gopclntab", ".data.rel.ro"])
@pytest.mark.parametrize("text", [0x1000, 0], ids=["text start in the header", "text start of the section"])
def test_functions_of_a_go_program(name: str, text: int) -> None:
    header = bytes.fromhex("f1ffffff00000108") + struct.pack("<8Q", 2, 1, text, 0, 0, 0, 0, 72)
    table = header + struct.pack("<5I", 0, 0, 24, 0, 40)
    padded = bytes(8 if name == ".data.rel.ro" else 0) + table + bytes(16)
    binary = made(CODE, (name, 0x2000, padded, False), (".go.buildinfo", 0x3000, b"\xff Go", False))
    assert function_bounds(binary).tolist() == [[0x1000, 0x1018], [0x1018, 0x1028]]
    assert language(binary) == "Go"


# What a node knows ------------------------------------------------------------------------------------


def test_features_of_nodes() -> None:
    graph = call_graph(open_binary(LIBRARY))
    features = node_features(graph)
    assert features.shape == (9, len(NODE_FEATURES)) and features.dtype == np.float32
    column = {name: features[:, i] for i, name in enumerate(NODE_FEATURES)}
    assert np.expm1(column["log_callers"]).round().tolist() == [1, 3, 1, 0, 0, 1, 0, 0, 1]
    assert np.expm1(column["log_callees"]).round().tolist() == [0, 1, 1, 3, 1, 1, 0, 0, 0]
    assert np.expm1(column["log_degree"]).round().tolist() == [1, 4, 2, 3, 1, 0, 0, 0, 1]
    assert np.expm1(column["log_bytes"][TOP]).round() == 38 and column["share_of_call"][TOP] == np.float32(3 / 15)
    assert column["imported"].tolist() == [0] * 8 + [1]
    shares = features[:, [name.startswith("share_of_") for name in NODE_FEATURES]]
    np.testing.assert_allclose(shares.sum(1), [1] * 8 + [0], rtol=1e-6)


def test_what_is_no_binary_is_refused_with_its_reason(tmp_path: Path) -> None:
    library = LIBRARY.read_bytes()
    for at, value, reason in [
        (0, b"#!/b", "not an ELF file"),
        (0x10, b"\1\0", "not a linked program"),
        (0x12, b"\3\0", "for another machine"),
        (0x3C, b"\xff\xff", "damaged"),
    ]:
        (tmp_path / "file").write_bytes(library[:at] + value + library[at + len(value) :])
        with pytest.raises(ValueError, match=reason):
            open_binary(tmp_path / "file")
    with pytest.raises(ValueError, match="no function bounds"):
        call_graph(made(CODE))


def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.write(LIBRARY.read_bytes())
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="larger than 1 GiB"):
        open_binary(tmp_path / "huge")
