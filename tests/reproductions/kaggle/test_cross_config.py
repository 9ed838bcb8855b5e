"""Scores that look at other configurations of the graph, and do not depend on which list they stand in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import random_graph
from torch import Tensor

from embedding_cache import EmbeddingTable
from experiments.reproductions.kaggle.networks import CrossConfigHead, FusedSAGE, NormedSAGE
from gst.graphs.config_classes import fingerprints, reference_configs, with_references
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE
from partitioners import partition
from tests.relabelling import relabelled_graph

REFERENCES = 4
ENCODERS = {
    "sage": lambda: SAGE(8, 2),
    "fused": lambda: FusedSAGE(8, 1, 1),
    "nodes": lambda: NormedSAGE(8, 2, normalise_over="nodes"),
}


def cross_model(kind: str = "sage", references: int = REFERENCES, **settings) -> GraphSegmentTraining:
    torch.manual_seed(0)
    encoder, head = ENCODERS[kind](), CrossConfigHead(8, references, heads=2)
    model = GraphSegmentTraining(encoder, head, "sum", **settings)
    scores(model, segment(random_graph(0), 6), torch.arange(3))
    return model


def scores(model: GraphSegmentTraining, graph: SegmentedGraph, configs: Tensor, evaluate: bool = True) -> Tensor:
    return (model.exact if evaluate else model)([graph], configs[None])[0]


def with_configs(graph: Graph, chosen: np.ndarray) -> Graph:
    return Graph(
        graph.node_features, graph.edges, graph.opcodes, graph.config_nodes, graph.config_features[chosen],
        graph.targets[chosen],
    )  # fmt: skip


# The score of a configuration ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENCODERS)
def test_scores_depend_neither_on_chunks_nor_on_the_order_of_a_list(kind: str) -> None:
    graph, model = segment(random_graph(4, num_configs=11), 6), cross_model(kind)
    together = scores(model, graph, torch.arange(11))
    assert together.unique().numel() == 11
    for width in (1, 4):
        chunks = [scores(model, graph, part) for part in torch.arange(11).split(width)]
        torch.testing.assert_close(torch.cat(chunks), together, rtol=0, atol=1e-5)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scores(model, graph, order), together[order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("halo", [0, 2])
def test_scores_do_not_depend_on_the_names_of_nodes(halo: int) -> None:
    graph, order = random_graph(4, num_configs=23), np.random.default_rng(0).permutation(24)
    parts, model = partition(graph.edges, graph.num_nodes, 4), cross_model()
    ours = segment(relabelled_graph(graph, order), parts=parts[order], halo=halo)
    theirs = segment(graph, parts=parts, halo=halo)
    assert reference_configs(ours, REFERENCES).tolist() == reference_configs(theirs, REFERENCES).tolist()
    every = torch.arange(23)
    torch.testing.assert_close(scores(model, ours, every), scores(model, theirs, every), rtol=0, atol=1e-5)


def test_scores_do_not_depend_on_how_the_configurations_of_a_graph_are_stored_or_repeated() -> None:
    graph, model = random_graph(4, num_configs=23), cross_model()
    order = np.random.default_rng(1).permutation(np.append(np.arange(23), [3, 3, 7]))
    stored = segment(with_configs(graph, order), 6)
    truth = scores(model, segment(graph, 6), torch.arange(23))
    torch.testing.assert_close(scores(model, stored, torch.arange(26)), truth[order], rtol=0, atol=1e-5)


def test_training_and_evaluation_compute_the_same_function() -> None:
    graph, configs = segment(random_graph(4, num_configs=9), 6), torch.tensor([5, 1, 8])
    model = cross_model(num_fresh=99)
    trained = scores(model.train(), graph, configs, evaluate=False)
    torch.testing.assert_close(trained, scores(model, graph, configs), rtol=0, atol=1e-5)
    trained.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.head.attention.parameters())


def test_with_a_table_that_is_up_to_date_a_step_gives_the_scores_of_evaluation() -> None:
    """References have rows in the table like all others."""
    graph, configs = segment(random_graph(4, num_configs=9), 6), torch.tensor([5, 1, 8])
    model = cross_model(table=EmbeddingTable(1, 8), num_fresh=2, seed=1).train()
    for _ in range(40):
        stepped = scores(model, graph, configs, evaluate=False)
    torch.testing.assert_close(stepped, scores(model, graph, configs), rtol=0, atol=1e-5)


def test_a_score_depends_on_the_other_configurations_of_the_graph() -> None:
    """So it is more than a head that looks at one configuration at a time."""
    graph, model = random_graph(4, num_configs=23), cross_model()
    few = segment(with_configs(graph, np.arange(5)), 6)
    assert not torch.allclose(
        scores(model, few, torch.arange(5)), scores(model, segment(graph, 6), torch.arange(5)), atol=1e-4
    )


# The references of a graph -----------------------------------------------------------------------------


def test_references_are_distinct_configurations_and_come_first() -> None:
    graph = segment(with_configs(random_graph(4, num_configs=23), np.arange(23).repeat(2)), 6)
    drawn = reference_configs(graph, 10)
    assert len({graph.config_features[c].tobytes() for c in drawn}) == 10
    asked = with_references([graph, graph], torch.tensor([[7, 0], [1, -1]]), 10)
    assert asked.tolist() == [[*drawn, 7, 0], [*drawn, 1, -1]]


def test_few_configurations_are_repeated_in_turn() -> None:
    graph = segment(random_graph(4, num_configs=2), 6)
    drawn = reference_configs(graph, 5).tolist()
    assert drawn[:2] == drawn[2:4] and set(drawn) == {0, 1}
    assert reference_configs(segment(random_graph(0, num_configurable=0), 6), 3).tolist() == [0, 0, 0]


def test_equal_configurations_have_equal_fingerprints_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the same features are given to other nodes, and where floats differ in their last bit; -0.0 is 0.0."""
    features = np.array([[[1], [2]], [[2], [1]], [[1], [2]], [[3], [0]], [[3], [-0.0]]], np.float32)
    features = np.concatenate([features, np.nextafter(features[:1], np.float32(9))])
    node_features, edges = np.arange(6, dtype=np.float32)[:, None], np.zeros((2, 0), np.int64)
    graph = Graph(node_features, edges, config_nodes=np.array([4, 1]), config_features=features)
    found = fingerprints(segment(graph, 3)).tolist()
    assert found[0] == found[2] and found[3] == found[4] and len(set(found)) == 4
    monkeypatch.setattr("gst.graphs.config_classes.BLOCK_BYTES", 1)
    assert fingerprints(segment(graph, 2)).tolist() == found


# Mistakes ----------------------------------------------------------------------------------------------


def test_lists_without_references_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 configurations, of which the first 4 are references.*with_references"):
        CrossConfigHead(8, 4, heads=2)(torch.zeros(1, 3, 8))
    with pytest.raises(ValueError, match="references is 0"):
        CrossConfigHead(8, 0)
    with pytest.raises(ValueError, match="3 heads cannot share 8 channels"):
        CrossConfigHead(8, 4, heads=3)
