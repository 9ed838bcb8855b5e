"""Graphs that are awkward to cut keep every edge: doubled edges, isolated nodes, stars, many components, no edges."""

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

import gst

DRAW = np.random.default_rng(0)


def edges_of(graph: nx.Graph) -> np.ndarray:
    return np.array(graph.edges, np.int64).reshape(-1, 2).T


CASES = {
    "doubled 50 times": (60, np.repeat(edges_of(nx.cycle_graph(60)), 50, 1), 10),
    "isolated nodes and self-loops": (
        80, np.array([[i, i] for i in range(0, 80, 3)] + [[i, i + 1] for i in range(30)]).T, 10,
    ),
    "one-way random": (300, DRAW.integers(300, size=(2, 900)), 60),
    "19 nodes, 5 parts": (19, DRAW.integers(19, size=(2, 40)), 4),
    "star of 3000": (3000, np.array([[i, 0] for i in range(1, 3000)]).T, 100),
    "1000 components": (3000, edges_of(nx.disjoint_union_all([nx.path_graph(3)] * 1000)), 7),
    "no edges": (50, np.zeros((2, 0), np.int64), 10),
}  # fmt: skip


def degree_sum(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) + x


@pytest.mark.parametrize("name", CASES)
def test_the_sum_over_segments_with_a_halo_is_that_of_the_graph(name: str) -> None:
    nodes, edges, most = CASES[name]
    x = DRAW.normal(size=(nodes, 3)).astype(np.float32)
    cut = gst.segment(gst.Graph(x, edges), max_nodes=most, halo=1)
    assert cut.owned_counts.sum() == nodes and cut.owned_counts.max() <= most
    got = gst.GraphSegmentTraining(degree_sum, torch.nn.Identity(), pooling="sum").eval()([cut])[0]
    want = degree_sum(torch.from_numpy(x), torch.from_numpy(edges)).sum(0)
    assert torch.allclose(got, want, rtol=1e-3, atol=1e-2)
