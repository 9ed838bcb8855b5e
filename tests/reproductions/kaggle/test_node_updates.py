"""The states of nodes that an encoder computes, counted by hand."""

from __future__ import annotations

import numpy as np
import torch

from experiments.reproductions.kaggle.pruning import reduce
from experiments.reproductions.kaggle.reduction import node_updates
from gst.graphs.graph import Graph
from gst.graphs.segments import segment


def chain() -> Graph:
    """Ten nodes, the first configurable, under four configurations."""
    rng = np.random.default_rng(0)
    edges = np.stack([np.arange(9), np.arange(1, 10)])
    return Graph(
        rng.normal(size=(10, 3)).astype(np.float32), edges, rng.integers(0, 5, 10), np.array([0]),
        rng.normal(size=(4, 1, 2)).astype(np.float32), rng.random(4), name="made",
    )  # fmt: skip


def test_updates_of_a_chain_counted_by_hand() -> None:
    """Node 0 of 10 under 4 configurations: after one layer 2 nodes have 4 states, after two layers 3."""
    graph, configs = chain(), torch.arange(4)
    assert node_updates(graph, 2, configs, share=False) == 10 * 4 * 2
    assert node_updates(graph, 2, configs) == (2 * 4 + 8) + (3 * 4 + 7)
    assert node_updates(reduce(graph, "hops:1"), 2, configs) == 2 * 4 * 2
    assert node_updates(reduce(graph, "hops:4"), 2, configs) == (2 * 4 + 3) + (3 * 4 + 2)
    assert node_updates(graph, 2, configs, directions=("backward",)) == 2 * (4 + 9)
    cut = segment(graph, parts=np.arange(10) // 5)
    assert node_updates(cut, 2, configs) == (2 * 4 + 3 + 5) + (3 * 4 + 2 + 5)
    assert node_updates(graph, 2, torch.tensor([1, 1, 1])) == 20, "equal configurations share everything"
