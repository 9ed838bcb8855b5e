from __future__ import annotations

import tempfile
import tracemalloc
import warnings
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import graphs_and_parts, nodes_within, random_graph
from segment_reference import assert_identical, parts_of, slow_segments

from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph
from gst.graphs.segments import ARRAYS, Cutting, SegmentedGraph, collect, segment
from gst.method.batch import assemble
from partitioners import METHODS, partition


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
        configurable = [rows[row] for row in cut.config_rows[uses]]
        assert sorted(configurable) == sorted(set(rows) & set(graph.config_nodes.tolist()))
        for v, column in zip(configurable, cut.config_columns[uses], strict=True):
            given = graph.config_features[:, graph.config_nodes == v]
            assert (cut.config_features[:, [column]] == given).all()
        own = cut.config_columns[uses][cut.config_rows[uses] < cut.owned_counts[j]]
        assert (np.diff(own) == 1).all()
    assert (cut.node_features == graph.node_features[cut.node_ids]).all()
    assert (cut.opcodes == graph.opcodes[cut.node_ids]).all()


@given(graphs_and_parts(), st.integers(0, 3))
def test_arrays_stand_in_the_promised_order(drawn: tuple[Graph, np.ndarray], halo: int) -> None:
    graph, parts = drawn
    assert_identical(segment(graph, parts=parts, halo=halo), slow_segments(graph, parts, halo))


@given(graphs_and_parts(), st.integers(0, 2), st.integers(1, 5), st.integers(1, 9), st.integers(1, 4))
def test_in_pieces_and_on_disk_the_segments_are_the_same(
    drawn: tuple[Graph, np.ndarray], halo: int, max_nodes: int, block_nodes: int, chunk: int
) -> None:
    """Ranges of node ids are partitioned by themselves; all else is as if the graph had been cut at once."""
    graph, _ = drawn
    whole = segment(graph, max_nodes, "random", halo, block_nodes=block_nodes)
    parts = parts_of(whole)
    assert_identical(whole, slow_segments(graph, parts, halo))
    ranges = -(-graph.num_nodes // block_nodes)
    bounds = np.arange(ranges + 1) * graph.num_nodes // ranges
    assert all(len(set(parts[low:high]) & set(parts[high:])) == 0 for low, high in pairwise(bounds))
    with tempfile.TemporaryDirectory() as scratch:
        cut = Cutting(graph, max_nodes, halo, block_nodes, Path(scratch), chunk)
        for job in cut.jobs():
            cut.assign(partition(*job, "random", 0))
        assert_identical(collect(cut), whole)


def peak_of_cutting(num_nodes: int, scratch: Path) -> int:
    """Bytes of anonymous memory: numpy reports all of its own to tracemalloc, and none of what is mapped."""
    graph = synthetic_program(num_nodes, 4, configurable=0.01, scratch=scratch)
    (scratch / "cut").mkdir()
    tracemalloc.start()
    cut = Cutting(graph, 1000, 1, 20_000, scratch / "cut", 5000)
    for job in cut.jobs():
        cut.assign(partition(*job, "contiguous", 0))
    for _ in cut.pieces():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_graph(tmp_path: Path) -> None:
    peaks = []
    for num_nodes in (40_000, 400_000):
        (tmp_path / str(num_nodes)).mkdir()
        peaks.append(peak_of_cutting(num_nodes, tmp_path / str(num_nodes)))
    assert peaks[1] < 1.1 * peaks[0]


def test_a_fingerprint_changes_with_each_array_that_an_encoder_sees() -> None:
    cut = segment(random_graph(0, data=True), 8)
    names = [name for name in ARRAYS if name not in ("node_ids", "targets", "counts", "spreads")]
    other = {name: replace(cut, **{name: np.flip(getattr(cut, name)) + 1}).fingerprint for name in names}
    other |= {"node_data": replace(cut, node_data={"place": cut.node_data["place"] + 1}).fingerprint}
    assert len({*other.values(), cut.fingerprint}) == len(other) + 1
    assert replace(cut, targets=cut.targets + 1).fingerprint == cut.fingerprint


# Odd graphs ----------------------------------------------------------------------------------------

PATH = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
ODD = {
    "one node": (1, []),
    "one node with a loop": (1, [(0, 0), (0, 0)]),
    "no edges": (7, []),
    "isolated nodes": (9, [(0, 4), (4, 8)]),
    "self loops": (6, [*PATH, (2, 2), (5, 5), (5, 5)]),
    "only self loops": (5, [(v, v) for v in range(5)]),
    "repeated edges": (6, PATH * 3),
    "reversed edges": (6, [*PATH, *[(v, u) for u, v in PATH]]),
    "two pieces": (8, [(0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)]),
    "a hub": (9, [(v, 0) for v in range(1, 9)] + [(0, 8)]),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ODD)
def test_odd_graphs_are_cut_like_others(kind: str, method: str) -> None:
    num_nodes, pairs = ODD[kind]
    edges = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    graph = Graph(np.arange(num_nodes, dtype=np.float32)[:, None], edges, config_nodes=np.arange(num_nodes)[::-2])
    for max_nodes in (1, 2, 3, 100):  # 1: as many segments as nodes
        for halo in (0, 1, 2):
            cut = segment(graph, max_nodes, method, halo, block_nodes=6)
            assert cut.owned_counts.min() >= 1 and cut.owned_counts.max() <= max_nodes
            assert cut.owned_counts.sum() == num_nodes and 0 <= cut.edge_cut <= 1
            assert_identical(cut, slow_segments(graph, parts_of(cut), halo))


@given(graphs_and_parts(data=True), graphs_and_parts(data=True), st.integers(0, 1), st.randoms())
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
        assert (batch.node_data["place"][rows].numpy() == graph.node_data["place"][held]).all()
        for name, array in graph.edge_data.items():
            expected = array[graph.edge_ptr[j] : graph.edge_ptr[j + 1]]
            assert (batch.edge_data[name][inside].numpy() == expected).all()
        here = batch.segment_of_node[batch.config_nodes] == i
        columns = graph.config_columns[graph.config_ptr[j] : graph.config_ptr[j + 1]]
        for c, config in enumerate(configs[g].clamp(min=0).tolist()):
            assert batch.config_features[here][:, c].tolist() == graph.config_features[config][columns].tolist()
    assert (batch.segment_of_node[batch.edge_index[0]] == batch.segment_of_node[batch.edge_index[1]]).all()


def test_expanded_gives_a_plain_model_one_copy_per_configuration() -> None:
    graph = random_graph(5)
    batch = assemble([segment(graph, 8)], [(0, 1), (0, 0)], torch.tensor([[2, 0, 1]]))
    copies = batch.expanded()
    x, edge_index = copies.x, copies.edge_index
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
        {"block_nodes": 0},
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


def test_a_cut_of_over_half_of_the_edges_is_warned_about_unless_a_halo_keeps_them() -> None:
    everywhere = Graph(np.zeros((40, 1), np.float32), np.random.default_rng(0).integers(0, 40, (2, 400)))
    with pytest.warns(UserWarning, match="over half of the edges of a graph"):
        assert segment(everywhere, max_nodes=4).edge_cut > 0.5
    chain = Graph(np.zeros((40, 1), np.float32), np.stack([np.arange(39), np.arange(1, 40)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        segment(everywhere, max_nodes=4, halo=1)
        segment(chain, max_nodes=4)
