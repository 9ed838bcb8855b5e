"""Sources of graphs: the base class of datasets, and the fingerprint of files that a dataset is read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gst.graphs.graph import Graph
from gst.util.addresses import Address, details


class GraphSource(ABC):
    """A dataset of graphs. Subclass it, define `__iter__`, and name the class by `class_path` in a configuration file.

    Optional: `fingerprint() -> str`, equal for equal graphs, lets `gst.prepare` find its segment store without reading
    them; `items()`, a sequence, and `load(item)`, the graph of one, let the hosts of a cluster read them; `__len__`, an
    approximate number for progress bars; `classes`, names by number, and `skipped`, reasons by item left out or a
    `Counter` of reasons, which `gst prepare` prints; `file_rows(name)`, the `gst.data.tpugraphs.FileRows` of a graph,
    by which `gst predict` numbers configurations as the file does; `unit`, of the targets, and `opcode_names`, by
    number, for the report.

    Examples:
        >>> import numpy as np
        >>> class Triangle(GraphSource):
        ...     def __iter__(self):
        ...         edges = np.array([[0, 1, 2], [1, 2, 0]])
        ...         yield Graph(np.ones((3, 1), np.float32), edges, targets=np.array([5.0]), name="triangle")
        >>> [(graph.name, graph.num_nodes) for graph in Triangle()]
        [('triangle', 3)]
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Graph]:
        """Yield the graphs, the same at every call; names are unique."""


class ItemSource(GraphSource):
    """A dataset whose graphs are read one by one, by many hosts at once; subclasses define `items` and `load`."""

    @abstractmethod
    def items(self) -> Sequence[Any]:
        """Return what is read, in order: files, for example."""

    @abstractmethod
    def load(self, item: Any) -> Graph:
        """Return the graph of an item."""

    def __iter__(self) -> Iterator[Graph]:
        return map(self.load, self.items())

    def __len__(self) -> int:
        return len(self.items())


def group_of(name: str) -> str:
    """Return the group in the name of a graph; a split by groups keeps each group in one part.

    Examples:
        >>> group_of("llvm-toolchain/bin/clang")
        'llvm-toolchain'
    """
    return name.partition("/")[0]


def fingerprint_of_files(paths: Iterable[Path | Address], reader: str) -> str:
    """Join `reader` (name, version, settings) with path, size and time of change of every file, which is not read.

    Of an address the tag of the object stands for its time of change; without a tag the result is "", for unknown."""
    lines = [reader]
    for path in paths:
        if isinstance(path, Address):
            if (found := details(path, from_listing=True)) is None or not found.tag:
                return ""
            lines.append(f"{path} {found.size} {found.tag}")
            continue
        status = path.stat()
        lines.append(f"{path.absolute()} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(lines)
