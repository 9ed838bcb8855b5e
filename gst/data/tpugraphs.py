"""Genuine TpuGraphs npz files (Phothilimthana et al. 2023), layout and tile, as `Graph`s."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gst.data.derivation import derivation, derived
from gst.data.fingerprint import of_files
from gst.data.merging import merge_repeats
from gst.data.source import GraphSource
from gst.files.untrusted import read_arrays
from gst.files.writing import chunks
from gst.graphs.graph import Graph

VERSION = 1  # of what is read
OF_CONFIGURATIONS = {"node_config_feat", "config_feat", "config_runtime", "config_runtime_normalizers"}
LARGEST_EXACT = 2**53  # above it float64 no longer holds every integer
ROWS_AT_ONCE = 1024
IS_ROOT = 0  # column of the 140 node features that marks the root of a computation; the kernel's own comes last


def read(path: Path | str, merge: bool = True, rows: Sequence[int] | None = None) -> Graph:
    """Read a layout or a tile file; which of the two is seen from its arrays.

    Edges are stored as (consumer, producer) and come out producer -> consumer. Layout targets are runtimes in ns; tile
    targets are runtime / normaliser, the ratio that ranks them. A tile configuration belongs to the whole kernel and is
    given to its root. Layout configurations come out as int8, -1 being padding; those of tiles as int8 where that
    loses nothing, else as float32.

    Args:
        merge: repeated configurations become one, with the mean, the count and the spread (standard deviation) of their
            runtimes. If False there is one configuration for each row of the file, in its order.
        rows: the configurations to take, by their place in the file; all if not given. They are taken before any are
            merged, in this order and each as often as it is named, except that with `merge` a row named twice counts
            once: it was measured once.

    Raises:
        ValueError: the file is damaged, lacks an array, or holds impossible numbers; the message names it.
    """
    path = Path(path)
    arrays = read_arrays(path)
    try:
        _take_rows(arrays, rows, merge)
        graph = (
            _layout(path, arrays) if {"node_config_ids", "node_config_feat"} & arrays.keys() else _tile(path, arrays)
        )
        return merge_repeats(graph) if merge else graph
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@dataclass(frozen=True)
class TpuGraphs(GraphSource):
    """A dataset of TpuGraphs files.

    Args:
        files: paths or glob patterns of npz files.
        features: names of derived node features, see `gst.data.features.FEATURES`.
        reduction: what is left of each graph, see `gst.data.reduction.reduce`.

    Raises:
        ValueError: there is no such feature or reduction.
    """

    files: Sequence[str]
    features: Sequence[str] = ()
    reduction: str = "none"

    def __post_init__(self) -> None:
        derivation(self.features, self.reduction)

    def paths(self) -> list[Path]:
        """The files found, in the order of their patterns.

        Raises:
            ValueError: nothing matches a pattern.
        """
        found: list[Path] = []
        for pattern in self.files:
            matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (absolute patterns too)
            if not matches:
                raise ValueError(f"no file matches {pattern!r}; give paths or patterns of TpuGraphs npz files")
            found += map(Path, matches)
        return found

    def __iter__(self) -> Iterator[Graph]:
        return (derived(read(path), self.features, self.reduction) for path in self.paths())

    def fingerprint(self) -> str:
        """Equal for equal files and settings, so that a prepared dataset is found without reading them all."""
        return of_files(self.paths(), f"TpuGraphs {VERSION}{derivation(self.features, self.reduction)}")


def _take_rows(arrays: dict[str, np.ndarray], rows: Sequence[int] | None, merge: bool) -> None:
    if rows is None:
        return
    chosen = np.array(list(dict.fromkeys(rows)) if merge else rows, np.int64)
    for key in OF_CONFIGURATIONS & arrays.keys():
        length = len(arrays[key]) if arrays[key].ndim else 0
        outside = chosen[(chosen < 0) | (chosen >= length)]
        if len(outside):
            raise ValueError(f"configuration {outside[0]} is asked for, but {key} holds 0..{length - 1}; was it cut?")
        arrays[key] = arrays[key][chosen]


def _need(arrays: dict[str, np.ndarray], key: str, kinds: str, dims: int) -> np.ndarray:
    if key not in arrays:
        raise ValueError(f"array {key!r} is missing; the file holds {', '.join(sorted(arrays)) or 'nothing'}")
    array = arrays[key]
    if array.dtype.kind not in kinds or array.ndim != dims:
        wanted = "numbers" if "f" in kinds else "integers"
        raise ValueError(f"{key} is {array.dtype} of shape {array.shape}, want {wanted} in {dims} dimensions")
    return array


def _integers(arrays: dict[str, np.ndarray], key: str, dims: int) -> np.ndarray:
    array = _need(arrays, key, "iu", dims)
    if array.size and int(array.max()) > LARGEST_EXACT:
        raise ValueError(f"{key} holds {int(array.max())}, beyond 2**53: an overflow upstream, or not a runtime")
    return array.astype(np.int64)


def _runtimes(arrays: dict[str, np.ndarray], key: str, configs: int) -> np.ndarray:
    runtimes = _integers(arrays, key, 1)
    if len(runtimes) != configs:
        raise ValueError(f"{key} holds {len(runtimes)} entries for {configs} configurations")
    if runtimes.size and int(runtimes.min()) < 0:
        raise ValueError(f"{key} holds {int(runtimes.min())}; a runtime is not negative (an overflow upstream?)")
    return runtimes


def _nodes(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features = _need(arrays, "node_feat", "fiu", 2).astype(np.float32)
    opcodes = _integers(arrays, "node_opcode", 1)
    edges = _integers(arrays, "edge_index", 2)
    if edges.shape[1] != 2:
        raise ValueError(f"edge_index has shape {edges.shape}, want (edges, 2)")
    return features, opcodes, np.ascontiguousarray(edges[:, ::-1].T)


def _layout(path: Path, arrays: dict[str, np.ndarray]) -> Graph:
    features, opcodes, edges = _nodes(arrays)
    config_features = _need(arrays, "node_config_feat", "fiu", 3)
    runtimes = _runtimes(arrays, "config_runtime", len(config_features))
    config_nodes = _integers(arrays, "node_config_ids", 1)
    return Graph(
        features,
        edges,
        opcodes,
        config_nodes,
        _compact(config_features),
        runtimes.astype(np.float64),
        name=path.stem,
    )


def _tile(path: Path, arrays: dict[str, np.ndarray]) -> Graph:
    features, opcodes, edges = _nodes(arrays)
    config_features = _need(arrays, "config_feat", "fiu", 2)
    runtimes = _runtimes(arrays, "config_runtime", len(config_features))
    normalizers = _runtimes(arrays, "config_runtime_normalizers", len(config_features))
    if normalizers.size and int(normalizers.min()) < 1:
        raise ValueError("config_runtime_normalizers holds zeros; a normaliser is at least 1")
    roots = np.flatnonzero(features[:, IS_ROOT]) if features.shape[1] == 140 else np.zeros(0, np.int64)
    root = roots[-1:] if len(roots) else np.array([len(features) - 1])
    return Graph(
        features,
        edges,
        opcodes,
        root,
        _compact(config_features[:, None]),
        runtimes / normalizers,
        name=path.stem,
    )


def _compact(values: np.ndarray) -> np.ndarray:
    """int8 where that loses nothing (layouts always), else float32. Bit by bit: files hold up to gigabytes of them."""
    small = np.empty(values.shape, np.int8)
    whole = True
    for part in chunks(len(values), ROWS_AT_ONCE):
        if not np.isfinite(values[part]).all():
            raise ValueError("configuration features hold NaN or infinity; the file is damaged")
        if whole := whole and _fits(values[part]):
            small[part] = values[part]
    return small if whole else values.astype(np.float32)


def _fits(values: np.ndarray) -> bool:
    return not values.size or bool(values.min() >= -128 and values.max() <= 127 and (values == np.trunc(values)).all())
