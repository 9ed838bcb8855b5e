"""Binaries of a folder as a dataset: what is found, how it is labelled, and what may not be split."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from experiments.reproductions.elf import NODE_FEATURES, ElfBinaries
from experiments.reproductions.elf.files import Package, groups
from gst.data import group_of
from gst.graphs.graph import Graph
from tests.files import FIXTURES

LIBRARY = FIXTURES / "elf" / "calls_x86_64.so"


def installed(root: Path, *names: str, text: bytes = b"") -> None:
    """Different libraries, by bytes after the end of what is loaded."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LIBRARY.read_bytes() + os.fsencode(name) + text)


def database(root: Path, **packages: tuple[str, str, list[str]]) -> Path:
    """A package manager's, of name -> (source, section, files)."""
    info = root / "dpkg" / "info"
    info.mkdir(parents=True)
    paragraphs = []
    for name, (source, section, files) in packages.items():
        paragraphs.append(
            f"Package: {name}\nStatus: install ok installed\nSection: {section}\nSource: {source} (1:2-3)\n"
            "Description: no\n field: here\n"
        )
        (info / f"{name}:amd64.list").write_text("/.\n" + "".join(f"{file}\n" for file in files))
    (root / "dpkg" / "status").write_text("\n".join(paragraphs))
    return root / "dpkg"


def source(root: Path, **arguments: object) -> ElfBinaries:
    options = {"min_bytes": 1000, "min_groups": 1, "dpkg": str(root / "dpkg")} | arguments
    return ElfBinaries(str(root / "usr"), **options)  # type: ignore[arg-type]


def test_every_file_counts_once_and_what_is_skipped_has_a_reason(tmp_path: Path) -> None:
    root = tmp_path / "usr"
    installed(root, "lib/one.so", "bin/two")
    (root / "lib" / "link.so").symlink_to("one.so")
    (root / "lib" / "circle").symlink_to(root, target_is_directory=True)
    (root / "lib" / "nowhere").symlink_to("gone")
    os.link(root / "bin" / "two", root / "bin" / "two-again")
    shutil.copy(root / "bin" / "two", root / "bin" / "zwei")
    os.mkfifo(root / "bin" / "pipe")
    (root / "text").write_bytes(b"words " * 1000)
    (root / "small").write_bytes(LIBRARY.read_bytes()[:999])
    (root / "short").write_bytes(LIBRARY.read_bytes()[:3000])
    found = source(tmp_path)
    graphs = list(found)
    assert [graph.name.partition("/")[2] for graph in graphs] == ["bin/two", "lib/one.so"]
    reasons = {path.relative_to(root).as_posix(): reason for path, reason in found.skipped.items()}
    assert set(reasons) == {"bin/zwei", "text", "short"}
    assert reasons["bin/zwei"] == "a copy of another file" and reasons["text"] == "not an ELF file"
    assert reasons["short"].startswith("damaged")


def test_graphs_are_named_by_group_and_path_and_the_same_at_every_call(tmp_path: Path) -> None:
    installed(tmp_path / "usr", "lib/libone.so.1", "bin/two")
    dpkg = database(tmp_path, one=("one-1.2", "libs", [str(tmp_path / "usr/lib/libone.so.1")]))
    found = source(tmp_path)
    first, second = list(found), list(found)
    assert [graph.name for graph in first][1] == "one/lib/libone.so.1" and dpkg.is_dir()
    assert [graph.digest() for graph in first] == [graph.digest() for graph in second]
    assert all(isinstance(graph, Graph) and graph.node_features.shape == (9, len(NODE_FEATURES)) for graph in first)
    assert first[0].targets.tolist() == first[1].targets.tolist() == [0.0]
    assert group_of("one/lib/libone.so.1") == "one"


def test_files_that_may_share_code_share_a_group() -> None:
    llvm14, llvm15, gcc = (Package(name, name, "libs") for name in ("llvm-toolchain-14", "llvm-toolchain-15", "gcc-12"))
    owned = {
        Path("/usr/lib/libLLVM-14.so.1"): llvm14,
        Path("/usr/lib/libLLVM-15.so.1"): llvm15,
        Path("/usr/bin/cpp"): gcc,
        Path("/usr/lib/libstdc++.so.6.0.30"): gcc,
    }
    loose = {
        Path("/usr/local/cuda-13.0/lib/libstdc++.so.6"): "brings the C++ library with it",
        Path("/usr/local/cuda-13.0/bin/ptxas"): "lies beside it",
        Path("/usr/local/bin/docker"): "shares nothing",
    }
    paths = [*owned, *loose]
    found = dict(zip(paths, groups(paths, owned), strict=True))
    assert found[paths[0]] == found[paths[1]] == "llvm-toolchain"
    assert found[paths[2]] == found[paths[3]] == found[paths[4]] == found[paths[5]] == "gcc"
    assert found[paths[6]] == "usr-local-bin"
    assert groups([], {}) == []
