"""Circuits and recipes of a folder or of an archive, under names that do not depend on where they lie."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.reproductions.circuits.circuit import SUFFIXES, Circuit, read_circuit
from experiments.reproductions.dataset_files import dataset_files
from gst.util.compiled import cache_directory
from gst.util.writing import atomic_path

SHARED = Path("../shared/data/circuits.tar.xz")
CIRCUITS = re.compile(r"(.*[.](?:bench|aig))")


def cache() -> Path:
    """Return the cache of archives and labels: `$XDG_CACHE_HOME/gst/circuits`, or `~/.cache/gst/circuits`."""
    return cache_directory() / "circuits"


@dataclass(frozen=True)
class CircuitFile:
    """A file of a circuit.

    Args:
        name: its path below the folder or in the archive, without the suffix.
    """

    name: str
    path: Path

    @property
    def design(self) -> str:
        """The design of this version or part: splits by design keep these together.

        Examples:
            >>> CircuitFile("cones/openabcd/div_orig+3", Path("x.aig")).design
            'div'
        """
        return self.name.rpartition("/")[2].partition("+")[0].removesuffix("_orig")

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that differ when the content does."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def read(self) -> Circuit:
        return read_circuit(self.path)


def circuit_files(data: Path) -> list[CircuitFile]:
    """Circuits below a folder, of an archive, or of one file, sorted by name.

    Raises:
        ValueError: there are none, or the archive is damaged or names a place outside itself.
    """
    if data.is_dir():
        root, paths = data, sorted(path for path in data.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    elif data.suffix in SUFFIXES and data.is_file():
        root, paths = data.parent, [data]
    else:
        root = unpacked(data)
        paths = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES)
    if not paths:
        raise ValueError(f"{data}: holds no circuit ({' or '.join('*' + suffix for suffix in SUFFIXES)})")
    files = {}
    for path in paths:
        name = path.relative_to(root).with_suffix("").as_posix()
        files[name if name not in files else path.relative_to(root).as_posix()] = path
    return sorted((CircuitFile(name, path) for name, path in files.items()), key=lambda file: file.name)


def unpacked(archive: Path) -> Path:
    """Return the folder with the circuits of a tar archive, which are written once.

    Raises:
        ValueError: the archive is missing or damaged, a name leads out of it, or a file is too large.
    """
    if not archive.is_file():
        raise ValueError(f"{archive}: there is no such file or folder")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    folder = cache() / "archives" / digest
    if (folder / "complete").is_file():
        return folder
    for name, content in dataset_files(archive, CIRCUITS, "circuits"):
        with atomic_path(folder / name) as target:
            target.write_bytes(content)
    with atomic_path(folder / "complete") as mark:
        mark.touch()
    return folder
