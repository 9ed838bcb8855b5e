"""The local degree profile against loops and sets."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gst.data.malnet import degree_profile


def slow_profile(edges: list[tuple[int, int]], num_nodes: int) -> list[list[float]]:
    around: list[set[int]] = [set() for _ in range(num_nodes)]
    for source, target in edges:
        if source != target:
            around[source].add(target)
            around[target].add(source)
    rows = []
    for neighbours in around:
        degrees = [len(around[node]) for node in neighbours]
        row = (
            [len(degrees), min(degrees), max(degrees), statistics.mean(degrees), statistics.pstdev(degrees)]
            if degrees
            else [0] * 5
        )
        rows.append([float(number) for number in row])
    return rows


def as_edges(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2).T


NODES = st.integers(1, 12)
GRAPHS = NODES.flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=60)))


@given(GRAPHS)
def test_it_equals_its_slow_twin(graph: tuple[int, list[tuple[int, int]]]) -> None:
    num_nodes, pairs = graph
    np.testing.assert_allclose(degree_profile(as_edges(pairs), num_nodes), slow_profile(pairs, num_nodes), atol=1e-12)


def test_nodes_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="7"):
        degree_profile(as_edges([(0, 7)]), 3)
