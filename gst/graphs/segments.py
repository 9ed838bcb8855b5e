"""Segments of a graph, and how a graph is cut into them run by run, in memory that does not grow with the graph."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int32, Int64, Shaped

from gst.graphs.graph import CHUNK, DATA, Graph, chunks, empty_array, from_pyg, is_pyg
from gst.util.arrays import Mapped, PackedArray, as_bytes
from gst.util.copies import Array
from partitioners import num_parts_for, partition

BLOCK_NODES = 1 << 20
CONFIG_BYTES = 1 << 24  # of configuration features rearranged at once, a single configuration being the least

Assignment = Int64[np.ndarray, " nodes"]

Job = tuple[Int64[np.ndarray, "2 edges"], int, int]
"""What a partitioner is asked: edges, number of nodes, number of parts."""


@dataclass(frozen=True, eq=False)
class SegmentedGraph:
    """A graph cut into segments, its arrays stored segment by segment, in memory or memory-mapped. Segment j holds
    the rows `row_ptr[j]:row_ptr[j+1]`, of which the first `owned_counts[j]` are its own nodes and the others context.

    Args:
        num_nodes: nodes of the whole graph.
        edge_cut: share of its edges whose ends belong to different segments.
        owned_counts: nodes that belong to each segment; their sum is `num_nodes`.
        row_ptr, edge_ptr, config_ptr: the start of each segment in the arrays below.
        node_ids: the node of the graph behind each row.
        edges: edges inside each segment, producers and consumers as row numbers within it, sorted by consumer.
        config_rows: configurable nodes as row numbers within their segment.
        config_columns: the column of `config_features` of each of them; ascending and without gaps over the own nodes
            of a segment.
        config_features: columns in the order of the segments that own them and, within one, of rows. Layouts of a
            store are packed: indexing unpacks what it takes, and nothing else (`gst.util.arrays`).
        node_data, edge_data: by row and by edge of the arrays above.
    """

    name: str
    num_nodes: int
    edge_cut: float
    owned_counts: Int64[np.ndarray, " segments"]
    row_ptr: Int64[np.ndarray, " segments_plus_one"]
    edge_ptr: Int64[np.ndarray, " segments_plus_one"]
    config_ptr: Int64[np.ndarray, " segments_plus_one"]
    node_ids: Int64[Array, " rows"]
    node_features: Shaped[Array, "rows features"]
    opcodes: Int32[Array, " rows"]
    edges: Int32[Array, "2 edges"]
    config_rows: Int32[Array, " uses"]
    config_columns: Int32[Array, " uses"]
    config_features: Shaped[Array, "configs configurable channels"] | PackedArray
    targets: Float64[np.ndarray, "configs ..."]
    counts: Int64[np.ndarray, " configs"]
    spreads: Float64[np.ndarray, " configs"]
    node_data: Mapping[str, Array] = field(default_factory=dict)
    edge_data: Mapping[str, Array] = field(default_factory=dict)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Open a graph of `opened_later`, of which a field is asked for the first time."""
            opener = self.__dict__.get("_opener")
            if opener is None or name.startswith("_"):
                raise AttributeError(f"a {type(self).__name__} has no {name}")
            self.__dict__.update(opener().__dict__)
            self.__dict__.pop("_opener", None)  # another thread may have been faster
            return getattr(self, name)

    def to(self, device: object, non_blocking: bool = False) -> SegmentedGraph:
        """Return the graph itself: it stays on the host, whoever moves whole batches, as Lightning does."""
        return self

    @cached_property
    def is_copy(self) -> bool:
        """True if the graph was unpickled, as for every step that workers of a DataLoader send."""
        return False

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Of the bytes of arrays, as far as a store has noted them."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that differ when an encoder would see another graph, cut or configurations.

        The first call reads all of a graph in memory."""
        digest = sha256()
        for name, array in self._arrays():
            if name not in _SEEN_BY_ENCODERS and name in ARRAYS:
                continue
            stored = array.words if isinstance(array, PackedArray) else array.T if name == "edges" else array
            checksum = self.checksums.get(name) or sha256(as_bytes(stored)).hexdigest()[:16]
            digest.update(f"{name} {array.dtype.str} {array.shape} {checksum} ".encode())
        return digest.hexdigest()[:32]

    @property
    def num_segments(self) -> int:
        return len(self.owned_counts)

    @property
    def num_configs(self) -> int:
        return len(self.config_features)

    @property
    def has_configs(self) -> bool:
        """True unless the graph has the one configuration, without features, of a graph that has none."""
        return self.config_features.shape[:2] != (1, 0)

    @property
    def balance(self) -> float:
        """Nodes of the largest segment / mean nodes per segment."""
        return float(self.owned_counts.max() * self.num_segments / self.num_nodes)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `pickle`: the fingerprint, and for a memory-mapped array its place in the file."""
        _ = self.fingerprint
        return _each(self.__dict__, lambda value: Mapped.of(value) or value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(_each(state, lambda value: value.open() if isinstance(value, Mapped) else value))
        self.__dict__["is_copy"] = True

    def nbytes(self) -> int:
        return sum(array.nbytes for _, array in self._arrays())

    def _arrays(self) -> Iterator[tuple[str, Array | PackedArray]]:
        """Every array under the name that it has in a store."""
        yield from ((name, getattr(self, name)) for name in ARRAYS)
        for prefix in DATA:
            data = getattr(self, prefix)
            yield from ((f"{prefix}_{name}", data[name]) for name in sorted(data))


SCALARS = ("name", "num_nodes", "edge_cut")
ARRAYS = tuple(entry.name for entry in fields(SegmentedGraph) if entry.name not in (*SCALARS, *DATA))


def _each(state: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """`state` with each value changed, and those of mappings within it."""
    return {
        name: _each(value, change) if isinstance(value, Mapping) else change(value) for name, value in state.items()
    }


_SEEN_BY_ENCODERS = (
    "owned_counts", "row_ptr", "edge_ptr", "config_ptr", "node_features", "opcodes", "edges", "config_rows",
    "config_columns", "config_features",
)  # fmt: skip


def segment(
    graph: Graph | Any, max_nodes: int = 1000, method: str = "metis", halo: int = 0, seed: int = 0,
    parts: Assignment | None = None, block_nodes: int = BLOCK_NODES,
) -> SegmentedGraph:  # fmt: skip
    """Cut `graph` into segments of at most `max_nodes` nodes.

    Args:
        graph: a `Graph`, or PyG's `Data` or `HeteroData`, which `gst.from_pyg` converts.
        max_nodes: the largest number of nodes that a segment may own.
        method: one of `partitioners.METHODS`.
        halo: neighbours up to this many hops away accompany each segment as context, so that cut edges still carry
            messages. 0 drops cut edges (Cao et al. 2023); the depth of the encoder makes training with all segments
            fresh equal to training on the whole graph.
        seed: of the partitioner.
        parts: the segment of each node (0 .. J-1, none empty), instead of running a partitioner.
        block_nodes: a larger graph is first cut into ranges of at most so many node ids, each partitioned by itself.

    Raises:
        ValueError: `graph` is no `Graph`, an argument is out of range, or `parts` do not fit the graph.

    Examples:
        >>> edges = np.array([[0, 1, 2], [1, 2, 3]])
        >>> halves = segment(Graph(np.zeros((4, 1), np.float32), edges), max_nodes=3, method="contiguous")
        >>> halves.num_segments, halves.owned_counts.tolist(), round(halves.edge_cut, 2)
        (2, [2, 2], 0.33)
    """
    graph = from_pyg(graph) if is_pyg(graph) else graph
    if not isinstance(graph, Graph):
        kind = type(graph).__name__
        raise ValueError(f"a {kind} cannot be cut; want one gst.Graph, or PyG's Data")
    cut = Cutting(graph, max_nodes, halo, block_nodes if parts is None else graph.num_nodes)
    if parts is None:
        for edges, num_nodes, num_parts in cut.jobs():
            cut.assign(partition(edges, num_nodes, num_parts, method, seed))
    else:
        parts = np.asarray(parts)
        _check_parts(parts, graph.num_nodes)
        cut.assign(parts)
    return collect(cut)


def collect(cut: Cutting) -> SegmentedGraph:
    """All that is cut, in memory."""
    pieces: dict[str, list[np.ndarray]] = defaultdict(list)
    for name, piece in cut.pieces():
        pieces[name].append(piece)
    arrays: dict[str, np.ndarray] = {name: np.concatenate(pieces.pop(name)) for name in list(pieces)}
    arrays["edges"] = np.ascontiguousarray(arrays["edges"].T)
    scalars = {"name": cut.graph.name, "num_nodes": cut.graph.num_nodes, "edge_cut": cut.edge_cut}
    return from_arrays(scalars, arrays)


def opened_later(name: str, opener: Callable[[], SegmentedGraph]) -> SegmentedGraph:
    """Return the graph that `opener` returns, which is called when the first field but the name is used."""
    graph = object.__new__(SegmentedGraph)
    graph.__dict__.update(name=name, _opener=opener)
    return graph


def from_arrays(scalars: Mapping[str, Any], arrays: Mapping[str, Any]) -> SegmentedGraph:
    """A graph from its arrays, under the names that they have in a store. Rows of tables stand for them: read-only."""
    arrays = {name: _read_only(array) for name, array in arrays.items()}
    others = [name for name in arrays if name not in ARRAYS]
    data: dict[str, Any] = {
        prefix: {name.removeprefix(f"{prefix}_"): arrays[name] for name in others if name.startswith(f"{prefix}_")}
        for prefix in DATA
    }
    return SegmentedGraph(**scalars, **{name: arrays[name] for name in ARRAYS}, **data)


def _read_only(array: Array | PackedArray) -> Array | PackedArray:
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        return array
    array = array.view()  # the caller's own stays as it is
    array.flags.writeable = False
    return array


def _check_parts(parts: Assignment, num_nodes: int) -> None:
    if parts.dtype.kind not in "iu":
        raise ValueError(f"parts is {parts.dtype}, want whole numbers, the segment of each node")
    within = parts.shape == (num_nodes,) and parts.min(initial=0) >= 0 and parts.max(initial=0) < max(num_nodes, 1)
    if not within or not np.bincount(parts).all():
        raise ValueError(
            f"parts has shape {parts.shape} and names {len(np.unique(parts))} segments up to {parts.max(initial=0)}; "
            f"want one segment for each of {num_nodes} nodes, counted from 0, none of them empty"
        )


class Cutting:
    """One graph on its way to segments: ask a partitioner for each of `jobs`, give every answer to `assign`, in order,
    then take the `pieces`.

    A graph of more than `block_nodes` nodes is first cut into equal ranges of node ids, each partitioned by itself: ids
    are trusted to be local, as those of a traced program are. Arrays as long as the graph go to the empty directory
    `scratch`, or to memory; `chunk` nodes or edges are handled at once.
    """

    def __init__(
        self, graph: Graph, max_nodes: int, halo: int, block_nodes: int = BLOCK_NODES, scratch: Path | None = None,
        chunk: int = CHUNK,
    ) -> None:  # fmt: skip
        for name, value in (("max_nodes", max_nodes), ("halo", halo), ("block_nodes", block_nodes)):
            if not isinstance(value, int | np.integer):
                raise ValueError(f"{name} is {value!r}; want a whole number")
        if max_nodes < 1:
            raise ValueError(f"max_nodes is {max_nodes}; a segment needs room for at least one node")
        if halo < 0:
            raise ValueError(f"halo is {halo}; it counts hops, from 0")
        if block_nodes < 1:
            raise ValueError(f"block_nodes is {block_nodes}; a range needs at least one node")
        self.graph, self.max_nodes, self.halo, self.scratch, self.chunk = graph, max_nodes, halo, scratch, chunk
        self.num_blocks = -(-graph.num_nodes // block_nodes)
        self._bounds = np.arange(self.num_blocks + 1) * graph.num_nodes // self.num_blocks
        self.edge_cut = 0.0  # known after the last piece
        self._incoming = neighbours(graph.edges, 1, graph.num_nodes, block_nodes, scratch, chunk, bool(graph.edge_data))
        _refuse_virtual_node(graph, self._incoming, max_nodes)
        self._outgoing: Neighbours | None = None
        if halo:
            self._outgoing = neighbours(graph.edges, 0, graph.num_nodes, block_nodes, scratch, chunk)
        self._owned = empty_array(scratch, "owned", (graph.num_nodes,), np.int64)  # nodes segment by segment
        self._columns = empty_array(scratch, "columns", (graph.num_nodes,), np.int32)
        self._order = empty_array(scratch, "order", (len(graph.config_nodes),), np.int64)
        self._counts: list[np.ndarray] = []  # nodes of each segment, by range

    def jobs(self) -> Iterator[Job]:
        for low, high in zip(self._bounds[:-1].tolist(), self._bounds[1:].tolist(), strict=True):
            edges = self.graph.edges if self.num_blocks == 1 else self._incoming.within(low, high)
            yield edges, high - low, num_parts_for(high - low, self.max_nodes)

    @property
    def assigned(self) -> bool:
        """True if all jobs are answered."""
        return len(self._counts) == self.num_blocks

    def assign(self, parts: Int64[np.ndarray, " nodes"]) -> None:
        """The answer to the next job."""
        low, high = self._bounds[len(self._counts) : len(self._counts) + 2]
        self._owned[low:high] = low + np.argsort(parts, kind="stable")
        self._counts.append(np.bincount(parts))

    def pieces(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (field of `SegmentedGraph`, a piece of it), edges as (edges, 2); pieces end to end are the field."""
        counts = np.concatenate(self._counts)
        lengths: list[dict[str, np.ndarray]] = []
        inside = 0
        self._order_columns()
        for run in _runs(counts, self.chunk):
            owned = np.array(self._owned[counts[: run.start].sum() : counts[: run.stop].sum()])
            arrays, lengths_of_run, uncut = self._arrange(owned, counts[run])
            yield from arrays.items()
            lengths.append(lengths_of_run)
            inside += uncut
        yield "owned_counts", counts
        for pointer in lengths[0]:
            yield pointer, np.concatenate([[0], np.cumsum(np.concatenate([each[pointer] for each in lengths]))])
        features = self.graph.config_features
        for part in chunks(len(features), max(1, CONFIG_BYTES // max(1, features[:1].nbytes))):
            yield "config_features", np.asarray(np.take(features[part], self._order, axis=1))
        for name in ("targets", "counts", "spreads"):
            yield name, getattr(self.graph, name)
        links = sum(int((ends[0] != ends[1]).sum()) for ends in self._edges())
        self.edge_cut = float((links - inside) / links) if links else 0.0
        if self.edge_cut > 0.5 and not self.halo:
            words = "no message passes them; larger segments (max_nodes) cut fewer, a halo keeps messages"
            warnings.warn(f"over half of the edges of a graph are cut: {words}", stacklevel=2)

    def _edges(self) -> Iterator[np.ndarray]:
        return (self.graph.edges[:, part] for part in chunks(self.graph.num_edges, self.chunk))

    def _order_columns(self) -> None:
        """Put configurable nodes in the order of the segments that own them: `_columns` is the place of each node, -1
        if it is not configurable, `_order` the graph's column at each place."""
        columns, order, config_nodes = self._columns, self._order, self.graph.config_nodes
        columns[:] = -1
        for part in chunks(len(order), self.chunk):
            columns[config_nodes[part]] = np.arange(part.start, part.stop)
        end = 0
        for part in chunks(self.graph.num_nodes, self.chunk):
            nodes = self._owned[part]
            nodes = nodes[columns[nodes] >= 0]
            order[end : end + len(nodes)] = columns[nodes]
            columns[nodes] = np.arange(end, end + len(nodes))
            end += len(nodes)

    def _arrange(
        self, owned: np.ndarray, counts: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
        """A run of segments: their arrays, how much of these belongs to each, and the number of edges not cut."""
        rows, row_counts = self._with_context(owned, counts) if self.halo else (owned, counts)
        segment_of_row = np.repeat(np.arange(len(counts)), row_counts)
        within = np.arange(len(rows)) - (np.cumsum(row_counts) - row_counts)[segment_of_row]
        producers, consumers, edge_ids = self._edges_inside(rows, segment_of_row)
        configurable = np.flatnonzero(self._columns[rows] >= 0)
        arrays = {
            "node_ids": rows,
            "node_features": np.asarray(self.graph.node_features[rows]),
            "opcodes": np.asarray(self.graph.opcodes[rows].astype(np.int32)),
            "edges": np.stack([within[producers], within[consumers]], axis=1).astype(np.int32),
            "config_rows": within[configurable].astype(np.int32),
            "config_columns": np.asarray(self._columns[rows[configurable]]),
        }
        arrays |= {f"node_data_{name}": np.asarray(array[rows]) for name, array in self.graph.node_data.items()}
        arrays |= {f"edge_data_{name}": np.asarray(array[edge_ids]) for name, array in self.graph.edge_data.items()}
        lengths = {
            "row_ptr": row_counts,
            "edge_ptr": np.bincount(segment_of_row[consumers], minlength=len(counts)),
            "config_ptr": np.bincount(segment_of_row[configurable], minlength=len(counts)),
        }
        is_owned = within < counts[segment_of_row]
        uncut = is_owned[producers] & is_owned[consumers] & (producers != consumers)
        return arrays, lengths, int(uncut.sum())

    def _edges_inside(self, rows: np.ndarray, segment_of_row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return producers and consumers as positions in `rows`, sorted by consumer, and the numbers of these edges."""
        consumers = np.repeat(np.arange(len(rows)), self._incoming.degrees(rows))
        first_keys = segment_of_row * self.graph.num_nodes
        producers = _find(first_keys + rows, first_keys[consumers] + self._incoming.of(rows))
        inside = producers >= 0
        edge_ids = self._incoming.edges_of(rows)[inside] if self.graph.edge_data else np.zeros(0, np.int64)
        return producers[inside], consumers[inside], edge_ids

    def _with_context(self, owned: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nodes of each segment, then those one hop away, then those two hops away, ..."""
        assert self._outgoing is not None
        rows = []
        for members in np.split(owned, np.cumsum(counts)[:-1]):
            frontier = members
            for _ in range(self.halo):
                around = np.concatenate([self._incoming.of(frontier), self._outgoing.of(frontier)])
                frontier = np.setdiff1d(around, members)
                members = np.concatenate([members, frontier])
            rows.append(members)
        return np.concatenate(rows), np.array([len(members) for members in rows])


def _refuse_virtual_node(graph: Graph, incoming: Neighbours, max_nodes: int) -> None:
    """One segment would hold a node that is joined to all others in both directions, and the rest would miss it."""
    if graph.num_nodes <= max(2, max_nodes):
        return
    others = graph.num_nodes - 1
    if graph.num_edges < 2 * others:
        return
    for part in chunks(graph.num_nodes):
        degrees = np.diff(incoming.starts[part.start : part.stop + 1])
        for node in (part.start + np.flatnonzero(degrees >= others)).tolist():
            heard = np.setdiff1d(incoming.of(np.array([node])), [node])
            heard_by = np.setdiff1d(graph.edges[1, graph.edges[0] == node], [node])
            if not len(heard) == len(heard_by) == others:
                continue
            raise ValueError(
                f"node {node} of graph {graph.name!r} is joined to all {others} others, as a virtual node is: one "
                "segment would hold it, and the others would miss it; leave it out (the readout sees all nodes), or "
                "give the whole graph one segment (max_nodes)"
            )


def _runs(counts: np.ndarray, num_nodes: int) -> Iterator[slice]:
    """Consecutive segments of at most `num_nodes` nodes together, more only where a single one is larger."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = ends[first] - counts[first]
        last = max(first + 1, int(np.searchsorted(ends, before + num_nodes, side="right")))
        yield slice(first, last)
        first = last


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Position of each wanted number among `keys` (distinct), -1 where it is not there."""
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    matches = order[place]
    return np.where(keys[matches] == wanted, matches, -1)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The other ends `others[starts[v]:starts[v + 1]]` of the edges of each node v, and numbers of these edges."""

    starts: Int64[np.ndarray, " nodes_plus_one"]
    others: Int64[np.ndarray, " edges"]
    edge_ids: Int64[np.ndarray, " edges"] | None = None

    def degrees(self, nodes: Int64[np.ndarray, " chosen"]) -> Int64[np.ndarray, " chosen"]:
        return np.asarray(self.starts[nodes + 1] - self.starts[nodes])

    def of(self, nodes: Int64[np.ndarray, " chosen"]) -> Int64[np.ndarray, " their_edges"]:
        """Those of one node after those of another."""
        return np.asarray(self.others[ranges(self.starts[nodes], self.starts[nodes + 1])])

    def edges_of(self, nodes: Int64[np.ndarray, " chosen"]) -> Int64[np.ndarray, " their_edges"]:
        """The numbers of their edges, in the same order."""
        assert self.edge_ids is not None
        return np.asarray(self.edge_ids[ranges(self.starts[nodes], self.starts[nodes + 1])])

    def within(self, low: int, high: int) -> Int64[np.ndarray, "2 inner"]:
        """The edges among the nodes low..high-1, as (other, node), counted from `low`."""
        starts = self.starts[low : high + 1]
        nodes = np.repeat(np.arange(low, high), np.diff(starts))
        others = self.others[starts[0] : starts[-1]]
        inner = (others >= low) & (others < high)
        return np.stack([others[inner], nodes[inner]]) - low


def neighbours(
    edges: Int64[np.ndarray, "2 edges"], side: int, num_nodes: int, block_nodes: int, scratch: Path | None = None,
    chunk: int = CHUNK, with_ids: bool = False,
) -> Neighbours:  # fmt: skip
    """Sort edges by their ends in row `side`: first into ranges of `block_nodes` nodes, then each range in memory."""
    num_edges = edges.shape[1]
    sizes = np.zeros(-(-num_nodes // block_nodes), np.int64)
    wide = np.int64(block_nodes)  # which ends of 8 or 16 bits cannot be divided by
    for part in chunks(num_edges, chunk):
        sizes += np.bincount(edges[side, part] // wide, minlength=len(sizes))
    keys = empty_array(scratch, f"nodes-{side}", (num_edges,), np.int64)
    others = empty_array(scratch, f"others-{side}", (num_edges,), np.int64)
    edge_ids = empty_array(scratch, f"edges-{side}", (num_edges,), np.int64) if with_ids else None
    ends = np.cumsum(sizes) - sizes
    for part in chunks(num_edges, chunk):
        block = edges[side, part] // wide
        order, counts = np.argsort(block, kind="stable"), np.bincount(block, minlength=len(sizes))
        place = ranges(ends, ends + counts)
        keys[place], others[place] = edges[side, part][order], edges[1 - side, part][order]
        if edge_ids is not None:
            edge_ids[place] = part.start + order
        ends += counts
    starts = empty_array(scratch, f"starts-{side}", (num_nodes + 1,), np.int64)
    starts[0] = 0
    for low, first, end in zip(range(0, num_nodes, block_nodes), ends - sizes, ends, strict=True):
        high = min(low + block_nodes, num_nodes)
        nodes = keys[first:end] - low
        order = np.argsort(nodes, kind="stable")
        others[first:end] = others[first:end][order]
        if edge_ids is not None:
            edge_ids[first:end] = edge_ids[first:end][order]
        starts[low + 1 : high + 1] = first + np.cumsum(np.bincount(nodes, minlength=high - low))
    return Neighbours(starts, others, edge_ids)


def ranges(starts: Int64[np.ndarray, " ranges"], stops: Int64[np.ndarray, " ranges"]) -> Int64[np.ndarray, " numbers"]:
    """The numbers of all half-open ranges, one range after the other."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
