"""Cut a graph into segments."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64, Shaped

from gst.files.packing import PackedArray
from gst.graphs.cutting import BLOCK_NODES, Cutting
from gst.graphs.graph import Graph
from partitioners import partition

Assignment = Int64[np.ndarray, " nodes"]


@dataclass(frozen=True, eq=False)
class SegmentedGraph:
    """A graph cut into segments, its arrays stored segment by segment, in memory or memory-mapped. Segment j holds
    the rows `row_ptr[j]:row_ptr[j+1]`, of which the first `owned_counts[j]` are its own nodes and the others context.

    Args:
        name: as in `Graph`.
        num_nodes: nodes of the whole graph.
        edge_cut: share of its edges whose ends belong to different segments.
        owned_counts: nodes that belong to each segment; their sum is `num_nodes`.
        row_ptr, edge_ptr, config_ptr: where each segment starts in the arrays below.
        node_ids: the node of the graph behind each row.
        node_features, opcodes: as in `Graph`, by row.
        edges: edges inside each segment, producers and consumers as row numbers within it, sorted by consumer.
        config_rows: configurable nodes as row numbers within their segment.
        config_columns: which column of `config_features` belongs to each of them; ascending and without gaps over the
            own nodes of a segment.
        config_features: as in `Graph`, columns in the order of the segments that own them and, within one, of rows.
            Of a store, layouts are packed: indexing unpacks what it takes, and nothing else (`gst.files.packing`).
        targets, counts, spreads: as in `Graph`.
    """

    name: str
    num_nodes: int
    edge_cut: float
    owned_counts: Int64[np.ndarray, " segments"]
    row_ptr: Int64[np.ndarray, " segments_plus_one"]
    edge_ptr: Int64[np.ndarray, " segments_plus_one"]
    config_ptr: Int64[np.ndarray, " segments_plus_one"]
    node_ids: Int64[np.ndarray, " rows"]
    node_features: Float32[np.ndarray, "rows features"]
    opcodes: Int32[np.ndarray, " rows"]
    edges: Int32[np.ndarray, "2 edges"]
    config_rows: Int32[np.ndarray, " uses"]
    config_columns: Int32[np.ndarray, " uses"]
    config_features: Shaped[np.ndarray, "configs configurable channels"] | PackedArray
    targets: Float64[np.ndarray, " configs"]
    counts: Int64[np.ndarray, " configs"]
    spreads: Float64[np.ndarray, " configs"]

    @property
    def num_segments(self) -> int:
        return len(self.owned_counts)

    @property
    def num_configs(self) -> int:
        return len(self.config_features)

    @property
    def balance(self) -> float:
        """Nodes of the largest segment / mean nodes per segment."""
        return float(self.owned_counts.max() * self.num_segments / self.num_nodes)

    def nbytes(self) -> int:
        arrays = (getattr(self, field.name) for field in fields(self))
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray | PackedArray))


def segment(
    graph: Graph, max_nodes: int = 1000, method: str = "metis", halo: int = 0, seed: int = 0,
    parts: Assignment | None = None, block_nodes: int = BLOCK_NODES,
) -> SegmentedGraph:  # fmt: skip
    """Cut `graph` into segments of at most `max_nodes` nodes.

    Args:
        max_nodes: the largest number of nodes that a segment may own.
        method: one of `partitioners.METHODS`.
        halo: neighbours up to this many hops away stand beside each segment as context, so that cut edges still
            carry messages. 0 drops cut edges (Cao et al. 2023); the depth of the encoder makes training with all
            segments fresh equal to training on the whole graph.
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
    if not isinstance(graph, Graph):
        given = type(graph).__name__
        raise ValueError(f"a {given} cannot be cut; want a gst.Graph (of PyG data: gst.data.pyg.from_pyg(data))")
    cut = Cutting(graph, max_nodes, halo, block_nodes if parts is None else graph.num_nodes)
    if parts is None:
        for edges, num_nodes, num_parts in cut.jobs():
            cut.assign(partition(edges, num_nodes, num_parts, method, seed))
    else:
        _check_parts(parts, graph.num_nodes)
        cut.assign(parts)
    return collect(cut)


def collect(cut: Cutting) -> SegmentedGraph:
    """All that is cut, in memory."""
    pieces: dict[str, list[np.ndarray]] = defaultdict(list)
    for field, piece in cut.pieces():
        pieces[field].append(piece)
    arrays: dict[str, np.ndarray] = {field: np.concatenate(pieces.pop(field)) for field in list(pieces)}
    arrays["edges"] = np.ascontiguousarray(arrays["edges"].T)
    return SegmentedGraph(name=cut.graph.name, num_nodes=cut.graph.num_nodes, edge_cut=cut.edge_cut, **arrays)


def _check_parts(parts: Assignment, num_nodes: int) -> None:
    if parts.shape != (num_nodes,) or parts.min(initial=0) < 0 or not np.bincount(parts).all():
        raise ValueError(
            f"parts has shape {parts.shape} and names {len(np.unique(parts))} segments up to {parts.max(initial=-1)}; "
            f"want one segment for each of {num_nodes} nodes, counted from 0, none of them empty"
        )
