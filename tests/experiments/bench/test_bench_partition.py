from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from experiments.bench import partition as bench
from experiments.bench.partition import KINDS, grid, powerlaw
from partitioners import METHODS
from tests.experiments.bench.ran import ran


def graph(kind: str, num_nodes: int, seed: int = 0) -> tuple[np.ndarray, int]:
    return KINDS[kind](num_nodes, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_one_graph_of_about_two_edges_a_node(kind: str) -> None:
    (edges, num_nodes), (again, _), (other, _) = graph(kind, 2000), graph(kind, 2000), graph(kind, 2000, seed=1)
    np.testing.assert_array_equal(edges, again)
    assert kind == "grid" or edges.shape != other.shape or (edges != other).any()
    assert edges.dtype == np.int64 and edges.min() >= 0 and edges.max() < num_nodes
    assert 1900 < num_nodes <= 2000 and edges.shape[1] == pytest.approx(2 * num_nodes, rel=0.05)


def test_a_grid_of_nine_by_hand() -> None:
    edges, num_nodes = grid(11, np.random.default_rng(0))
    across, down = [(0, 1), (1, 2), (3, 4), (4, 5), (6, 7), (7, 8)], [(0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 8)]
    assert num_nodes == 9 and sorted(map(tuple, edges.T.tolist())) == sorted(across + down)


def test_power_law_targets_equal_the_slow_twin() -> None:
    edges, _ = powerlaw(500, np.random.default_rng(3))
    ends = np.floor(np.random.default_rng(3).random(998) * 2 * np.arange(998)).astype(int)
    targets: list[int] = []
    for edge, end in enumerate(ends.tolist()):
        source = edge // 2 + 1
        earlier = end // 2
        targets.append(0 if edge == 0 else (targets[earlier] if end % 2 else earlier // 2 + 1))
        assert edges[0, edge] == source
    assert edges[1].tolist() == targets


def test_partition(tmp_path: Path) -> None:
    report = ran(tmp_path, "partition", "--nodes", 3000, "--parts", 10, "--seed", 1)
    for kind in KINDS:
        row = report[kind]
        cuts = {method: each["cut"] for method, each in row["methods"].items()}
        assert set(cuts) == set(METHODS)
        assert row["best_cut"] == min(cuts.values()) <= row["auto_cut"] == cuts["auto"] <= 1.02 * row["best_cut"]
        assert cuts[row["chosen"]] == row["auto_cut"]
        assert row["empty_parts"] == row["largest_over_limit"] == 0
        assert all(0 < row[name] < math.inf for name in ("csr_seconds", "metis_seconds", "seconds"))


def test_empty_and_oversized_parts_would_be_reported() -> None:
    edges, num_nodes = graph("grid", 100)
    found = {method: np.zeros(num_nodes, np.int64) for method in METHODS}
    found["random"] = np.arange(num_nodes) % 2
    seconds = {method: [1.0, 3.0, 2.0] for method in [*METHODS, "csr"]}
    summary = bench._summary(edges, num_nodes, 4, found, seconds)
    assert summary["empty_parts"] == 3 * (len(METHODS) - 1) + 2
    assert summary["largest_over_limit"] == 100 - 28
    assert summary["seconds"] == 2.0 and summary["auto_cut"] == 0.0
