"""Sources of graphs: the base class of datasets, and the fingerprint of files that a dataset is read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gst.graphs.graph import Graph


class GraphSource(ABC):
    """A dataset of graphs. Subclass it, define `__iter__`, and name the class by `class_path` in a configuration file.

    Examples:
        >>> import numpy as np
        >>> class Triangle(GraphSource):
        ...     def __iter__(self):
        ...         edges = np.array([[0, 1, 2], [1, 2, 0]])
        ...         yield Graph(np.ones((3, 1), np.float32), edges, targets=np.array([5.0]), name="triangle")
        >>> [(graph.name, graph.num_nodes) for graph in Triangle()]
        [('triangle', 3)]

    A source may have a method `fingerprint() -> str`, equal for equal graphs, so that `gst.prepare` finds its segment
    store without reading the graphs.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Graph]:
        """The graphs, one after the other, the same at every call; names are unique."""

    def derivation(self) -> dict[str, Any]:
        """How graphs are derived from the files, as arguments of `gst.data.tpugraphs.derived`; checkpoints record it,
        so that `gst rank` prepares its graph alike. Empty if the source derives nothing."""
        return {}


def group_of(name: str) -> str:
    """The group in the name of a graph, which a split by groups does not part.

    Examples:
        >>> group_of("llvm-toolchain/bin/clang")
        'llvm-toolchain'
    """
    return name.partition("/")[0]


def fingerprint_of_files(paths: Iterable[Path], reader: str) -> str:
    """Path, size in bytes and time of the last change of every file, as `make` compares them: no file is read.

    Args:
        reader: name, version and settings of the reader; another reader makes other graphs of the same files.
    """
    lines = [reader]
    for path in paths:
        status = path.stat()
        lines.append(f"{path.absolute()} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(lines)
