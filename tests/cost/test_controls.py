"""The control of a training: regression on features summed over each graph, which shows no edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import gst
from gst.cost import controls
from gst.cost.controls import control_metrics, ridge, summed_features
from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph

CONFIGS = 60
TRAINING, HELD_OUT = torch.arange(40), torch.arange(40, CONFIGS)


def made(fractions: bool = False, seed: int = 0) -> Graph:
    """A graph whose runtimes are sums over its nodes of a cost of opcode and choice."""
    rng = np.random.default_rng(seed)
    nodes, configurable = 30, np.array([3, 4, 9, 20, 29])
    choices = rng.integers(-1, 4, (CONFIGS, 5, 2)).astype(np.int8)
    opcodes, cost = rng.integers(3, size=nodes), rng.normal(size=(3, 2, 6))
    graph = Graph(
        rng.normal(size=(nodes, 2)).astype(np.float32), np.stack([np.arange(nodes - 1), np.arange(1, nodes)]), opcodes,
        configurable, choices.astype(np.float32) / 3 if fractions else choices, np.ones(CONFIGS), name=f"made-{seed}",
    )  # fmt: skip
    of_nodes = cost[opcodes[configurable][None, :, None], np.arange(2), choices + 1]
    linear = graph.config_features @ np.array([1.0, -2.0]) if fractions else of_nodes.sum(2)
    return replace(graph, targets=10 + linear.sum(1))


@pytest.mark.parametrize("at_once", [1, 50, 1 << 22])
@pytest.mark.parametrize("max_nodes", [7, 100])
def test_features_are_sums_over_nodes_however_a_graph_is_cut(
    at_once: int, max_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "AT_ONCE", at_once)
    graph, configs = made(), np.array([5, 2, 17])
    features = summed_features(gst.segment(graph, max_nodes), configs, opcodes=3)
    assert features is not None
    by_hand = []
    for config in configs:
        counts = np.zeros((2, 3, controls.VALUES))
        for column, node in enumerate(graph.config_nodes):
            for channel, value in enumerate(graph.config_features[config, column]):
                counts[channel, graph.opcodes[node], int(value) + 1] += 1
        kinds = [float((graph.opcodes == kind).sum()) for kind in range(3)]
        by_hand.append([*graph.node_features.sum(0), *kinds, *counts.ravel()])
    np.testing.assert_allclose(features, by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "loss, metric, fractions",
    [("pairwise_hinge", "tau", False), ("pairwise_hinge", "tau", True), ("squared_error", "tau", False)],
)
def test_sums_of_costs_are_predicted(loss: str, metric: str, fractions: bool) -> None:
    graph = gst.segment(made(fractions), 10)
    assert control_metrics(loss, [(graph, TRAINING)], [(graph, HELD_OUT)])[metric] > 0.9


def test_logarithms_and_classes_are_predicted_in_their_units_and_unknown_targets_are_left_out() -> None:
    graph = made()
    runtimes = replace(graph, targets=np.where(np.arange(CONFIGS) % 7 == 3, np.nan, np.exp(graph.targets)))
    cut = gst.segment(runtimes, 10)
    assert control_metrics("log_runtime", [(cut, TRAINING)], [(cut, HELD_OUT)])["median_error"] < 0.5
    labels = (graph.targets > np.median(graph.targets)).astype(float)
    classes = replace(graph, targets=np.where(np.arange(CONFIGS) % 7 == 3, np.nan, labels))
    cut = gst.segment(classes, 10)
    every = [(cut, torch.arange(CONFIGS))]
    assert control_metrics("cross_entropy", every, every)["accuracy"] > 0.8


def test_copies_between_neighbours_are_not_seen() -> None:
    """Two graphs that differ in their edges alone have equal features; runtimes with copies are not predicted."""
    graph = made()
    moved = replace(graph, edges=graph.edges[::-1].copy())
    both = [summed_features(gst.segment(each, 10), np.arange(9), 3) for each in (graph, moved)]
    np.testing.assert_allclose(*both, atol=1e-6)
    program = gst.segment(synthetic_program(4000, 256), 500)
    parts = [(program, torch.arange(192))], [(program, torch.arange(192, 256))]
    assert control_metrics("pairwise_hinge", *parts)["tau"] < 0.4


def test_ridge_ignores_constant_columns_and_the_scale_of_others() -> None:
    rng = np.random.default_rng(0)
    features, weights = rng.normal(size=(200, 4)), rng.normal(size=(4, 1))
    features[:, 2] = 1e6
    goals = features[:, [0, 1, 3]] @ weights[[0, 1, 3]] + 5
    scaled = features * np.array([1e-6, 1e3, 1, 1])
    for design in (features, scaled):
        np.testing.assert_allclose(ridge(design, goals)(design), goals, rtol=0.02, atol=0.02)


def test_features_that_take_too_long_give_no_control() -> None:
    graph = gst.segment(made(), 10)
    ticks = iter(range(1000))
    clock = lambda: float(next(ticks))  # noqa: E731
    assert control_metrics("pairwise_hinge", [(graph, TRAINING)], [(graph, HELD_OUT)], 3.5, clock=clock) == {}


def test_graphs_without_configurations_or_known_targets_are_fitted_too() -> None:
    sizes = np.arange(3, 15)
    graphs = [
        gst.segment(Graph(np.ones((size, 1), np.float32), np.zeros((2, 0), np.int64), targets=np.array([2.0 * size])))
        for size in sizes
    ]
    parts = [[(graph, torch.zeros(1, dtype=torch.long)) for graph in part] for part in (graphs[::2], graphs[1::2])]
    assert control_metrics("squared_error", *parts)["mae"] < 0.5
    unknown = gst.segment(replace(made(seed=2), targets=np.full(CONFIGS, np.nan)), 10)
    graph = gst.segment(made(), 10)
    assert control_metrics("pairwise_hinge", [(unknown, TRAINING), (graph, TRAINING)], [(graph, HELD_OUT)])["tau"] > 0.9
