"""Binaries below a folder, the Debian packages that own them, and groups of files that a split must not part."""

from __future__ import annotations

import filecmp
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.reproductions.elf.binary import open_binary

COPY = "a copy of another file"
VERSION = re.compile(r"[-_.\d]+")
VERSION_AT_END = re.compile(r"[-_.\d]+$")


def large_files(root: Path, min_bytes: int, skipped: dict[Path, str]) -> Iterator[Path]:
    """Regular files of at least `min_bytes` bytes, by path; a file with several names (hard links) comes once.

    Args:
        skipped: receives folders that cannot be read and the reasons.
    """

    def note(error: OSError) -> None:
        skipped[Path(os.fsdecode(error.filename))] = reason(error)

    inodes: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root, onerror=note):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            try:
                status = path.lstat()
            except OSError as error:
                skipped[path] = reason(error)
                continue
            inode = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and status.st_size >= min_bytes and inode not in inodes:
                inodes.add(inode)
                yield path


def binaries(paths: Iterable[Path], skipped: dict[Path, str]) -> list[Path]:
    """The files that `open_binary` accepts, each content once.

    Args:
        skipped: receives the other files and the reasons.
    """
    result: list[Path] = []
    of_size: dict[int, list[Path]] = {}
    for path in paths:
        try:
            open_binary(path)
            twins = of_size.setdefault(path.stat().st_size, [])
            if any(filecmp.cmp(path, twin, shallow=False) for twin in twins):
                skipped[path] = COPY
                continue
        except (ValueError, OSError) as error:
            skipped[path] = reason(error)
            continue
        twins.append(path)
        result.append(path)
    return result


def reason(error: Exception) -> str:
    """The message of an error, without the name of the file."""
    return (error.strerror or "unreadable") if isinstance(error, OSError) else str(error)


@dataclass(frozen=True)
class Package:
    """A binary package: the source package it was built from, and its section (`libs`, `utils` ...), empty if
    it has none."""

    name: str
    source: str
    section: str


def owners(paths: Iterable[Path], dpkg: Path) -> dict[Path, Package]:
    """The Debian package of each of `paths` that belongs to one.

    Args:
        paths: without symbolic links.
        dpkg: the database of the package manager (`/var/lib/dpkg`). Without one nothing belongs to a package.
    """
    wanted: dict[str, set[Path]] = {}
    for path in paths:
        wanted.setdefault(path.name, set()).add(path)
    packages = _packages(dpkg / "status")
    found: dict[Path, Package] = {}
    folders: dict[str, Path] = {}  # a list may name a folder by a link, such as /lib
    for listing in sorted((dpkg / "info").glob("*.list")):
        package = packages.get(listing.stem.partition(":")[0])
        if package is None:
            continue
        for line in listing.read_text(errors="surrogateescape").splitlines():
            folder, _, name = line.rpartition("/")
            if name in wanted and "\0" not in folder:
                path = folders.setdefault(folder, Path(os.path.realpath(folder or "/"))) / name
                if path in wanted[name]:
                    found[path] = package
    return found


def _packages(status: Path) -> dict[str, Package]:
    if not status.is_file():
        return {}
    packages = {}
    for paragraph in status.read_text(errors="replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[\w-]+: ", line))
        if "Package" in fields:
            name = fields["Package"]
            section = fields.get("Section", "").rpartition("/")[2]
            packages[name] = Package(name, fields.get("Source", name).partition(" ")[0], section)
    return packages


def groups(paths: Sequence[Path], packages: Mapping[Path, Package]) -> list[str]:
    """Group of each file: files that may share code are in one group, which no split should part.

    Files share a group when they come from one source package or, without a package, from one folder three levels deep;
    versions are left out of these names (`llvm-toolchain-14` and `-15` are one). Groups that hold files of the same
    name, versions aside, are joined.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    origins = [_origin(path, packages.get(path)) for path in paths]
    names, origin = np.unique(origins, return_inverse=True)
    _, stem = np.unique([VERSION.sub("", path.name) for path in paths], return_inverse=True)
    size = len(names) + len(paths)
    joined = coo_array((np.ones(len(paths)), (origin, len(names) + stem)), (size, size))
    component = connected_components(joined, directed=False)[1][: len(names)]
    first = names[np.unique(component, return_index=True)[1]]
    return [str(name) for name in first[component[origin]]]


def _origin(path: Path, package: Package | None) -> str:
    name = package.source if package else "-".join(path.parent.parts[1:4])
    return VERSION_AT_END.sub("", name) or name
