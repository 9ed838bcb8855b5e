"""Slow twin of the arrangement of a graph by segments: lists and loops, every array in its promised order."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from reference import nodes_within

from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph


def slow_segments(graph: Graph, parts: np.ndarray, halo: int) -> SegmentedGraph:
    """The segments of `graph`, `parts` giving that of each node."""
    edges = graph.edges.T.tolist()
    column_of_node = {v: i for i, v in enumerate(graph.config_nodes.tolist())}
    segments = [np.flatnonzero(parts == j).tolist() for j in range(parts.max() + 1)]
    order = [v for nodes in segments for v in nodes if v in column_of_node]
    ids, held, edge_ids, row_of_use, columns = [], [], [], [], []
    counts = {"row_ptr": [0], "edge_ptr": [0], "config_ptr": [0]}
    for owned in segments:
        rows = list(owned)
        for _ in range(halo):
            rows += sorted(nodes_within(graph, set(rows), 1) - set(rows))
        ids += rows
        for i, v in enumerate(rows):
            inside = [(rows.index(u), e) for e, (u, w) in enumerate(edges) if w == v and u in rows]
            held += [(producer, i) for producer, _ in inside]
            edge_ids += [e for _, e in inside]
            if v in column_of_node:
                row_of_use.append(i)
                columns.append(order.index(v))
        for pointer, length in zip(counts, (len(ids), len(held), len(columns)), strict=True):
            counts[pointer].append(length)
    links = [(u, v) for u, v in edges if u != v]
    return SegmentedGraph(
        name=graph.name,
        num_nodes=graph.num_nodes,
        edge_cut=sum(bool(parts[u] != parts[v]) for u, v in links) / max(1, len(links)),
        owned_counts=np.array([len(owned) for owned in segments]),
        **{pointer: np.array(lengths) for pointer, lengths in counts.items()},
        node_ids=np.array(ids),
        node_features=graph.node_features[ids],
        opcodes=graph.opcodes[ids].astype(np.int32),
        edges=np.array(held, np.int32).reshape(-1, 2).T,
        config_rows=np.array(row_of_use, np.int32),
        config_columns=np.array(columns, np.int32),
        config_features=graph.config_features[:, [column_of_node[v] for v in order]],
        targets=graph.targets,
        counts=graph.counts,
        spreads=graph.spreads,
        node_data={name: array[ids] for name, array in graph.node_data.items()},
        edge_data={name: array[np.array(edge_ids, int)] for name, array in graph.edge_data.items()},
    )


def parts_of(cut: SegmentedGraph) -> np.ndarray:
    """The segment that owns each node."""
    parts = np.full(cut.num_nodes, -1)
    for j, (start, owned) in enumerate(zip(cut.row_ptr, cut.owned_counts, strict=False)):
        parts[cut.node_ids[start : start + owned]] = j
    return parts


def assert_identical(cut: SegmentedGraph, truth: SegmentedGraph) -> None:
    """Bit for bit."""
    for data in ("node_data", "edge_data"):
        ours, theirs = getattr(cut, data), getattr(truth, data)
        assert {name: (array.dtype, array.shape, array.tobytes()) for name, array in ours.items()} == {
            name: (array.dtype, array.shape, array.tobytes()) for name, array in theirs.items()
        }, data
    for field in fields(truth)[: -len(("node_data", "edge_data"))]:
        ours, theirs = getattr(cut, field.name), getattr(truth, field.name)
        if isinstance(theirs, np.ndarray):
            described = [(array.dtype, array.shape, array.tobytes()) for array in (ours, theirs)]
            assert described[0] == described[1], field.name
        else:
            assert ours == theirs, field.name
