"""Explanations of scores: the prediction really changes so when a segment or an operation is as in the fastest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import gst
from gst.cost.explain import MOST_PAIRS, MOST_SHOWN, explain
from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph
from gst.method.estimator import GraphSegmentTraining


def cut(num_nodes: int = 240, num_configs: int = 9, halo: int = 0) -> tuple[Graph, SegmentedGraph]:
    graph = synthetic_program(num_nodes, num_configs, num_regions=2, seed=3)
    return graph, gst.segment(graph, max_nodes=40, halo=halo)


def estimator(head: nn.Module, pooling: str = "sum") -> GraphSegmentTraining:
    torch.manual_seed(0)
    return GraphSegmentTraining(gst.nn.SAGE(channels=16, num_layers=2), head, pooling=pooling)


def left_out(model: GraphSegmentTraining, graph: Graph, why: dict, nodes: list[int], halo: int = 0) -> float:
    """Mean change of the score when `nodes` have their features of the fast configuration, predicted from scratch."""
    slow, fast = why["slow"], why["fast"]
    features = graph.config_features[slow].copy()
    columns = np.isin(graph.config_nodes, nodes)
    features[:, columns] = graph.config_features[fast][:, columns]
    both = np.concatenate([graph.config_features[slow], features])
    mixed = Graph(graph.node_features, graph.edges, graph.opcodes, graph.config_nodes, both, name="mixed")
    scores = model.exact([gst.segment(mixed, max_nodes=40, halo=halo)]).flatten()
    return float((scores[: len(slow)] - scores[len(slow) :]).mean())


@pytest.mark.parametrize("pooling", ["sum", "mean", "std"])
@pytest.mark.parametrize("head", [nn.Linear(16, 1), gst.nn.Head(16)])
def test_segments_and_operations_contribute_what_leaving_them_out_changes(head: nn.Module, pooling: str) -> None:
    (graph, segments), model = cut(), estimator(head, pooling)
    why = explain(model, segments, graph.targets)
    assert why["fast"] + why["slow"][::-1] == np.delete(np.argsort(graph.targets), 4).tolist()
    assert len(why["segments"]) == segments.num_segments and len(why["operations"]) == MOST_SHOWN
    for name, value in why["segments"]:
        number = int(name.removeprefix("segment "))
        start = segments.row_ptr[number]
        own = segments.node_ids[start : start + segments.owned_counts[number]].tolist()
        assert value == pytest.approx(left_out(model, graph, why, own), rel=1e-3, abs=1e-5)
    for name, value in why["operations"]:
        node = int(name.removeprefix("operation "))
        assert value == pytest.approx(left_out(model, graph, why, [node]), rel=1e-3, abs=1e-5)
    assert why["difference"] == pytest.approx(left_out(model, graph, why, [*graph.config_nodes]), rel=1e-3, abs=1e-5)
    if isinstance(head, nn.Linear) and pooling != "std":
        together = sum(value for _, value in why["segments"])
        assert together == pytest.approx(why["difference"], rel=1e-3, abs=1e-5)
    for parts in (why["segments"], why["operations"]):
        assert [abs(value) for _, value in parts] == sorted((abs(value) for _, value in parts), reverse=True)


def test_an_operation_counts_in_the_segments_that_have_it_as_context() -> None:
    (graph, segments), model = cut(halo=1), estimator(gst.nn.Head(16))
    why = explain(model, segments, graph.targets)
    for name, value in why["operations"]:
        node = int(name.removeprefix("operation "))
        assert value == pytest.approx(left_out(model, graph, why, [node], halo=1), rel=1e-3, abs=1e-5)


def test_names_of_opcodes_and_configurations_without_a_time() -> None:
    (graph, segments), model = cut(num_configs=30), estimator(nn.Linear(16, 1))
    times = np.where(np.arange(30) < 20, graph.targets, np.nan)
    why = explain(model, segments, times, [f"kind{number}" for number in range(8)])
    assert len(why["slow"]) == len(why["fast"]) == MOST_PAIRS and max(why["slow"] + why["fast"]) < 20
    for name, _ in why["operations"]:
        kind, node = name.split()
        assert kind == f"kind{graph.opcodes[int(node)]}"


def test_equal_configurations_have_nothing_to_show() -> None:
    graph, _ = cut()
    same = replace(graph, config_features=np.repeat(graph.config_features[:1], 9, 0), name="same")
    why = explain(estimator(nn.Linear(16, 1)), gst.segment(same, max_nodes=40), graph.targets)
    assert why["segments"] == why["operations"] == [] and why["difference"] == 0


@pytest.mark.parametrize(
    "head, pooling, num_configs, told",
    [
        (nn.Linear(16, 1), "max", 9, "rows of segments do not add up"),
        (nn.Linear(16, 1), "sum", 1, "fewer than two configurations"),
        (nn.Linear(16, 3), "sum", 9, "3 outputs"),
    ],
)
def test_what_cannot_be_explained_is_refused(head: nn.Module, pooling: str, num_configs: int, told: str) -> None:
    graph, segments = cut(num_configs=num_configs)
    with pytest.raises(ValueError, match=told):
        explain(estimator(head, pooling), segments, graph.targets)
