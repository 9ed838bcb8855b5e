"""Predictions averaged over several cuts of a graph."""

from __future__ import annotations

import pytest
import torch
from reference import models, random_graph

import gst
from gst.method.estimator import GraphSegmentTraining


def test_predictions_over_cuts_are_the_mean_over_seeds_of_the_partitioner() -> None:
    graphs = [random_graph(seed, 60, 120) for seed in (0, 1)]
    model = GraphSegmentTraining(*models("sage", graphs[0]), "sum")
    each = [model.exact([gst.segment(graph, 12, seed=seed) for graph in graphs]) for seed in (5, 6, 7)]
    assert not torch.allclose(each[0], each[1])  # else the cuts are the same
    averaged = model.exact_over_cuts(graphs, cuts=3, max_nodes=12, seed=5)
    torch.testing.assert_close(averaged, torch.stack(each).mean(0), rtol=1e-12, atol=1e-12)


def test_more_cuts_come_closer_to_the_mean_over_all_of_them() -> None:
    """Predictions of single cuts scatter around their mean with variance v, means of k cuts with v / k."""
    graph, configs = random_graph(0, 60, 120), torch.zeros(1, 1, dtype=torch.long)
    model = GraphSegmentTraining(*models("sage", graph), "sum")
    single = torch.stack([model.exact_over_cuts([graph], configs, 1, 12, seed=seed) for seed in range(48)])
    means = single.view(12, 4, *single.shape[1:]).mean(1)
    assert means.std(0).max() < 0.75 * single.std(0).max()


def test_no_cut_is_refused(unchecked: None) -> None:
    graph = random_graph(0)
    with pytest.raises(ValueError, match="cuts is 0"):
        GraphSegmentTraining(*models("sage", graph)).exact_over_cuts([graph], cuts=0)
