"""MalNet: function-call graphs of Android programs, as edge lists (Freitas et al., NeurIPS 2021, arXiv 2011.07682)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

from gst.data.source import ItemSource, fingerprint_of_files
from gst.graphs.graph import Graph
from partitioners.csr import symmetric_csr

VERSION = 1  # of what is read
PARTS = ("train", "val", "test")
LARGEST_ID = 10**18
DEGREE_COLUMNS = ("degree", "least_around", "greatest_around", "mean_around", "deviation_around")


def read_edge_list(path: Path) -> Int64[np.ndarray, "2 edges"]:
    """Read a file with one edge `caller callee` a line; empty lines and lines that start with # are skipped.

    Nodes are renumbered in the order of their ids. Another line, or no edge, raises ValueError with file and line.

    Examples:
        >>> text = Path("app.edgelist").write_text("# caller callee\\n10 7\\n7 42\\n")
        >>> read_edge_list(Path("app.edgelist")).tolist()
        [[1, 0], [0, 2]]
    """
    ids: list[int] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        words, shown = line.split(), f"got {line[:40].decode(errors='replace')!r}"
        if not words or words[0].startswith(b"#"):
            continue
        if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
            raise ValueError(f"{path}, line {number}: {shown}, want two node ids such as `12 7`")
        if max(len(word) for word in words) > len(str(LARGEST_ID)):
            raise ValueError(f"{path}, line {number}: {shown}, a node id of more than {LARGEST_ID}")
        ids += map(int, words)
    if not ids:
        raise ValueError(f"{path} holds no edges; it is empty or cut off, fetch it again")
    nodes = np.unique(np.array(ids), return_inverse=True)[1]
    return np.ascontiguousarray(nodes.reshape(-1, 2).T)


def degree_profile(edges: Int64[np.ndarray, "2 edges"], num_nodes: int) -> Float64[np.ndarray, "nodes 5"]:
    """Return the degree of each node, and least, greatest, mean and standard deviation of its neighbours' degrees.

    Examples:
        >>> degree_profile(np.array([[0, 0, 0], [1, 2, 3]]), num_nodes=4)[:2].tolist()
        [[3.0, 1.0, 1.0, 1.0, 0.0], [1.0, 3.0, 3.0, 3.0, 0.0]]

    Source: Cai & Wang 2018, arXiv 1811.03508, section 3. The graph counts as undirected, without self-loops and
    parallel edges; a node without neighbours has a row of zeros. A single neighbour has the deviation 0.
    """
    graph = symmetric_csr(edges, num_nodes)
    degrees = np.diff(graph.starts)
    profile = np.zeros((num_nodes, len(DEGREE_COLUMNS)))
    connected = np.flatnonzero(degrees)
    starts, sizes = graph.starts[connected], degrees[connected]
    around = degrees[graph.neighbours].astype(np.float64)
    if len(connected):
        means = np.add.reduceat(around, starts) / sizes
        squares = np.add.reduceat((around - np.repeat(means, sizes)) ** 2, starts)
        least, greatest = np.minimum.reduceat(around, starts), np.maximum.reduceat(around, starts)
        profile[connected] = np.stack([sizes, least, greatest, means, np.sqrt(squares / sizes)], axis=1)
    return profile


@dataclass(frozen=True)
class MalNet(ItemSource):
    """MalNet, or MalNet-Tiny, unpacked: files `type/family/hash.edgelist`.

    The target is the place of the type in `classes`; node features are log(1 + number) of the local degree profile.

    Args:
        root: the folder of the types (`malnet-graphs-tiny`).
        splits: the folder with `train.txt`, `val.txt` and `test.txt` (`split_info_tiny/type`), which name a graph
            `type/family/hash` in each line.
    """

    root: str
    part: Literal["all", "train", "val", "test"] = "all"
    splits: str | None = None

    def __post_init__(self) -> None:
        if self.part not in ("all", *PARTS):
            raise ValueError(f"part is {self.part!r}; choose all, {', '.join(PARTS)}")
        if self.part != "all" and self.splits is None:
            raise ValueError(f"which graphs are in part {self.part!r}? give splits, the folder of {self.part}.txt")

    def items(self) -> tuple[Path, ...]:
        """Return the files, which hosts may read at once."""
        return self.files

    def load(self, item: Path) -> Graph:
        """Return the graph of a file."""
        return _read(item, self._numbers[item.parent.parent.name])

    def fingerprint(self) -> str:
        """Return the same text for equal files."""
        return fingerprint_of_files(self.files, f"MalNet {VERSION} {self.classes}")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the types in the order of their numbers, the same for every part."""
        return tuple(sorted({path.parent.parent.name for path in self._everything}))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def _everything(self) -> tuple[Path, ...]:
        paths = tuple(sorted(Path(self.root).glob("*/*/*.edgelist")))
        if not paths:
            raise ValueError(f"{self.root} holds no type/family/hash.edgelist; give the folder that was unpacked")
        return paths

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Edge lists of the part; ValueError with file and line if one is missing."""
        if self.part == "all":
            return self._everything
        listing = Path(str(self.splits)) / f"{self.part}.txt"
        if not listing.is_file():
            raise ValueError(f"{listing}: there is no such file; give the folder with {self.part}.txt as splits")
        return tuple(self._listed(listing))

    def _listed(self, listing: Path) -> Iterator[Path]:
        for number, line in enumerate(listing.read_text(errors="replace").splitlines(), 1):
            if name := line.strip():
                path = Path(self.root, f"{name}.edgelist")
                if name.count("/") != 2 or name.startswith("/") or ".." in name or not path.is_file():
                    raise ValueError(f"{listing}, line {number}: {name!r} is no type/family/hash below {self.root}")
                yield path


def _read(path: Path, target: int) -> Graph:
    edges = read_edge_list(path)
    features = np.log1p(degree_profile(edges, int(edges.max()) + 1)).astype(np.float32)
    name = ".".join([*path.parts[-3:-1], path.stem])
    return Graph(features, edges, targets=np.array([float(target)]), name=name)
