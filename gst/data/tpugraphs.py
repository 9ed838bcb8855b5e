"""TpuGraphs npz files (Phothilimthana et al. 2023, arXiv 2308.13490), layout and tile: read, written, their columns."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from gst.data.source import ItemSource, fingerprint_of_files
from gst.graphs.graph import Graph, chunks, groups_of_equals
from gst.util.addresses import Address, matches, place
from gst.util.copies import local_copy
from gst.util.progress import notice
from gst.util.untrusted import read_arrays, shown
from gst.util.writing import atomic_path

VERSION = 1  # of what is read
OF_CONFIGURATIONS = {"node_config_feat", "config_feat", "config_runtime", "config_runtime_normalizers"}
NODES = frozenset({"node_feat", "node_opcode", "edge_index", "node_splits", "config_runtime"})
LAYOUT = NODES | {"node_config_ids", "node_config_feat"}
TILE = NODES | {"config_feat", "config_runtime_normalizers"}
"""Arrays of published files. `node_splits`, the nodes of each computation, is not needed."""
LARGEST_EXACT = 2**53  # above it float64 no longer holds every integer
ROWS_AT_ONCE = 1024
IS_ROOT = 0  # column of the 140 node features that marks the root of a computation; the kernel's own comes last

_IN_ORDER = """
    unknown abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad batch-norm-inference
    batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky clamp collective-permute
    count-leading-zeros compare complex concatenate conditional constant convert convolution copy copy-done copy-start
    cosine custom-call divide domain dot dynamic-slice dynamic-update-slice exponential exponential-minus-one fft floor
    fusion gather get-dimension-size set-dimension-size get-tuple-element imag infeed iota is-finite log log-plus-one
    and not or xor map maximum minimum multiply negate outfeed pad parameter partition-id popcnt power real recv
    recv-done reduce reduce-precision reduce-window remainder replica-id reshape reverse rng rng-get-and-update-state
    rng-bit-generator round-nearest-afz rsqrt scatter select select-and-scatter send send-done shift-left
    shift-right-arithmetic shift-right-logical sign sine slice sort sqrt subtract tanh trace transpose triangular-solve
    tuple tuple-select while cbrt all-gather collective-permute-start collective-permute-done logistic dynamic-reshape
    all-reduce-start all-reduce-done reduce-scatter all-gather-start all-gather-done opt-barrier async-start
    async-update async-done round-nearest-even stochastic-convert tan
"""
OPCODE_NAMES = tuple(_IN_ORDER.split())
"""Name of each opcode number (`LEARNED_HLO_OPCODE_LIST` in hlo_opcode.h of google-research-datasets/tpu_graphs); 0
stands for every opcode that is not in the list (`erf`, `topk`, ...)."""


def merge_repeats(graph: Graph) -> Graph:
    """Merge equal configurations, in order of first appearance.

    Each gets the mean, the count and the spread (standard deviation) of the targets of its repeats.

    Examples:
        >>> edges, node = np.array([[0], [1]]), np.array([1])
        >>> graph = Graph(np.ones((2, 1), np.float32), edges, np.zeros(2, np.int64), node,
        ...               np.array([[[3]], [[4]], [[3]]], np.int8), np.array([10.0, 7.0, 14.0]))
        >>> merged = merge_repeats(graph)
        >>> merged.targets.tolist(), merged.counts.tolist(), merged.spreads.tolist()
        ([12.0, 7.0], [2, 1], [2.0, 0.0])
    """
    first, group = groups_of_equals(graph.config_features)
    counts = np.bincount(group, graph.counts).astype(np.int64)
    means = np.bincount(group, graph.counts * graph.targets) / counts
    squares = graph.spreads**2 + (graph.targets - means[group]) ** 2
    spreads = np.sqrt(np.bincount(group, graph.counts * squares) / counts)
    return replace(graph, config_features=graph.config_features[first], targets=means, counts=counts, spreads=spreads)


def read(path: Path | str, merge: bool = True, rows: Sequence[int] | None = None) -> Graph:
    """Read a layout or a tile file, told apart by its arrays.

    Edges are stored as (consumer, producer) and returned as producer -> consumer. Layout targets are runtimes in ns;
    tile targets are runtime / normaliser. A tile configuration belongs to the whole kernel and is attached to its root.
    Layout configurations are int8 with -1 as padding; tile configurations are int8 if that is exact, else float32.

    Args:
        merge: merge repeated configurations, see `merge_repeats`. If False, each row of the file is a configuration.
        rows: positions in the file of the configurations to take before any are merged, all if None, in this order and
            with repeats; with `merge` a row named twice counts once, because it was measured once.

    Raises:
        ValueError: the file is damaged, lacks an array, or holds impossible numbers; the message names the file.
    """
    path = place(path)
    arrays = read_arrays(local_copy(path))
    try:
        _take_rows(arrays, rows, merge)
        is_layout = bool({"node_config_ids", "node_config_feat"} & arrays.keys())
        if unread := arrays.keys() - (LAYOUT if is_layout else TILE):
            _tell_unread(path.name, tuple(sorted(unread)))
        graph = (_layout if is_layout else _tile)(path.stem, arrays)
        return merge_repeats(graph) if merge else graph
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


class FileRows(NamedTuple):
    """Configurations of a file in the order of the file, for results that name them by their number there.

    Args:
        numbers: place of each in the file, from 0.
        config: the configuration of the merged graph that it belongs to.
        targets: as measured; NaN where the file holds the placeholder 0.
    """

    numbers: Int64[np.ndarray, " rows"]
    config: Int64[np.ndarray, " rows"]
    targets: Float64[np.ndarray, " rows"]


def rows_of_file(path: Path | str, merge: bool = True, rows: Sequence[int] | None = None) -> FileRows:
    """Return the configurations of a file behind those that `read` returns with the same arguments."""
    if rows is not None and merge:
        rows = list(dict.fromkeys(rows))
    graph = read(path, False, rows)
    everything = np.arange(graph.num_configs)
    config = groups_of_equals(graph.config_features)[1] if merge else everything
    numbers = everything if rows is None else np.array(rows, np.int64)
    return FileRows(numbers, config, np.where(graph.targets > 0, graph.targets, np.nan))


def write_npz(graph: Graph, path: Path | str) -> None:
    """Write a graph atomically as a layout file, which `read` and the published readers read.

    Runtimes are rounded to whole nanoseconds, one row for each configuration; an unknown runtime is 0.
    """
    with atomic_path(Path(path)) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file,
            node_feat=graph.node_features,
            node_opcode=graph.opcodes.astype(np.uint8 if graph.opcodes.max() < 256 else np.int64),
            edge_index=np.ascontiguousarray(graph.edges[::-1].T),
            node_config_ids=graph.config_nodes,
            node_config_feat=graph.config_features.astype(np.float32),
            config_runtime=np.rint(np.nan_to_num(graph.targets)).astype(np.int64),
        )


@dataclass(frozen=True)
class TpuGraphs(ItemSource):
    """A dataset of TpuGraphs files, given by paths, addresses or glob patterns of npz files.

    Examples:
        >>> write_npz(Graph(np.ones((2, 1), np.float32), np.array([[0], [1]])), "pair.npz")
        >>> [graph.num_nodes for graph in TpuGraphs(["*.npz"])]
        [2]
    """

    files: Sequence[str]
    opcode_names = OPCODE_NAMES

    def paths(self) -> list[Path | Address]:
        """Return the files that match, in the order of their patterns; ValueError for one without a match."""
        paths: list[Path | Address] = []
        for pattern in self.files:
            where = place(pattern)
            local = [] if isinstance(where, Address) else glob.glob(str(where), recursive=True)  # noqa: PTH207 (absolute)
            found = matches(where) if isinstance(where, Address) else [Path(each) for each in sorted(local)]
            if not found:
                raise ValueError(f"no file matches {pattern!r}; give paths or patterns of TpuGraphs npz files")
            paths += found
        return paths

    def items(self) -> list[Path | Address]:
        """Return the files, which hosts may read at once."""
        return self.paths()

    def load(self, item: Path | Address) -> Graph:
        """Return the graph of a file."""
        return read(item)

    def file_rows(self, name: str) -> FileRows:
        """Return the rows of the file that a graph was read from, by the name of the graph."""
        return rows_of_file(next(path for path in self.paths() if path.stem == name))

    def fingerprint(self) -> str:
        """Return the same text for equal files."""
        return fingerprint_of_files(self.paths(), f"TpuGraphs {VERSION}")


@cache
def _tell_unread(file: str, names: tuple[str, ...]) -> None:
    notice(f"{file} has arrays that a graph has no place for, which are left out: {', '.join(map(shown, names))}")


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


def _array(arrays: dict[str, np.ndarray], key: str, dims: int, kinds: str = "fiu") -> np.ndarray:
    if key not in arrays:
        raise ValueError(f"array {key!r} is missing; the file holds {', '.join(sorted(arrays)) or 'nothing'}")
    array = arrays[key]
    if array.dtype.kind not in kinds or array.ndim != dims:
        wanted = "numbers" if "f" in kinds else "integers"
        raise ValueError(f"{key} is {array.dtype} of shape {array.shape}, want {wanted} in {dims} dimensions")
    return array


def _integers(arrays: dict[str, np.ndarray], key: str, dims: int) -> np.ndarray:
    array = _array(arrays, key, dims, "iu")
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
    """Return node features, edges (producer, consumer) and opcodes."""
    with np.errstate(over="ignore"):  # a graph refuses what becomes infinite
        features = _array(arrays, "node_feat", 2).astype(np.float32)
    opcodes = _integers(arrays, "node_opcode", 1)
    edges = _integers(arrays, "edge_index", 2)
    if edges.shape[1] != 2:
        raise ValueError(f"edge_index has shape {edges.shape}, want (edges, 2)")
    return features, np.ascontiguousarray(edges[:, ::-1].T), opcodes


def _layout(name: str, arrays: dict[str, np.ndarray]) -> Graph:
    nodes = _nodes(arrays)
    config_features = _array(arrays, "node_config_feat", 3)
    runtimes = _runtimes(arrays, "config_runtime", len(config_features))
    config_nodes = _integers(arrays, "node_config_ids", 1)
    return Graph(*nodes, config_nodes, _compact(config_features), runtimes.astype(np.float64), name=name)


def _tile(name: str, arrays: dict[str, np.ndarray]) -> Graph:
    features, edges, opcodes = _nodes(arrays)
    config_features = _array(arrays, "config_feat", 2)
    runtimes = _runtimes(arrays, "config_runtime", len(config_features))
    normalizers = _runtimes(arrays, "config_runtime_normalizers", len(config_features))
    if normalizers.size and int(normalizers.min()) < 1:
        raise ValueError("config_runtime_normalizers holds zeros; a normaliser is at least 1")
    roots = np.flatnonzero(features[:, IS_ROOT]) if features.shape[1] == 140 else np.zeros(0, np.int64)
    root = roots[-1:] if len(roots) else np.array([len(features) - 1])
    return Graph(features, edges, opcodes, root, _compact(config_features[:, None]), runtimes / normalizers, name=name)


def _compact(values: np.ndarray) -> np.ndarray:
    """Convert to int8 if that is exact (layouts always), else to float32; in chunks, because files hold gigabytes."""
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


# The 140 node features: names of the columns and numbers of the opcodes ---------------------------------------------

ELEMENT_TYPES = {
    "invalid_type": 0, "pred": 1, "s8": 2, "s16": 3, "s32": 4, "s64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9,
    "f16": 10, "f32": 11, "f64": 12, "bf16": 16, "c64": 15, "c128": 18, "tuple": 13, "opaque_type": 14, "token": 17,
}  # fmt: skip
"""Types of elements that have a column, in the order of the columns, with their number in `xla_data.proto`. An array of
another type (f8e4m3fn, s4, ...) has a zero in all of them."""

WINDOW_NUMBERS = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")


def _named(name: str, length: int, *totals: str) -> list[str]:
    return [f"{name}_{end}" for end in (*range(length), *totals)]


def _totalled(name: str, length: int) -> list[str]:
    return _named(name, length, "sum", "product")


NODE_FEATURES = (
    "is_root",
    "element_size_in_bits",
    *(f"shape_element_type_is_{name}" for name in ELEMENT_TYPES),
    *_totalled("shape_dimensions", 6),
    "shape_tuple_shapes_size",
    "parameter_number",
    *_named("dimensions", 6),
    *(name for part in WINDOW_NUMBERS for name in _totalled(f"window_{part}", 6)),
    *_named("window_window_reversal", 6, "true_count", "false_count"),
    *(f"convolution_dim_numbers_input_{name}_dim" for name in ("batch", "feature")),
    *_named("convolution_dim_numbers_input_spatial_dims", 4),
    *(f"convolution_dim_numbers_kernel_{name}_feature_dim" for name in ("input", "output")),
    *_named("convolution_dim_numbers_kernel_spatial_dims", 4),
    *(f"convolution_dim_numbers_output_{name}_dim" for name in ("batch", "feature")),
    "feature_group_count",
    "batch_group_count",
    *(name for part in ("start", "stride", "limit") for name in _totalled(f"slice_dims_{part}", 2)),
    *_totalled("dynamic_slice_sizes", 2),
    *(name for end in ("low", "high") for name in _totalled(f"padding_config_edge_padding_{end}", 2)),
    "is_stable",
    *_named("layout_minor_to_major", 6),
)
"""Names of the columns, as in the README of google-research-datasets/tpu_graphs. A list of numbers fills columns with
its first few numbers, padded with 0, and some lists with their sum and product (1 for an empty list). Column 1 is 0."""

_NUMBERS = {name: number for number, name in enumerate(OPCODE_NAMES)}
CONFIGURABLE = frozenset(_NUMBERS[name] for name in ("convolution", "dot", "reshape"))
"""Opcodes whose layouts TpuGraphs configures: in alexnet and unet_3d every instruction of these, and no other."""


def opcode_number(name: str) -> int:
    """Return the number of an opcode in TpuGraphs, 0 for one that it does not list.

    Examples:
        >>> opcode_number("dot"), opcode_number("topk")
        (34, 0)
    """
    return _NUMBERS.get(name, 0)
