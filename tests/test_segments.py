from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import graphs_and_parts, nodes_within, random_graph

from gst.graph import Graph
from gst.segments import SegmentedGraph, assemble, segment
from partitioners import METHODS


def rows_of(cut: SegmentedGraph, j: int) -> list[int]:
    return cut.node_ids[cut.row_ptr[j] : cut.row_ptr[j + 1]].tolist()


@given(graphs_and_parts(), st.integers(0, 3))
def test_segments_hold_their_nodes_their_context_and_the_edges_between(
    drawn: tuple[Graph, np.ndarray], halo: int
) -> None:
    graph, parts = drawn
    cut = segment(graph, parts=parts, halo=halo)
    assert cut.num_segments == parts.max() + 1 and cut.owned_counts.sum() == graph.num_nodes
    for j in range(cut.num_segments):
        rows, owned = rows_of(cut, j), set(np.flatnonzero(parts == j).tolist())
        assert len(rows) == len(set(rows)) and set(rows[: cut.owned_counts[j]]) == owned
        assert set(rows) == nodes_within(graph, owned, halo)
        edges = cut.edges[:, cut.edge_ptr[j] : cut.edge_ptr[j + 1]]
        assert (np.diff(edges[1]) >= 0).all()
        held = Counter((rows[u], rows[v]) for u, v in edges.T)
        assert held == Counter((u, v) for u, v in graph.edges.T.tolist() if u in rows and v in rows)
        uses = slice(cut.config_ptr[j], cut.config_ptr[j + 1])
        columns = {
            rows[row]: column
            for row, column in zip(cut.config_rows[uses], cut.config_columns[uses], strict=True)
        }
        assert columns == {v: i for i, v in enumerate(graph.config_nodes.tolist()) if v in rows}
    assert (cut.node_features == graph.node_features[cut.node_ids]).all()
    assert (cut.opcodes == graph.opcodes[cut.node_ids]).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("max_nodes", [1, 7, 24, 100])
def test_no_segment_owns_more_than_it_may(method: str, max_nodes: int) -> None:
    cut = segment(random_graph(3), max_nodes, method)
    assert cut.owned_counts.max() <= max_nodes and cut.owned_counts.min() >= 1


@given(graphs_and_parts(), graphs_and_parts(), st.integers(0, 1), st.randoms())
def test_a_batch_sets_segments_side_by_side(
    one: tuple[Graph, np.ndarray], other: tuple[Graph, np.ndarray], halo: int, random: object
) -> None:
    wide = [g for g, _ in (one, other) if g.config_features.shape[2] != one[0].config_features.shape[2]]
    graphs = [segment(g, parts=parts, halo=halo) for g, parts in ((one, one) if wide else (one, other))]
    picks = [(g, j) for g in (1, 0) for j in range(graphs[g].num_segments)]
    configs = torch.stack([torch.arange(2) % graph.num_configs for graph in graphs])
    configs[0, 1] = -1
    batch = assemble(graphs, picks, configs)
    assert batch.num_segments == len(picks) and (batch.edge_index[1].diff() >= 0).all()
    for i, (g, j) in enumerate(picks):
        graph, rows = graphs[g], (batch.segment_of_node == i).nonzero().flatten()
        held = slice(graph.row_ptr[j], graph.row_ptr[j + 1])
        assert (batch.node_features[rows].numpy() == graph.node_features[held]).all()
        assert batch.owned[rows].tolist() == [k < graph.owned_counts[j] for k in range(len(rows))]
        inside = (batch.segment_of_node[batch.edge_index] == i).all(0)
        edges = graph.edges[:, graph.edge_ptr[j] : graph.edge_ptr[j + 1]]
        assert (batch.edge_index[:, inside] - rows[0]).tolist() == edges.tolist()
        here = batch.segment_of_node[batch.config_nodes] == i
        columns = graph.config_columns[graph.config_ptr[j] : graph.config_ptr[j + 1]]
        for c, config in enumerate(configs[g].clamp(min=0).tolist()):
            assert (
                batch.config_features[here][:, c].tolist() == graph.config_features[config][columns].tolist()
            )
    assert (batch.segment_of_node[batch.edge_index[0]] == batch.segment_of_node[batch.edge_index[1]]).all()


def test_expanded_gives_a_plain_model_one_copy_per_configuration() -> None:
    graph = random_graph(5)
    batch = assemble([segment(graph, 8)], [(0, 1), (0, 0)], torch.tensor([[2, 0, 1]]))
    x, edge_index = batch.expanded()
    for c in range(3):
        copy = x[c * batch.num_nodes : (c + 1) * batch.num_nodes]
        given = torch.zeros(batch.num_nodes, 2).index_copy(0, batch.config_nodes, batch.config_features[:, c])
        assert copy.equal(torch.cat([batch.node_features, given], 1))
        inside = edge_index[0] // batch.num_nodes == c
        assert (edge_index[:, inside] - c * batch.num_nodes).equal(batch.edge_index)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_nodes": 0},
        {"method": "magic"},
        {"halo": -1},
        {"parts": np.zeros(23, np.int64)},
        {"parts": np.zeros(25, np.int64)},
        {"parts": np.arange(24) % 3 * 2},
        {"parts": np.full(24, -1)},
    ],
    ids=str,
)
def test_impossible_cuts_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError):
        segment(random_graph(0), **bad)
