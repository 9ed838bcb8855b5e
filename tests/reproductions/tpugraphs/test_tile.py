"""Tile sizes: features against tables worked by hand, error@K against every order, and kernels nobody trained on."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.reproductions.tpugraphs import tile
from experiments.reproductions.tpugraphs.late_fusion import Settings, fit_late_fusion
from experiments.reproductions.tpugraphs.tile_features import NAMES, tile_features
from gst.cost.metrics import kendall_tau, slowdown_at_k
from gst.graphs.graph import Graph
from tests.files import ROOT

FILES = sorted((ROOT / "tests" / "fixtures" / "tile").glob("*.npz"))
SHORT = Settings(steps=60)


@pytest.fixture(scope="module")
def kernels() -> list[tile.Kernel]:
    """A copy, a reduction and a matrix product, all fused."""
    return [tile.Kernel.of(path) for path in FILES]


def named(graph: Graph, config: int) -> dict[str, float]:
    """The features of a configuration, no longer as logarithms except the square of one."""
    row = tile_features(graph)[config]
    return dict(zip(NAMES, [*np.exp(row[:-1]), row[-1]], strict=True))


def test_features_of_a_matrix_product_worked_by_hand(kernels: list[tile.Kernel]) -> None:
    """(32 x 4096)^T (32 x 1000), stored as 1000 x 4096: 125 x 32 registers from a kernel of 4 x 8."""
    graph = kernels[2].graph
    fastest = int(graph.targets.argmin())
    bounds = graph.config_features[fastest, 0]
    assert bounds[[0, 1, 8, 9]].tolist() == [4, 1, 16, 32]
    assert named(graph, fastest) == pytest.approx(
        {
            "passes": 8, "output_tiles": 8, "contraction_tiles": 1, "padding": 8 * 16 / 125, "output_volume": 512,
            "kernel_volume": 4, "lanes": 1, "sublanes": 16 / 125, "output_volume_squared": np.log(512) ** 2,
        }
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=6), st.integers(1, 7))
def test_expected_slowdown_is_the_mean_over_every_order_of_equal_scores(rows: list[tuple[int, int]], k: int) -> None:
    scores, targets = np.array(rows, float).T
    orders = itertools.permutations(range(len(rows)))
    each = [slowdown_at_k(scores[list(order)], targets[list(order)], k) for order in orders]
    assert tile.expected_slowdown(scores, targets, k) == pytest.approx(np.mean(each))


def test_nobody_learns_from_the_kernel_held_out(kernels: list[tile.Kernel]) -> None:
    def perfect(known: list[tile.Kernel], held_out: tile.Kernel, seed: int) -> np.ndarray:
        assert held_out not in known and len(known) == 2
        return held_out.graph.targets

    summary = tile.leave_one_out(kernels, perfect, seeds=2)
    assert summary["error_at_1_distinct"] == 0
    assert 0 < summary["error_at_1"] < 1e-4  # fusion.232 has one configuration twice: 57,188 and 57,204 ns
    assert summary["error_at_1_deviation"] == 0


def test_a_score_depends_on_no_other_configuration_and_on_the_graph_if_it_enters(kernels: list[tile.Kernel]) -> None:
    graphs, features = [kernel.graph for kernel in kernels], [kernel.features for kernel in kernels]
    model = fit_late_fusion(graphs, features, SHORT, seed=0)
    scores = model.score(graphs[1], features[1])
    assert kendall_tau(scores, graphs[1].targets) > 0.6  # it learned from these
    some = np.random.default_rng(0).permutation(len(scores))[:7]
    assert np.abs(model.score(graphs[1], features[1][some]) - scores[some]).max() < 1e-5
    assert np.abs(model.score(graphs[2], features[1]) - scores).max() > 1e-3
    without = fit_late_fusion(graphs, features, replace(SHORT, steps=2, graph=False), seed=0)
    assert np.array_equal(without.score(graphs[1], features[1]), without.score(graphs[2], features[1]))


def inputs_of(name: str, kernel: tile.Kernel) -> np.ndarray:
    return tile.raw_features(kernel) if name.endswith("raw features") else kernel.features


@pytest.mark.parametrize("name", ["ridge, raw features", "ridge, tile features"])
def test_ridge_is_the_solution_of_its_normal_equations(kernels: list[tile.Kernel], name: str) -> None:
    """On standardised columns, (X'X + I) w = X'y; the intercept is the mean of y, which is 0 within each kernel."""
    known, held_out = kernels[1:], kernels[0]
    x = np.vstack([inputs_of(name, kernel) for kernel in known])
    logs = [np.log(kernel.graph.targets) for kernel in known]
    y = np.hstack([log - log.mean() for log in logs])
    mean, deviation = x.mean(0), np.where(x.std(0) > 1e-12, x.std(0), 1.0)
    scaled = (x - mean) / deviation
    weights = np.linalg.solve(scaled.T @ scaled + np.eye(x.shape[1]), scaled.T @ y)
    expected = (inputs_of(name, held_out) - mean) / deviation @ weights
    scores = tile.methods()[name](known, held_out, 0)
    assert np.ptp(scores) > 0 and np.allclose(scores, expected, rtol=1e-6, atol=1e-8)
