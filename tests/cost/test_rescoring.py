"""Scoring again what changed in few places gives what scoring everything gives, and encodes what changed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gst.cost import CostModel
from gst.cost.rescoring import Rescorer
from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph
from gst.graphs.segments import segment

NODES, MAX_NODES = 400, 40


def new_model(members: int = 2) -> CostModel:
    settings = {"channels": 8, "num_opcodes": 8, "config_symbols": 7, "max_nodes": MAX_NODES}
    return CostModel(**settings, members=members)


@pytest.fixture(scope="module")
def model() -> CostModel:
    fitted = new_model()
    fitted.fit([synthetic_program(NODES, 48, num_regions=3)], epochs=4)
    return fitted


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic_program(NODES, 12, num_regions=3)


def under(graph: Graph, features: np.ndarray) -> Graph:
    """The graph with other configurations."""
    count = len(features)
    return replace(
        graph, config_features=features, targets=np.full(count, np.nan), counts=np.ones(count, np.int64),
        spreads=np.zeros(count),
    )  # fmt: skip


def moves(graph: Graph, count: int, seed: int) -> np.ndarray:
    """Configurations that differ from the first of the graph in one to three nodes."""
    generator = np.random.default_rng(seed)
    features = np.repeat(graph.config_features[:1], count, axis=0)
    for row in features:
        chosen = generator.choice(len(graph.config_nodes), generator.integers(1, 4), replace=False)
        row[chosen, 0] = (row[chosen, 0] + generator.integers(1, 4, len(chosen))) % 4
    return features


def contents(graph: Graph, features: np.ndarray) -> set[tuple[int, bytes]]:
    """Distinct (segment, features of its nodes), by a loop over everything."""
    cut = segment(under(graph, features), MAX_NODES)
    return {
        (number, row[cut.config_ptr[number] : cut.config_ptr[number + 1]].tobytes())
        for row in np.asarray(cut.config_features)
        for number in range(cut.num_segments)
    }


def agree(said: np.ndarray, wanted: np.ndarray) -> bool:
    return said.shape == wanted.shape and np.allclose(said, wanted, rtol=1e-5, atol=0)


def test_local_moves_are_scored_like_whole_configurations_and_encode_what_changed(
    model: CostModel, graph: Graph
) -> None:
    features = np.concatenate([graph.config_features[:1], moves(graph, 60, seed=1)])
    rescorer, before = Rescorer(model, graph), features.copy()
    said, wanted = rescorer.predict(features), model.predict(under(graph, features))
    assert agree(said, wanted) and np.abs(said - wanted).max() < wanted.std() / 100
    assert rescorer.num_encoded == len(contents(graph, features)) < rescorer.num_segments + 3 * 60
    assert np.array_equal(features, before)


def test_one_changed_node_encodes_one_segment_and_none_the_second_time(model: CostModel, graph: Graph) -> None:
    rescorer, base = Rescorer(model, graph), graph.config_features[:1]
    assert agree(rescorer.predict(base), model.predict(graph)[:1])
    assert rescorer.num_encoded == rescorer.num_segments >= 10
    changed = base.copy()
    changed[0, 0] = (changed[0, 0] + 1) % 4
    first = rescorer.predict(changed)
    assert rescorer.num_encoded == rescorer.num_segments + 1
    assert np.array_equal(rescorer.predict(changed), first) and agree(rescorer.predict(base), model.predict(graph)[:1])
    assert rescorer.num_encoded == rescorer.num_segments + 1


def test_configurations_that_have_nothing_in_common(model: CostModel, graph: Graph) -> None:
    others = np.random.default_rng(0).integers(0, 4, (70, *graph.config_features.shape[1:])).astype(np.int8)
    rescorer = Rescorer(model, graph)
    assert agree(rescorer.predict(others), model.predict(under(graph, others)))
    assert agree(rescorer.predict(others[:0]), np.zeros(0))


def test_what_there_is_no_room_for_is_encoded_again(
    model: CostModel, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = moves(graph, 30, seed=2)
    roomy, tight = Rescorer(model, graph), Rescorer(model, graph)
    wanted = roomy.predict(features)
    monkeypatch.setattr("gst.cost.rescoring.MOST_STORED", 7)
    for part in (slice(0, 20), slice(10, 30), slice(0, 30)):
        assert agree(tight.predict(features[part]), wanted[part])
    assert tight.num_encoded > roomy.num_encoded


def test_a_model_that_learned_more_is_asked_anew(graph: Graph) -> None:
    model, features = new_model(members=1), moves(graph, 5, seed=5)
    model.fit([graph], epochs=1)
    rescorer = Rescorer(model, graph)
    before = rescorer.predict(features)
    model.fit([graph], epochs=2)
    after = rescorer.predict(features)
    assert agree(after, model.predict(under(graph, features))) and not agree(after, before)


def test_what_cannot_be_asked_is_refused(model: CostModel, graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 3, 1\); want \(configs, \d+, 1\)"):
        Rescorer(model, graph).predict(np.zeros((1, 3, 1), np.float32))
    with pytest.raises(ValueError, match="learned nothing yet"):
        Rescorer(new_model(), graph)
