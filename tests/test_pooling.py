from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gst.pooling import Pooling, check_pooling, pool_nodes, pool_segments

POOLINGS = get_args(Pooling)


@pytest.mark.parametrize("pooling", POOLINGS)
@given(
    owned_counts=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3),
    context=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_nodes_to_segments_to_graphs_is_nodes_to_graphs(
    pooling: Pooling, owned_counts: list[list[int]], context: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    flat = [count for graph in owned_counts for count in graph]
    owned = torch.cat([torch.arange(count + context) < count for count in flat])
    segment_of_node = torch.repeat_interleave(torch.arange(len(flat)), torch.tensor(flat) + context)
    graph_of_segment = torch.tensor([g for g, graph in enumerate(owned_counts) for _ in graph])
    embeddings = torch.randn(len(owned), 2, 3, dtype=torch.float64, generator=generator)
    counts = torch.tensor(flat)

    segments = pool_nodes(embeddings, segment_of_node, owned, counts, pooling)
    pooled = pool_segments(
        segments,
        torch.ones(len(flat), 2),
        counts,
        graph_of_segment,
        torch.tensor([sum(g) for g in owned_counts]),
        pooling,
    )
    readout = {"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}[pooling]
    for g in range(len(owned_counts)):
        nodes = embeddings[owned & (graph_of_segment[segment_of_node] == g)]
        torch.testing.assert_close(pooled[g], readout(nodes), rtol=1e-6, atol=1e-6)


def test_weights_count_per_configuration() -> None:
    embeddings = torch.tensor([[[1.0], [1.0]], [[10.0], [10.0]]])
    weights = torch.tensor([[1.0, 0.0], [0.5, 3.0]])

    def pool(pooling: Pooling) -> list[float]:
        one_graph = torch.tensor([0, 0])
        return pool_segments(
            embeddings, weights, torch.tensor([3, 1]), one_graph, torch.tensor([4]), pooling
        ).flatten().tolist()

    assert pool("sum") == [6.0, 30.0]
    assert pool("mean") == [0.75 + 1.25, 7.5]
    assert pool("max") == [10.0, 10.0]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_graph_without_segments_is_zero(pooling: Pooling) -> None:
    one = torch.ones(1, dtype=torch.long)
    pooled = pool_segments(-torch.ones(1, 1, 2), torch.ones(1, 1), one, one, torch.tensor([1, 1]), pooling)
    assert pooled.flatten().tolist() == [0, 0, -1, -1]


def test_segments_of_weight_zero_cannot_be_the_maximum() -> None:
    one = torch.ones(2, dtype=torch.long)
    weights = torch.tensor([[1.0], [0.0]])
    assert (
        pool_segments(
            torch.tensor([[[1.0]], [[9.0]]]), weights, one, one - 1, torch.tensor([2]), "max"
        ).item()
        == 1
    )


def test_readouts_that_do_not_decompose_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'median' does not decompose over segments.*sum, mean, max"):
        check_pooling("median")
