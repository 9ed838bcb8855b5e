from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, grid, unhurried, weights

from partitioners import METHODS, largest_part, partition, quality, ranges


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", METHODS)
@unhurried
@given(graph=graphs(), data=st.data())
def test_no_part_is_empty_or_too_heavy(
    method: str, weighted: bool, graph: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    tolerance = data.draw(st.sampled_from([0.0, 0.1]))
    drawn = (data.draw(weights(num_nodes)), data.draw(weights(edges.shape[1]))) if weighted else (None, None)
    parts = partition(edges, num_nodes, num_parts, method, 0, tolerance, *drawn)
    assert parts.shape == (num_nodes,) and parts.dtype == np.int64
    measured = quality(edges, parts, num_parts, *drawn)  # refuses parts out of range
    assert measured.smallest >= 1
    assert measured.heaviest <= largest_part(num_nodes, num_parts, tolerance, drawn[0])


@pytest.mark.parametrize("method", METHODS)
@unhurried
@given(graph=graphs(), data=st.data())
def test_order_direction_repetition_of_edges_and_weights_of_one_do_not_matter(
    method: str, graph: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    expected = partition(edges, num_nodes, num_parts, method)
    ones = {"node_weights": np.ones(num_nodes, np.int64), "edge_weights": np.ones(edges.shape[1], np.int64)}
    for same, given_weights in ((edges[::-1, ::-1], {}), (np.hstack([edges, edges[::-1]]), {}), (edges, ones)):
        np.testing.assert_array_equal(partition(same, num_nodes, num_parts, method, **given_weights), expected)


@pytest.mark.parametrize("method", METHODS)
@unhurried
@given(graph=graphs(max_nodes=12), data=st.data())
def test_an_edge_of_weight_three_is_three_edges(
    method: str, graph: tuple[np.ndarray, int], data: st.DataObject
) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    each = data.draw(st.lists(st.integers(1, 3), min_size=edges.shape[1], max_size=edges.shape[1]))
    edge_weights = np.array(each, np.int64)
    np.testing.assert_array_equal(
        partition(edges, num_nodes, num_parts, method, edge_weights=edge_weights),
        partition(np.repeat(edges, edge_weights, axis=1), num_nodes, num_parts, method),
    )


@pytest.mark.parametrize("method", METHODS)
def test_parts_depend_on_the_seed_where_the_method_draws_and_on_nothing_else(method: str) -> None:
    first, again, other = (partition(grid(30), 900, 9, method, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() == (method not in ("communities", "contiguous"))


def test_metis_cuts_a_shuffled_grid_far_less_than_ranges_of_its_ids() -> None:
    hidden = np.random.default_rng(0).permutation(1600)
    edges = hidden[grid(40)]
    cuts = {method: quality(edges, partition(edges, 1600, 16, method)).edge_cut for method in METHODS}
    assert cuts["metis"] < 0.15 and min(cuts["contiguous"], cuts["random"]) > 0.9


@pytest.mark.parametrize("first", [0, 1])
def test_metis_spares_heavy_edges(first: int) -> None:
    """A ring of eight in which every second edge is tenfold: four parts cut the light ones only."""
    ring = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]])
    heavy = ring[:, first::2]
    parts = partition(np.concatenate([ring] + 9 * [heavy], axis=1), 8, 4)
    assert (parts[heavy[0]] == parts[heavy[1]]).all()


@pytest.mark.parametrize("method", ["metis", "communities", "auto"])
def test_heavy_nodes_and_edges_are_heeded(method: str) -> None:
    """A path of 90 whose first 10 nodes weigh 9 each, as much as the others together; one edge must not be cut."""
    path = np.stack([np.arange(89), np.arange(1, 90)])
    node_weights, edge_weights = np.ones(90, np.int64), np.ones(89, np.int64)
    node_weights[:10], edge_weights[9] = 9, 50
    parts = partition(path, 90, 2, method, node_weights=node_weights, edge_weights=edge_weights)
    measured = quality(path, parts, 2, node_weights, edge_weights)
    assert parts[9] == parts[10] and measured.edge_cut <= 3 / 138 and measured.heaviest <= 94


def test_one_part_takes_all() -> None:
    for method in METHODS:
        assert not partition(grid(3), 9, 1, method).any()


@unhurried
@given(st.integers(1, 40).flatmap(weights), st.data())
def test_ranges_equal_the_slow_twin(node_weights: np.ndarray, data: st.DataObject) -> None:
    num_parts = data.draw(st.integers(1, len(node_weights)))
    expected, before, total = [], 0, int(node_weights.sum())
    for node, weight in enumerate(node_weights.tolist()):
        due = (2 * before + weight - 1) * num_parts // (2 * total)
        begun = expected[-1] if expected else -1
        fewest = num_parts - (len(node_weights) - node)  # parts that must have begun, for the rest to be filled
        expected.append(min(max(due, begun, fewest), begun + 1))
        before += weight
    assert ranges(node_weights, num_parts).tolist() == expected


def test_worker_processes_give_the_same_parts() -> None:
    edges = np.random.default_rng(1).permutation(400)[grid(20)]
    calls = [(edges, 400, 8, method) for method in METHODS]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for call, parts in zip(calls, pool.starmap(partition, calls), strict=True):
            np.testing.assert_array_equal(parts, partition(*call))


@pytest.mark.slow
def test_machine_code_does_what_the_interpreted_kernels_do() -> None:
    """Machine code does not check bounds; interpreted, numpy does."""
    program = (
        "import hashlib, sys; import numpy as np; from partitioners import METHODS, partition\n"
        "generator = np.random.default_rng(0); digest = hashlib.sha256()\n"
        "for nodes, links, parts in [(1, 0, 1), (30, 40, 7), (300, 900, 5), (2600, 5000, 3)]:\n"
        "    edges = generator.integers(0, nodes, (2, links)); weights = generator.integers(1, 9, nodes)\n"
        "    for method in METHODS:\n"
        "        for chosen in (None, weights):\n"
        "            digest.update(partition(edges, nodes, parts, method, node_weights=chosen).tobytes())\n"
        "print(digest.hexdigest())"
    )
    with redirect_stdout(io.StringIO()) as machine_code:
        exec(program, {})
    interpreted = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert interpreted.split()[-1] == machine_code.getvalue().split()[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 0}, "num_nodes is 0; wanted at least 1"),
        ({"num_parts": 4}, "num_parts is 4 for 3 nodes; .*ask for at most 3"),
        ({"num_parts": 0}, "num_parts is 0"),
        ({"num_nodes": 2}, r"edges name nodes 0\.\.2; wanted 0\.\.1"),
        ({"edges": np.array([[0], [-1]])}, r"edges name nodes -1\.\.0"),
        ({"method": "louvain"}, f"'louvain'; wanted one of {', '.join(METHODS)}"),
        ({"seed": -1}, "seed is -1"),
        ({"tolerance": -0.1}, "tolerance is -0.1"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"node_weights": np.ones(2, np.int64)}, r"node_weights has shape \(2,\); wanted \(3,\)"),
        ({"node_weights": np.array([1, 0, 1])}, "node_weights has a weight of 0; wanted at least 1"),
        ({"edge_weights": np.array([2**52, 2**52])}, r"edge_weights add up to 9\.01e\+15"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_refuses_bad_input(method: str, change: dict, message: str) -> None:
    arguments = {"edges": np.array([[0, 1], [1, 2]]), "num_nodes": 3, "num_parts": 2, "method": method}
    with pytest.raises(ValueError, match=message):
        partition(**(arguments | change))


def test_refuses_weights_that_are_none(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"edge_weights has shape \(3,\); wanted \(1,\)"):
        partition(np.array([[0], [1]]), 2, 1, edge_weights=np.ones(3, np.int64))
    with pytest.raises(ValueError, match="node_weights is float64; wanted int64: scale and round"):
        partition(np.array([[0], [1]]), 2, 1, node_weights=np.ones(2))
