"""Cut a graph into segments, and put chosen segments side by side for an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int32, Int64, Shaped
from torch import Tensor

from gst.batch import SegmentBatch
from gst.graph import Graph
from partitioners import num_parts_for, partition, quality

Assignment = Int64[np.ndarray, " nodes"]


@dataclass(frozen=True, eq=False)
class SegmentedGraph:
    """A graph whose arrays stand segment by segment, in memory or memory-mapped. Segment j holds the rows
    `row_ptr[j]:row_ptr[j+1]`, of which the first `owned_counts[j]` are its own nodes and the others context.

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
        config_columns: which column of `config_features` belongs to each of them.
        config_features, targets, counts, spreads: as in `Graph`.
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
    config_features: Shaped[np.ndarray, "configs configurable channels"]
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
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


def segment(
    graph: Graph, max_nodes: int = 1000, method: str = "metis", halo: int = 0, seed: int = 0,
    parts: Assignment | None = None,
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
    """
    if max_nodes < 1:
        raise ValueError(f"max_nodes is {max_nodes}; a segment needs room for at least one node")
    if halo < 0:
        raise ValueError(f"halo is {halo}; it counts hops, from 0")
    if parts is None:
        num_parts = num_parts_for(graph.num_nodes, max_nodes)
        parts = partition(graph.edges, graph.num_nodes, num_parts, method, seed)
    elif parts.shape != (graph.num_nodes,) or parts.min(initial=0) < 0 or not np.bincount(parts).all():
        raise ValueError(
            f"parts has shape {parts.shape} and names {len(np.unique(parts))} segments up to {parts.max(initial=-1)}; "
            f"want one segment for each of {graph.num_nodes} nodes, counted from 0, none of them empty"
        )
    rows = _owned_rows(parts) if halo == 0 else _rows_with_context(graph, parts, halo)
    return _arrange(graph, *rows, quality(graph.edges, parts).edge_cut)


def _owned_rows(parts: Assignment) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    owned_counts = np.bincount(parts)
    return np.argsort(parts, kind="stable"), owned_counts, owned_counts


def _rows_with_context(graph: Graph, parts: Assignment, halo: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    node_ids, owned_counts, _ = _owned_rows(parts)
    both = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    both = both[:, np.argsort(both[0], kind="stable")]
    neighbour_ptr = np.concatenate([[0], np.cumsum(np.bincount(both[0], minlength=graph.num_nodes))])
    inside = np.zeros(graph.num_nodes, bool)
    rows, row_counts = [], []
    for owned in np.split(node_ids, np.cumsum(owned_counts)[:-1]):
        inside[owned] = True
        members, frontier = [owned], owned
        for _ in range(halo):
            around = both[1][_ranges(neighbour_ptr[frontier], neighbour_ptr[frontier + 1])]
            frontier = np.unique(around[~inside[around]])
            inside[frontier] = True
            members.append(frontier)
        rows.append(np.concatenate(members))
        row_counts.append(len(rows[-1]))
        inside[rows[-1]] = False
    return np.concatenate(rows), owned_counts, np.array(row_counts)


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The numbers of all half-open ranges, one range after the other."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def _arrange(
    graph: Graph, node_ids: np.ndarray, owned_counts: np.ndarray, row_counts: np.ndarray, edge_cut: float
) -> SegmentedGraph:
    num_segments = len(row_counts)
    row_ptr = np.concatenate([[0], np.cumsum(row_counts)])
    segment_of_row = np.repeat(np.arange(num_segments), row_counts)

    # An edge stands in every segment that holds both of its ends: find the producers among the rows by (segment, node).
    in_order = np.argsort(graph.edges[1], kind="stable")
    producers = graph.edges[0][in_order]
    producer_ptr = np.concatenate([[0], np.cumsum(np.bincount(graph.edges[1], minlength=graph.num_nodes))])
    degrees = (producer_ptr[1:] - producer_ptr[:-1])[node_ids]
    consumer_rows = np.repeat(np.arange(len(node_ids)), degrees)
    wanted = (
        segment_of_row[consumer_rows] * graph.num_nodes
        + producers[_ranges(producer_ptr[node_ids], producer_ptr[node_ids + 1])]
    )
    producer_rows = _find(segment_of_row * graph.num_nodes + node_ids, wanted)
    present = producer_rows >= 0
    producer_rows, consumer_rows = producer_rows[present], consumer_rows[present]
    starts = row_ptr[segment_of_row[consumer_rows]]
    edge_counts = np.bincount(segment_of_row[consumer_rows], minlength=num_segments)

    column_of_node = np.full(graph.num_nodes, -1)
    column_of_node[graph.config_nodes] = np.arange(len(graph.config_nodes))
    configurable = np.flatnonzero(column_of_node[node_ids] >= 0)
    config_counts = np.bincount(segment_of_row[configurable], minlength=num_segments)

    return SegmentedGraph(
        name=graph.name,
        num_nodes=graph.num_nodes,
        edge_cut=edge_cut,
        row_ptr=row_ptr,
        edge_ptr=np.concatenate([[0], np.cumsum(edge_counts)]),
        config_ptr=np.concatenate([[0], np.cumsum(config_counts)]),
        owned_counts=owned_counts,
        node_ids=node_ids,
        node_features=graph.node_features[node_ids],
        opcodes=graph.opcodes[node_ids].astype(np.int32),
        edges=np.stack([producer_rows - starts, consumer_rows - starts]).astype(np.int32),
        config_rows=(configurable - row_ptr[segment_of_row[configurable]]).astype(np.int32),
        config_columns=column_of_node[node_ids[configurable]].astype(np.int32),
        config_features=graph.config_features,
        targets=graph.targets,
        counts=graph.counts,
        spreads=graph.spreads,
    )


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Position of each wanted number among `keys` (distinct), -1 where it is not there."""
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    found = order[place]
    return np.where(keys[found] == wanted, found, -1)


def assemble(
    graphs: Sequence[SegmentedGraph],
    picks: Sequence[tuple[int, int]],
    configs: Int64[Tensor, "graphs configs"],
) -> SegmentBatch:
    """Put segments side by side.

    Args:
        picks: (position in `graphs`, segment of that graph) of each segment of the batch.
        configs: configurations of each graph; -1 (padding) repeats the graph's first one.
    """
    chosen = configs.clamp(min=0).numpy()
    parts: dict[str, list[np.ndarray]] = {key: [] for key in ("x", "op", "edges", "rows", "config")}
    row_counts, owned_counts = [], []
    start = 0
    for g, j in picks:
        graph = graphs[g]
        rows = slice(graph.row_ptr[j], graph.row_ptr[j + 1])
        uses = slice(graph.config_ptr[j], graph.config_ptr[j + 1])
        columns = graph.config_columns[uses]
        parts["x"].append(graph.node_features[rows])
        parts["op"].append(graph.opcodes[rows])
        parts["edges"].append(graph.edges[:, graph.edge_ptr[j] : graph.edge_ptr[j + 1]].astype(np.int64) + start)
        parts["rows"].append(graph.config_rows[uses].astype(np.int64) + start)
        parts["config"].append(graph.config_features[chosen[g][None, :], columns[:, None]].astype(np.float32))
        row_counts.append(rows.stop - rows.start)
        owned_counts.append(graph.owned_counts[j])
        start += row_counts[-1]
    lengths, owned = np.array(row_counts), np.array(owned_counts)
    within = np.arange(start) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    segment_of_node = np.repeat(np.arange(len(picks)), lengths)
    tensor = torch.from_numpy
    return SegmentBatch(
        node_features=tensor(np.concatenate(parts["x"])),
        opcodes=tensor(np.concatenate(parts["op"]).astype(np.int64)),
        edge_index=tensor(np.concatenate(parts["edges"], axis=1)),
        segment_of_node=tensor(segment_of_node),
        owned=tensor(within < owned[segment_of_node]),
        node_counts=tensor(owned.astype(np.int64)),
        config_nodes=tensor(np.concatenate(parts["rows"])),
        config_features=tensor(np.concatenate(parts["config"])),
    )
