from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, neighbours_of, unhurried, weights

from partitioners import symmetric_csr
from partitioners.csr import checked_edges


@pytest.mark.parametrize("weighted", [False, True])
@unhurried
@given(graph=graphs(), data=st.data())
def test_equals_the_slow_twin(weighted: bool, graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    edge_weights = data.draw(weights(edges.shape[1])) if weighted else None
    csr = symmetric_csr(edges, num_nodes, edge_weights)
    rows = [
        list(zip(csr.neighbours[low:high].tolist(), csr.weights[low:high].tolist(), strict=True))
        for low, high in zip(csr.starts[:-1], csr.starts[1:], strict=True)
    ]
    assert rows == [sorted(row.items()) for row in neighbours_of(edges, num_nodes, edge_weights)]


@unhurried
@given(graphs(), st.data())
def test_the_cut_counts_each_edge_once(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    edge_weights = data.draw(weights(edges.shape[1]))
    parts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=num_nodes, max_size=num_nodes)))
    expected = sum(
        weight for (a, b), weight in zip(edges.T, edge_weights.tolist(), strict=True) if parts[a] != parts[b]
    )
    assert symmetric_csr(edges, num_nodes, edge_weights).cut(parts) == expected


@pytest.mark.slow
def test_compiles_where_no_cache_folder_can_be_written() -> None:
    """numba refuses `cache=True` there with a RuntimeError; a read-only container must work nevertheless."""
    program = (
        "import numba.core.caching as caching; caching.CacheImpl._locator_classes = []; "
        "import numpy as np; from partitioners import symmetric_csr; "
        "print(symmetric_csr(np.array([[0], [1]]), 2).neighbours.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1, 0]"


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_other_integers_are_converted(dtype: type) -> None:
    edges = checked_edges(np.array([[0], [1]], dtype), 2)
    assert edges.dtype == np.int64 and edges.tolist() == [[0], [1]]


def test_refuses_what_are_no_edges() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 2\); wanted \(2, edges\)"):
        checked_edges(np.zeros((3, 2), np.int64), 4)
    with pytest.raises(ValueError, match="edges are float64"):
        checked_edges(np.zeros((2, 3)), 4)
