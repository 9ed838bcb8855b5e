from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, grid, unhurried, weights

from partitioners import METHODS, partition, quality


@unhurried
@given(graphs(), st.data())
def test_cuts_no_more_than_any_method_it_has_to_try(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, num_nodes))
    given_weights = {"node_weights": data.draw(weights(num_nodes)), "edge_weights": data.draw(weights(edges.shape[1]))}
    chosen = partition(edges, num_nodes, num_parts, "auto", **given_weights)
    cut = {
        method: quality(
            edges, partition(edges, num_nodes, num_parts, method, **given_weights), **given_weights
        ).edge_cut
        for method in set(METHODS) - {"auto", "random"}
    }
    assert quality(edges, chosen, **given_weights).edge_cut <= min(cut.values())


@pytest.mark.parametrize(
    ("edges", "winner"),
    [
        (grid(40), "metis"),
        (np.stack([np.arange(1599), np.arange(1, 1600)]), "contiguous"),
        (np.random.default_rng(1).permutation(1600)[np.stack([np.arange(1599), np.arange(1, 1600)])], "metis"),
    ],
    ids=["grid", "path", "hidden path"],
)
def test_takes_the_winner_as_it_is(edges: np.ndarray, winner: str) -> None:
    np.testing.assert_array_equal(partition(edges, 1600, 16, "auto"), partition(edges, 1600, 16, winner))
