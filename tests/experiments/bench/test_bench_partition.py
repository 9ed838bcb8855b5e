from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from experiments.bench.partition import KINDS
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
