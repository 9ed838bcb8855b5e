"""Features of configurations are read from arrays of any kind, and what is out of range is an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gst
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch, assemble
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import NoFixedShapes, Sizes
from gst.method.fixed_step import FixedStep
from tests.method.host_waits import Messages, graphs

CONFIGS = torch.tensor([[4, 0, 0], [1, 3, 2]])
PICKS = [(0, 1), (1, 0), (1, 2)]


def made(features: np.ndarray) -> SegmentedGraph:
    nodes = np.arange(12)
    edges = np.stack([nodes[:-1], nodes[1:]])
    return gst.segment(
        gst.Graph(np.ones((12, 2), np.float32), edges, config_nodes=nodes[::2], config_features=features), 4,
        "contiguous",
    )  # fmt: skip


def by_hand(data: list[SegmentedGraph]) -> np.ndarray:
    """The slow twin: one number after another."""
    return np.array([
        [data[g].config_features[config, column] for config in CONFIGS[g].tolist()]
        for g, j in PICKS
        for column in data[g].config_columns[data[g].config_ptr[j] : data[g].config_ptr[j + 1]]
    ], np.float32)  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "int8", "strided", "mapped"])
def test_features_are_those_of_the_graph(kind: str, tmp_path: Path) -> None:
    features = np.random.default_rng(0).integers(9, size=(2, 5, 6, 3))
    arrays = [each.astype(np.int8 if kind == "int8" else np.float32) for each in features]
    data = [made(each) for each in arrays]
    if kind == "strided":
        data = [replace(each, config_features=np.asfortranarray(each.config_features)) for each in data]
    if kind == "mapped":
        for number, each in enumerate(data):
            np.save(tmp_path / f"{number}.npy", each.config_features)
        data = [
            replace(each, config_features=np.load(tmp_path / f"{number}.npy", mmap_mode="r"))
            for number, each in enumerate(data)
        ]
    batch = assemble(data, PICKS, CONFIGS)
    np.testing.assert_array_equal(batch.config_features.numpy(), by_hand(data))
    assert batch.config_features.dtype == torch.float32


def test_what_is_out_of_range_is_an_error() -> None:
    graph = made(np.ones((5, 6, 3), np.float32))
    last = graph.num_segments - 1
    for wrong in (
        lambda: assemble([graph], [(0, 0)], torch.tensor([[5]])),
        lambda: assemble([replace(graph, config_columns=graph.config_columns + 1)], [(0, last)], torch.tensor([[0]])),
        lambda: assemble([replace(graph, config_columns=graph.config_columns - 1)], [(0, 0)], torch.tensor([[1]])),
        lambda: assemble([graph], [(0, last + 1)], torch.tensor([[0]])),
    ):
        with pytest.raises(IndexError):
            wrong()


def test_a_batch_is_padded_where_it_is_and_a_graph_that_needs_gradients_is_refused() -> None:
    batch = assemble(graphs(), [(0, 1), (1, 0)], torch.tensor([[0], [1]]))
    sizes = batch.num_nodes + 4, batch.edge_index.shape[1] + 3, len(batch.config_nodes) + 1
    there = batch.to(torch.device("meta"), torch.float32).padded_to(*sizes)
    assert isinstance(there, SegmentBatch) and there.edge_index.device.type == "meta"
    graph = graphs()[0]
    width = graph.node_features.shape[1]
    vars(graph)["sources"] = {"x": torch.ones(len(graph.node_features), width, requires_grad=True)}
    model = GraphSegmentTraining(Messages(), torch.nn.LazyLinear(1), estimate="fresh")
    step = FixedStep(model, lambda *both: (both[0] - both[1]).mean(), None, Sizes.of([graph], 1, 1, 1))
    with pytest.raises(NoFixedShapes, match="no gradient"):
        step.load(step.draw([graph], torch.zeros(1, 1, dtype=torch.int64)))
