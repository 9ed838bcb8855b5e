"""The cost model in five lines: it learns, it saves, it refuses what it cannot learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gst.cost import CostModel
from gst.cost.metrics import kendall_tau
from gst.data.synthetic import synthetic_program


@pytest.fixture(scope="module")
def fitted() -> CostModel:
    model = CostModel(channels=16, num_opcodes=8, config_symbols=7, max_nodes=40)
    losses = [
        epoch["loss"]
        for epoch in model.fit([synthetic_program(120, 48, num_regions=3)], epochs=200, configs_per_step=16)
    ]
    assert losses[-1] < losses[0] / 2
    return model


def test_it_ranks_configurations_it_was_not_fitted_on(fitted: CostModel) -> None:
    graph = synthetic_program(120, 48, num_regions=3)
    assert kendall_tau(fitted.predict(graph), graph.targets) > 0.6
    assert 0.5 < np.median(fitted.predict(graph) / graph.targets) < 2.0


def test_a_saved_model_predicts_the_same(fitted: CostModel, tmp_path: Path) -> None:
    graph = synthetic_program(120, 5, num_regions=3)
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
    from dataclasses import replace

    with pytest.raises(ValueError, match="runtime"):
        CostModel().fit([replace(synthetic_program(20, 4), targets=targets)])


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_files_that_hold_no_model_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="no saved cost model"):
        CostModel.load(path)
