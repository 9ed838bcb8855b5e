"""One graph: what a program is, the configurations it was run under, and how long each run took.

Graphs of PyTorch Geometric, or of anything with the same attributes, become `Graph`s. PyG itself is not imported.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from numpy.typing import DTypeLike
from torch import Tensor

from gst.util.arrays import as_bytes

CHUNK = 1 << 18  # entries handled at once: anonymous memory is proportional to it, not to a graph
DATA = ("node_data", "edge_data")
NUMBERS = "biuf"  # kinds of dtype: booleans, integers with and without sign, floats
NAMES_TAKEN = ("x", "edge_index", "batch", "batch_size", "num_nodes", "num_graphs", "opcodes")
"""What encoders call the other fields (`gst.method.batch.ExpandedBatch`)."""
NO_INDEX = (
    "holds numbers of nodes or edges by its name, as in PyG, and segments number theirs anew; find them by edge_index "
    "in the encoder, mark them by a feature, or rename it if it is a category"
)


@dataclass(frozen=True, eq=False)
class Graph:
    """A computation graph, its configurations and its measured targets. Arrays only, in memory or memory-mapped;
    nothing is copied.

    Node ids run from 0 to `num_nodes - 1`; an edge points from the producer of a value to its consumer. A graph without
    configurations has exactly one, with no configurable node.

    Args:
        node_features: features that do not depend on the configuration: float32 or float64, or integers and booleans
            for an encoder that embeds them itself.
        edges: row 0 holds producers, row 1 consumers.
        opcodes: kind of each node, small integers >= 0; zeros if not given.
        config_nodes: the configurable nodes, each at most once.
        config_features: for each configuration, the features it gives each configurable node (int8 or float32).
        targets: one number per configuration (a runtime is the mean of its repeats, in nanoseconds), or a row
            of several; NaN where unknown.
        counts: number of measurements behind each target.
        spreads: standard deviation of those measurements, in the unit of the targets (0 for a single one).
        name: unique within a dataset; made from the content if not given.
        node_data, edge_data: further arrays of numbers by name, one row for each node or edge, such as
            `edge_data={"edge_attr": ...}`; an encoder with an argument of that name gets those of its nodes and edges.

    Raises:
        ValueError: an argument is no NumPy array, or does not fit the others; the message says which.

    Examples:
        >>> chain = Graph(np.zeros((3, 2), np.float32), np.array([[0, 1], [1, 2]]), targets=np.array([5.0, 7.0]))
        >>> chain.num_nodes, chain.num_edges, chain.num_configs
        (3, 2, 2)
    """

    node_features: Shaped[np.ndarray, "nodes features"]
    edges: Int64[np.ndarray, "2 edges"]
    opcodes: Int64[np.ndarray, " nodes"] = None  # type: ignore[assignment]
    config_nodes: Int64[np.ndarray, " configurable"] = None  # type: ignore[assignment]
    config_features: Shaped[np.ndarray, "configs configurable channels"] = None  # type: ignore[assignment]
    targets: Float64[np.ndarray, "configs ..."] = None  # type: ignore[assignment]
    counts: Int64[np.ndarray, " configs"] = None  # type: ignore[assignment]
    spreads: Float64[np.ndarray, " configs"] = None  # type: ignore[assignment]
    name: str = ""
    node_data: Mapping[str, np.ndarray] = field(default_factory=dict)
    edge_data: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, given in self._arrays():
            if not isinstance(given, np.ndarray) and given is not None:
                kind = type(given).__name__
                raise ValueError(f"{name} is a {kind}; want a NumPy array (of a tensor: .numpy())")
        nodes = len(self.node_features)
        fill = lambda field_name, value: object.__setattr__(self, field_name, value)  # noqa: E731 (frozen)
        if self.opcodes is None:
            fill("opcodes", np.zeros(nodes, np.int64))
        if self.config_nodes is None:
            fill("config_nodes", np.zeros(0, np.int64))
        if self.config_features is None:
            configs = 1 if self.targets is None else len(self.targets)
            fill("config_features", np.zeros((configs, len(self.config_nodes), 0), np.int8))
        for label in ("edges", "opcodes", "config_nodes"):
            if isinstance(given := getattr(self, label), np.ndarray) and not given.size:
                fill(label, given.astype(np.int64))  # np.zeros((2, 0)) is of floats
        configs = len(self.config_features)
        if self.targets is None:
            fill("targets", np.full(configs, np.nan))
        if self.counts is None:
            fill("counts", np.ones(configs, np.int64))
        if self.spreads is None:
            fill("spreads", np.zeros(configs))
        for label, dtype in (("targets", np.float64), ("counts", np.int64), ("spreads", np.float64)):
            given = getattr(self, label)
            if given.dtype != dtype and np.can_cast(given.dtype, dtype, "same_kind"):
                fill(label, given.astype(dtype))
        if self.targets.ndim == 2 and self.targets.shape[1] == 1:
            fill("targets", self.targets[:, 0])
        if not self.name:
            fill("name", self.digest())
        self._check()

    def _check(self) -> None:
        nodes, configs, features = self.num_nodes, self.num_configs, self.config_features

        def require(holds: bool, problem: str) -> None:
            if not holds:
                raise ValueError(f"graph {self.name!r}: {problem}")

        def names_nodes(label: str, verb: str) -> None:
            if (numbers := getattr(self, label)).size:
                low, high = int(numbers.min()), int(numbers.max())
                there = low >= 0 and high < nodes
                require(there, f"{label} {verb} nodes {low}..{high}, but nodes are 0..{nodes - 1}")

        def has_shape(label: str, fits: bool, wanted: str) -> None:
            require(fits, f"{label} has shape {getattr(self, label).shape}, want {wanted}")

        has_shape("node_features", self.node_features.ndim == 2, "(nodes, features)")
        require(nodes > 0, "it has no nodes; a graph needs at least one")
        has_shape("edges", self.edges.ndim == 2 and len(self.edges) == 2, "(2, edges)")
        for label in ("edges", "opcodes", "config_nodes"):
            kind = getattr(self, label).dtype
            is_whole = kind.kind == "i" or (kind.kind == "u" and kind.itemsize < 8) or not getattr(self, label).size
            require(is_whole, f"{label} is {kind}, want whole numbers; .astype(np.int64) makes them")
        problem = trouble_with(self.node_features.dtype)
        require(not problem, f"node_features is {self.node_features.dtype}, {problem}")
        names_nodes("edges", "name")
        require(_finite(self.node_features), "node_features holds NaN or infinity; clean them before")
        for what, data, count in (("node", self.node_data, nodes), ("edge", self.edge_data, self.num_edges)):
            for name, array in data.items():
                label, shape, problem = f"{what}_data[{name!r}]", array.shape, trouble_with(array.dtype)
                require(name.isidentifier(), f"{label} is no name for an argument; want letters, digits and _")
                require(name not in NAMES_TAKEN, f"{label} has the name of another field; give it a different one")
                require("index" not in name or array.dtype.kind not in "iu", f"{label} {NO_INDEX}")
                require(name not in self.node_data or what == "node", f"{label} is in node_data too; rename one")
                require(shape[:1] == (count,), f"{label} has shape {shape}, want ({count}, ...), a row for each {what}")
                require(not problem, f"{label} is {array.dtype}, {problem}")
                require(_finite(array), f"{label} holds NaN or infinity; clean them before")
        has_shape("opcodes", self.opcodes.shape == (nodes,), f"({nodes},)")
        require(not self.opcodes.size or int(self.opcodes.min()) >= 0, "opcodes holds negative numbers")
        largest = int(self.opcodes.max(initial=0))
        require(largest < 2**31, f"opcodes holds {largest}; number the kinds of operations from 0")
        require(configs > 0, "it has no configurations; leave config_features out for a graph without any")
        columns = len(self.config_nodes)
        fits = features.ndim == 3 and features.shape[1] == columns
        has_shape("config_features", fits, f"(configs, {columns}, channels)")
        is_number = features.dtype in (np.int8, np.float32)
        require(is_number, f"config_features is {features.dtype}, want int8 or float32")
        if features.dtype.kind == "f":
            require(_finite(features), "config_features holds NaN or infinity")
        names_nodes("config_nodes", "names")
        require(len(np.unique(self.config_nodes)) == columns, "config_nodes names a node twice")
        for label in ("targets", "counts", "spreads"):
            values = getattr(self, label)
            require(
                values.dtype.kind == ("i" if label == "counts" else "f"), f"{label} is {values.dtype}, want numbers"
            )
            fits = values.shape == (configs,) or (label == "targets" and values.ndim == 2 and len(values) == configs)
            has_shape(label, fits, f"({configs},), one for each configuration")

    @property
    def num_nodes(self) -> int:
        return len(self.node_features)

    @property
    def num_edges(self) -> int:
        return self.edges.shape[1]

    @property
    def num_configs(self) -> int:
        return len(self.config_features)

    def digest(self) -> str:
        """16 hexadecimal digits that differ when any array differs."""
        digest = hashlib.sha256()
        for name, given in self._arrays():
            digest.update(f"{name} {given.dtype.str} {given.shape}".encode())
            digest.update(as_bytes(given))
        return digest.hexdigest()[:16]

    def _arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every array under its name."""
        for entry in fields(self):
            if entry.name in DATA:
                data = getattr(self, entry.name)
                yield from ((f"{entry.name}[{name!r}]", data[name]) for name in sorted(data))
            elif entry.name != "name":
                yield entry.name, getattr(self, entry.name)


def trouble_with(dtype: np.dtype) -> str:
    """Why features cannot be of `dtype`; empty if they can."""
    if dtype.kind not in NUMBERS:
        return "want numbers"
    return "want float32 (.astype(np.float32)) or float64" if dtype.kind == "f" and dtype.itemsize not in (4, 8) else ""


def _finite(array: np.ndarray) -> bool:
    """In pieces: a graph may be larger than memory."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[part]).all()) for part in chunks(len(flat)))


def groups_of_equals(
    config_features: Shaped[np.ndarray, "configs configurable channels"],
) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " configs"]]:
    """The first of each distinct configuration, in order of appearance, and for every one which of them it equals."""
    rows: np.ndarray = np.ascontiguousarray(config_features).reshape(len(config_features), -1)
    if rows.shape[1]:
        rows = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    else:
        rows = np.zeros(len(rows))  # nothing to tell them apart
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[group]


def empty_array(directory: Path | None, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised array: in memory if `directory` is None, else memory-mapped from its new file `name`.

    Raises:
        OSError: the disk is full; a later write to a full disk would kill the process.
    """
    if directory is None:
        return np.empty(shape, dtype)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    try:
        with (directory / name).open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))
    except OSError as error:
        message = f"no room for {num_bytes} bytes in {directory}: {error.strerror}; make room or give another place"
        raise OSError(error.errno, message) from error
    return np.memmap(directory / name, dtype, "r+", shape=shape)


def chunks(length: int, size: int = CHUNK) -> Iterator[slice]:
    """Yield slices that cover 0 .. length, each of at most `size` entries.

    Examples:
        >>> list(chunks(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


# Graphs of PyTorch Geometric ------------------------------------------------------------------------------------------

NO_DATA = ("x", "edge_index", "y", "batch", "ptr", "num_nodes", "opcodes")
OF_EDGES = ("edge_attr", "edge_weight", "edge_type")  # which have a row for each edge, or are wrong
OF_NODES = ("pos", "normal", "z", "n_id")  # names that PyG uses for data of nodes


def from_pyg(data: Any, name: str = "") -> Graph:
    """Convert a PyG `Data` or `HeteroData`. Nodes keep their numbers; `edge_index[0]` sends to `edge_index[1]`.

    Features keep their dtype (halves become float32). Other tensors with a row for each edge or node, such as
    `edge_attr` and `pos`, become `edge_data` and `node_data`; a warning names masks and others, which are left out.
    Numbers of nodes or edges are no data (`parent_index`), since segments number theirs anew.

    The nodes of a `HeteroData` are concatenated by type, and features are padded with zeros to the widest. `node_type`
    and `edge_type` hold the types' numbers; `hetero_inputs` separates them again. Other tensors are kept if all types
    have them in one shape (`edge_time` for edges if nodes have `time`); a warning names the others.

    Examples:
        >>> from types import SimpleNamespace
        >>> data = SimpleNamespace(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([4.0]))
        >>> graph = from_pyg(data, name="path")
        >>> graph.num_nodes, graph.targets.tolist()
        (3, [4.0])

    Args:
        data: has `x` (nodes, features), `edge_index` (2, edges) and, if it is labelled, one number `y`, a class or a
            regression target, or several targets (1, targets). `opcodes` (nodes,) are those of the `Graph`.
        name: unique within a dataset; by default `data.name`, else a digest of the content.

    Raises:
        ValueError: an attribute is missing or has the wrong shape, is named an index, or may belong to nodes or to
            edges, of which there are equally many; or `data` is a batch.
    """
    graph = converted(data, name)
    if differentiable := sources_of(data):
        warnings.warn(
            f"{', '.join(differentiable)} requires a gradient, which a Graph does not pass on: give the Data itself to "
            "the model, model([data]), or detach() it",
            stacklevel=2,
        )
    return graph


def converted(data: Any, name: str = "", with_target: bool = True) -> Graph:
    """Convert a PyG `Data` or `HeteroData` as `from_pyg`, without gradients and without a word about them.

    Args:
        with_target: False leaves `y` unread.
    """
    if isinstance(data, list | tuple) and not is_pyg(data):
        raise ValueError(f"from_pyg takes one Data, not {len(data)} of them: [gst.from_pyg(each) for each in data]")
    if getattr(data, "num_graphs", 1) != 1:
        raise ValueError(f"this is a Batch of {data.num_graphs} graphs; convert each of its to_data_list()")
    own_name = getattr(data, "name", "")
    arguments = _typed(data) if is_hetero(data) else _plain(data)
    return Graph(
        **arguments,
        targets=_target(getattr(data, "y", None) if with_target else None),
        name=name or (own_name if isinstance(own_name, str) else ""),
    )


def _plain(data: Any) -> dict[str, Any]:
    x = _matrix(data, "x", "(nodes, features)", "gst.data.malnet.degree_profile(edges, num_nodes) makes some")
    edges = _edges(data)
    node_data, edge_data, left = {}, {}, []
    for key, tensor in _others(data):
        of_nodes, of_edges = len(tensor) == len(x), len(tensor) == edges.shape[1]
        is_clear = "edge" in key or key in OF_NODES or key.startswith("node_") or key.endswith("_mask")
        if of_nodes and of_edges and not is_clear:
            raise ValueError(
                f"{key} has {len(tensor)} rows, and the graph as many edges as nodes: say which it belongs to, by the "
                f"name node_{key} or edge_{key}"
            )
        if of_edges and ("edge" in key or not of_nodes):  # as PyG's `is_edge_attr`
            edge_data[key] = as_array(tensor)
        elif key in OF_EDGES:
            raise ValueError(f"{key} has {len(tensor)} rows for {edges.shape[1]} edges; want one row for each edge")
        elif of_nodes and not key.endswith("_mask"):
            node_data[key] = as_array(tensor)
        else:
            left.append(f"{key} {tuple(tensor.shape)}")
    if left:
        warnings.warn(
            f"left out: {', '.join(left)}; kept are tensors with a row for each node or edge, except masks",
            stacklevel=4,
        )
    arguments = {"node_features": as_array(x), "edges": edges, "node_data": node_data, "edge_data": edge_data}
    opcodes = getattr(data, "opcodes", None)
    return arguments if opcodes is None else arguments | {"opcodes": as_array(opcodes.long())}


def _others(data: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by name that may belong to nodes or edges."""
    for key in data.keys() if callable(getattr(data, "keys", None)) else getattr(data, "__dict__", ()):
        value = getattr(data, key)
        if isinstance(value, Tensor) and value.dim() and key not in NO_DATA:
            yield key, value


def _edges(data: Any, source: int | None = None, target: int | None = None) -> np.ndarray:
    """Return `edge_index`, checked; `source` and `target` are the numbers of nodes of two types."""
    edge_index = _matrix(data, "edge_index", "(2, edges)", "leave out PyG's ToSparseTensor")
    if len(edge_index) != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}, want (2, edges)")
    if edge_index.numel() and (edge_index.is_floating_point() or edge_index.dtype == torch.bool):
        raise ValueError(f"edge_index is {edge_index.dtype}, want numbers of nodes: edge_index.long()")
    edges = as_array(edge_index.long())
    for ends, count in zip(edges, (source, target), strict=True):
        if count is not None and ends.size and not 0 <= ends.min() <= ends.max() < count:
            raise ValueError(f"edge_index names nodes {ends.min()}..{ends.max()}, but nodes are 0..{count - 1}")
    return edges


def sources_of(data: Any) -> dict[str, Tensor]:
    """Return the tensors of `data` that require a gradient, by name; of several types of nodes with their types."""
    if is_hetero(data):
        parts = ((kind, data[kind]) for kind in (*data.node_types, *data.edge_types))
        return {f"{key} of {kind!r}": each for kind, part in parts for key, each in sources_of(part).items()}
    tensors = {"x": getattr(data, "x", None), **dict(_others(data))}
    return {key: each for key, each in tensors.items() if isinstance(each, Tensor) and each.requires_grad}


def as_array(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to an array of its dtype; halves become float32."""
    tensor = tensor.detach().cpu()
    halves = (torch.float16, torch.bfloat16)
    return (tensor.float() if tensor.dtype in halves else tensor).numpy()


def _matrix(data: Any, key: str, shape: str, advice: str) -> Tensor:
    value = getattr(data, key, None)
    if not isinstance(value, Tensor):
        raise ValueError(f"{key} is {value!r}, want a tensor {shape}; {advice}")
    if value.dim() != 2:
        raise ValueError(f"{key} has shape {tuple(value.shape)}, want {shape}")
    return value


def _target(y: Any) -> np.ndarray:
    if y is None:
        return np.array([np.nan])
    numbers = y.detach().cpu().double().numpy() if isinstance(y, Tensor) else np.asarray(y, np.float64)
    if numbers.size != 1 and not (numbers.ndim == 2 and len(numbers) == 1):
        raise ValueError(
            f"y has shape {numbers.shape}, want one number for the whole graph, or (1, targets) (a Graph has no labels "
            "of nodes); set data.y = None and pass others by DataLoader([(graph, y), ...], collate_fn=gst.collate)"
        )
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"y is {numbers.ravel().tolist()}; want finite numbers, or data.y = None for an unknown target"
        )
    return numbers.reshape(1) if numbers.size == 1 else numbers


def is_pyg(data: Any) -> bool:
    """True for what `from_pyg` takes, to judge by its attributes."""
    return hasattr(data, "edge_index") or is_hetero(data)


def is_hetero(data: Any) -> bool:
    """True for a `HeteroData`, to judge by its attributes."""
    return hasattr(data, "node_types") and hasattr(data, "edge_types")


def _typed(data: Any) -> dict[str, Any]:
    features = {
        kind: as_array(_matrix(data[kind], "x", "(nodes, features)", f"of type {kind!r}")) for kind in data.node_types
    }
    widest = max(array.shape[1] for array in features.values())
    padded = [np.pad(array, ((0, 0), (0, widest - array.shape[1]))) for array in features.values()]
    first = dict(zip(features, np.cumsum([0, *map(len, features.values())])[:-1].tolist(), strict=True))
    shifted = []
    for source, _, target in data.edge_types:
        try:
            edges = _edges(data[source, _, target], len(features[source]), len(features[target]))
        except ValueError as error:
            raise ValueError(f"of edges {(source, _, target)}: {error}") from None
        shifted.append(edges + np.array([[first[source]], [first[target]]]))
    node_counts, edge_counts = [len(each) for each in features.values()], [each.shape[1] for each in shifted]
    node_data, left_nodes = _of_all_types([data[kind] for kind in data.node_types], node_counts)
    of_edges, left_edges = _of_all_types([data[kind] for kind in data.edge_types], edge_counts)
    edge_data = {f"edge_{key}" if key in node_data else key: array for key, array in of_edges.items()}
    if left_nodes or left_edges:
        names = ", ".join(sorted(left_nodes | left_edges))
        warnings.warn(f"left out: {names}, which not all types have in one shape and dtype, finite", stacklevel=3)
    return {
        "node_features": np.concatenate(padded),
        "edges": np.concatenate(shifted, axis=1) if shifted else np.zeros((2, 0), np.int64),
        "node_data": node_data | {"node_type": np.repeat(np.arange(len(features)), node_counts)},
        "edge_data": edge_data | {"edge_type": np.repeat(np.arange(len(shifted)), edge_counts)},
    }


def _of_all_types(parts: Sequence[Any], counts: Sequence[int]) -> tuple[dict[str, np.ndarray], set[str]]:
    """Join the tensors with a row for each node, or edge, that all types have; return the names of the others."""
    tensors = []
    for part, count in zip(parts, counts, strict=True):
        of_part = dict(_others(part))
        if short := [key for key in OF_EDGES if len(of_part.get(key, range(count))) != count]:
            raise ValueError(f"{short[0]} has {len(of_part[short[0]])} rows for {count} edges; want one for each edge")
        tensors.append({key: as_array(tensor) for key, tensor in of_part.items()})
    names = {key for each in tensors for key in each}
    forms = {
        key: {
            (each[key].dtype, each[key].shape[1:]) if key in each and len(each[key]) == count else None
            for each, count in zip(tensors, counts, strict=True)
        }
        for key in names
    }
    joined = {key: np.concatenate([each[key] for each in tensors]) for key in sorted(names)
              if len(forms[key]) == 1 and None not in forms[key] and not key.endswith("_mask")}  # fmt: skip
    finite = {key: array for key, array in joined.items() if array.dtype.kind != "f" or np.isfinite(array).all()}
    return finite, names - finite.keys()
