"""Classes of configurations: two are of one class in a segment where its configurable nodes see the same features."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gst.graphs import config_classes as module
from gst.graphs.config_classes import config_classes
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE


def made(num_nodes: int, num_configs: int, num_symbols: int, halo: int, dtype: str, seed: int) -> SegmentedGraph:
    generator = np.random.default_rng(seed)
    nodes = np.sort(generator.permutation(num_nodes)[: num_nodes // 2])
    features = generator.integers(num_symbols, size=(num_configs, len(nodes), 2)).astype(dtype)
    edges = np.stack([np.arange(num_nodes - 1), np.arange(1, num_nodes)])
    graph = Graph(np.ones((num_nodes, 1), np.float32), edges, config_nodes=nodes, config_features=features)
    return segment(graph, 4, "contiguous", halo=halo)


@given(
    num_nodes=st.integers(2, 40),
    num_configs=st.integers(1, 40),
    num_symbols=st.integers(1, 3),
    halo=st.integers(0, 1),
    dtype=st.sampled_from(["int8", "float32"]),
    seed=st.integers(0, 99),
)
def test_classes_are_those_of_equal_features(
    num_nodes: int, num_configs: int, num_symbols: int, halo: int, dtype: str, seed: int
) -> None:
    graph = made(num_nodes, num_configs, num_symbols, halo, dtype, seed)
    classes = config_classes(graph)
    everything = classes.of(np.arange(num_configs))
    for j in range(graph.num_segments):
        columns = graph.config_columns[graph.config_ptr[j] : graph.config_ptr[j + 1]]
        rows = [graph.config_features[config][columns].tobytes() for config in range(num_configs)]
        alike = [[one == other for other in rows] for one in rows]
        np.testing.assert_array_equal(everything[j][:, None] == everything[j][None, :], alike)
        assert set(everything[j].tolist()) == set(range(int(classes.counts[j])))


def test_features_are_read_a_bounded_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config_classes(made(40, 40, 2, 1, "int8", 0))
    monkeypatch.setattr(module, "BLOCK_BYTES", 100)
    monkeypatch.setattr(module, "FIRST_COLUMNS", 1)
    parts = config_classes(made(40, 40, 2, 1, "int8", 0))
    np.testing.assert_array_equal(whole.of(np.arange(40)), parts.of(np.arange(40)))


def test_minus_zero_is_zero() -> None:
    features = np.array([[[0.0]], [[-0.0]], [[1.0]]], np.float32)
    graph = Graph(
        np.ones((2, 1), np.float32), np.array([[0], [1]]), config_nodes=np.array([0]), config_features=features
    )
    assert config_classes(segment(graph)).of(np.arange(3)).tolist() == [[0, 0, 1]]


def test_copies_of_a_graph_that_workers_send_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, other = made(8, 6, 2, 0, "int8", 0), made(8, 6, 2, 0, "int8", 1)
    monkeypatch.setattr(module, "_of_content", {})
    first = config_classes(copy.copy(graph))  # a loader with workers unpickles a graph for every step
    assert config_classes(copy.copy(graph)) is first is not config_classes(copy.copy(other))
    for seed in range(2, 2 + module.MOST_COPIES):
        config_classes(copy.copy(made(8, 6, 2, 0, "int8", seed)))
    assert len(module._of_content) == module.MOST_COPIES and config_classes(copy.copy(graph)) is not first


def test_scores_are_exact_and_encode_a_segment_once_for_all_that_are_alike_on_it() -> None:
    graph = made(40, 30, 2, 0, "int8", 0)
    model = GraphSegmentTraining(SAGE(4, 1), nn.Linear(4, 1)).eval()
    want, counts = model.exact([graph])[0], list[int]()
    encode = model.encode
    model.encode = lambda *arguments: counts.append(arguments[2].shape[1]) or encode(*arguments)
    torch.testing.assert_close(model.scores(graph, configs_at_once=7), want)
    assert counts == config_classes(graph).counts.tolist() and max(counts) < 30
