"""Cost models: they learn, save, predict with intervals, and refuse what they cannot learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gst.cost import CostModel
from gst.cost.metrics import kendall_tau
from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph
from tests.checks import without_checks


@pytest.fixture(scope="module")
def fitted() -> CostModel:
    model = CostModel(channels=16, num_opcodes=8, config_symbols=7, max_nodes=40)
    with without_checks():
        epochs = model.fit([synthetic_program(120, 48, num_regions=1)], epochs=120, configs_per_step=16)
    losses = [epoch["loss"] for epoch in epochs]
    assert losses[-1] < losses[0] / 2
    return model


def test_it_ranks_configurations_it_was_not_fitted_on(fitted: CostModel) -> None:
    graph = synthetic_program(120, 48, num_regions=1)
    assert kendall_tau(fitted.predict(graph), graph.targets) > 0.6
    assert 0.5 < np.median(fitted.predict(graph) / graph.targets) < 2.0


def test_a_saved_model_predicts_the_same(fitted: CostModel, tmp_path: Path) -> None:
    graph = synthetic_program(120, 5, num_regions=1)
    fitted.save(tmp_path / "model.pt")
    assert np.array_equal(CostModel.load(tmp_path / "model.pt").predict(graph), fitted.predict(graph))


def test_equal_seeds_give_equal_models_whatever_the_global_generator_holds() -> None:
    graph = synthetic_program(60, 8, num_regions=2)

    def predictions() -> np.ndarray:
        model = CostModel(channels=8, num_opcodes=8, config_symbols=7, max_nodes=30, seed=3)
        model.fit([graph], epochs=2)
        return model.predict(graph)

    first = predictions()
    torch.rand(7)
    assert np.array_equal(first, predictions())


@pytest.mark.parametrize("targets", [np.ones(4), np.array([1.0, 2.0, 0.0, 3.0]), np.array([1.0, np.nan, 2.0, 3.0])])
def test_what_cannot_be_learned_is_refused(targets: np.ndarray) -> None:
    with pytest.raises(ValueError, match="runtime"):
        CostModel().fit([replace(synthetic_program(20, 4), targets=targets)])
    with pytest.raises(ValueError, match="at least one network"):
        CostModel(members=0)


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_files_that_hold_no_model_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="no saved cost model"):
        CostModel.load(path)


def test_files_of_another_version_are_refused(fitted: CostModel, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.pt")
    torch.save(torch.load(tmp_path / "model.pt", weights_only=True) | {"schema": 1}, tmp_path / "old.pt")
    with pytest.raises(ValueError, match="schema 1, this version reads 3; fit it again"):
        CostModel.load(tmp_path / "old.pt")


def some(graph: Graph, configs: np.ndarray) -> Graph:
    """The graph under some of its configurations."""
    return replace(
        graph, config_features=graph.config_features[configs], targets=graph.targets[configs],
        counts=graph.counts[configs], spreads=graph.spreads[configs],
    )  # fmt: skip


def noisy_program(num_configs: int) -> Graph:
    """Runtimes with a relative error of a tenth, as measurements have."""
    graph = synthetic_program(60, num_configs, num_regions=2)
    noise = np.random.default_rng(1).normal(scale=0.1, size=num_configs)
    return replace(graph, targets=graph.targets * np.exp(noise))


@pytest.fixture(scope="module")
def ensemble() -> CostModel:
    model = CostModel(channels=8, num_layers=1, num_opcodes=8, config_symbols=7, max_nodes=60, members=2)
    with without_checks():
        model.fit([some(noisy_program(96), np.arange(64))], epochs=8, configs_per_step=16)
    return model


def test_members_disagree_and_their_mean_is_the_prediction(ensemble: CostModel) -> None:
    fresh = some(noisy_program(96), np.arange(64, 96))
    logs, deviations = ensemble.logs(fresh)
    assert np.array_equal(np.exp(logs), ensemble.predict(fresh))
    assert (deviations > 0).all() and deviations.std() > 0


def test_an_ensemble_predicts_the_geometric_mean_of_its_members(ensemble: CostModel, tmp_path: Path) -> None:
    ensemble.save(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    alone = []
    for state in content["members"]:
        one = {"members": [state], "settings": content["settings"] | {"members": 1}}
        torch.save(content | one, tmp_path / "one.pt")
        alone.append(CostModel.load(tmp_path / "one.pt").predict(noisy_program(9)))
    assert not np.allclose(alone[0], alone[1], rtol=1e-4)
    assert np.allclose(np.sqrt(alone[0] * alone[1]), ensemble.predict(noisy_program(9)), rtol=1e-12)


def test_every_label_teaches() -> None:
    graph = noisy_program(6)

    def fitted_on(labelled: Graph) -> CostModel:
        model = CostModel(channels=8, num_layers=1, num_opcodes=8, config_symbols=7, members=2)
        model.fit([labelled], epochs=1)
        return model

    right = fitted_on(graph).predict(graph)
    for each in range(6):
        wrong = graph.targets * np.where(np.arange(6) == each, 2.0, 1.0)
        assert not np.array_equal(fitted_on(replace(graph, targets=wrong)).predict(graph), right)


def test_a_loss_that_is_no_number_stops_and_leaves_the_model_as_it_was(fitted: CostModel) -> None:
    graph = synthetic_program(120, 9, num_regions=3)
    before = fitted.predict(graph)
    other = replace(graph, targets=np.arange(1.0, 10.0), name="steep")
    with pytest.raises(ValueError, match=r"loss became (nan|inf) in epoch \d+ at graph 'steep'; lower learning_rate"):
        fitted.fit([other], epochs=3, learning_rate=1e30)
    assert np.array_equal(fitted.predict(graph), before)


def test_epochs_are_numbered_on_from_member_to_member() -> None:
    model = CostModel(channels=4, num_layers=1, num_opcodes=8, config_symbols=7, members=2)
    seen: list[int] = []
    history = model.fit([noisy_program(20)], epochs=2, progress=lambda epoch, loss: seen.append(epoch))
    assert seen == [0, 1, 2, 3] and len(history) == 2
