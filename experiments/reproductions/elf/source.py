"""The call graphs of the ELF binaries of a machine, as a dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.reproductions.elf.binary import open_binary
from experiments.reproductions.elf.calls import call_graph, language, node_features
from experiments.reproductions.elf.files import Package, binaries, groups, large_files, owners, reason
from gst.data.source import GraphSource
from gst.graphs.graph import Graph

VERSION = 1  # of what is read
LABELS = ("language", "section")


@dataclass(frozen=True)
class Found:
    """A binary, the group it may not be split from, and its class."""

    path: Path
    group: str
    label: str


@dataclass(frozen=True)
class ElfBinaries(GraphSource):
    """Function-call graphs of the programs and libraries below a folder: the kin of MalNet, on any Debian machine.

    Nodes are functions, edges lead from caller to callee (see `call_graph`), node features are `NODE_FEATURES`. Graphs
    are named `group/path`. Files that may share code are in one group, so hold out whole groups (`group_of`). A file
    that is no readable binary of a known machine is left out; `skipped` says why.

    Args:
        root: where to look. Symbolic links are not followed; hard links to a file and copies of it do not count.
        label: what the target is. `language` (it was written in; plain features of the code tell much of it) and
            `section` (of its Debian package): the place of the class in `classes`.
        min_bytes: smaller files are left out.
        limit: at most so many binaries, evenly from all.
        min_groups: classes that fewer groups have are left out.
        dpkg: the database of the package manager.
    """

    root: str = "/usr"
    label: Literal["language", "section"] = "language"
    min_bytes: int = 100_000
    limit: int | None = None
    min_groups: int = 5
    dpkg: str = "/var/lib/dpkg"

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ValueError(f"label is {self.label!r}; choose one of {', '.join(LABELS)}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit}; it starts at 1, leave it out for all")

    def __iter__(self) -> Iterator[Graph]:
        for found in self.binaries:
            try:
                graph = self._read(found)
            except (ValueError, OSError) as error:
                self.skipped[found.path] = reason(error)
                continue
            yield graph

    def __len__(self) -> int:
        return len(self.binaries)

    def fingerprint(self) -> str:
        """Equal for equal files, labels and settings, so that a prepared dataset is found without reading them all."""
        digest = hashlib.sha256(repr((VERSION, astuple(self))).encode())
        for found in self.binaries:
            digest.update(repr(found).encode())
            with suppress(OSError):  # it vanished, and will be skipped
                status = found.path.stat()
                digest.update(repr((status.st_size, status.st_mtime_ns)).encode())
        return f"ELF binaries {digest.hexdigest()}"

    @cached_property
    def skipped(self) -> dict[Path, str]:
        """Files that were left out, and why; it grows while graphs are read."""
        return {}

    @cached_property
    def binaries(self) -> tuple[Found, ...]:
        """Binaries with their groups and labels, by path. Reading a graph may still fail.

        Raises:
            ValueError: nothing was found.
        """
        found = self._labelled
        count = min(self.limit or len(found), len(found))
        return tuple(found[i * len(found) // count] for i in range(count))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers."""
        return tuple(sorted({found.label for found in self._labelled}))

    @cached_property
    def _labelled(self) -> tuple[Found, ...]:
        try:
            import elftools  # noqa: F401 (asked for once, lest every file be skipped)
        except ImportError as error:
            raise ValueError(
                "reading binaries takes pyelftools; pip install 'graph-segment-training[experiments]'"
            ) from error
        root = Path(self.root).resolve()
        if not root.is_dir():
            raise ValueError(f"{self.root} is no folder; give one that holds programs and libraries, such as /usr")
        paths = binaries(large_files(root, self.min_bytes, self.skipped), self.skipped)
        packages = owners(paths, Path(self.dpkg))
        found = []
        for path, group in zip(paths, groups(paths, packages), strict=True):
            try:
                label = self._class(path, packages.get(path))
            except (ValueError, OSError) as error:
                self.skipped[path] = reason(error)
                continue
            if label:
                found.append(Found(path, group, label))
            else:
                self.skipped[path] = f"no {self.label} known"
        found = self._without_rare_classes(found)
        if not found:
            raise ValueError(
                f"{self.root} holds no binaries of at least {self.min_bytes} bytes whose {self.label} is shared by "
                f"{self.min_groups} groups ({len(paths)} before labelling); try another root, label or size"
            )
        return tuple(found)

    def _class(self, path: Path, package: Package | None) -> str:
        if self.label == "language":
            return language(open_binary(path))
        return package.section if package else ""

    def _without_rare_classes(self, found: list[Found]) -> list[Found]:
        members: dict[str, set[str]] = {}
        for one in found:
            members.setdefault(one.label, set()).add(one.group)
        rare = {label for label, groups in members.items() if len(groups) < self.min_groups}
        self.skipped.update((one.path, f"{self.label} {one.label} is rare") for one in found if one.label in rare)
        return [one for one in found if one.label not in rare]

    def _read(self, found: Found) -> Graph:
        calls = call_graph(open_binary(found.path))
        target = float(self.classes.index(found.label))
        path = os.fsencode(found.path.relative_to(Path(self.root).resolve())).decode(errors="backslashreplace")
        return Graph(node_features(calls), calls.edges, targets=np.array([target]), name=f"{found.group}/{path}")
