"""`python -m experiments.bench score` in its smallest setting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.bench import score
from gst.graphs.segments import segment

SETTING = score.Setting(nodes=2400, configurable=100, configs=40)


def test_the_program_is_as_large_as_asked() -> None:
    graph = score.program(SETTING)
    assert (graph.num_nodes, len(graph.config_nodes), graph.num_configs) == (2400, 100, 40)
    assert graph.num_edges / graph.num_nodes == pytest.approx(1.6, abs=0.15) and graph.node_features.shape[1] == 140
    assert len(np.unique(graph.config_features.reshape(40, -1), axis=0)) == 40


def test_scores_are_exact_however_many_configurations_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, model = segment(score.program(SETTING), score.MAX_NODES), score.model()
    together = score.score(model, graph, bf16=False)
    assert together.shape == (40,) and together.unique().numel() == 40
    monkeypatch.setattr(score, "CONFIGS_AT_ONCE", 7)
    torch.testing.assert_close(score.score(model, graph, bf16=False), together, rtol=0, atol=1e-5)
    short = score.score(model, graph, bf16=True)
    assert 0 < (short - together).expm1().abs().max() < 2e-3


def test_sharing_leaves_fewer_rows_the_fewer_nodes_are_configurable() -> None:
    few, many = (
        score.rows_share(segment(score.program(score.Setting(2400, configurable, 40)), score.MAX_NODES))
        for configurable in (10, 100)
    )
    for shares in (few, many):
        assert len(shares) == 1 + score.LAYERS and shares == sorted(shares) and 1 / 40 <= shares[0] <= shares[-1] <= 1
    assert all(a < b for a, b in zip(few, many, strict=True))


@pytest.mark.e2e
@pytest.mark.slow
def test_both_variants_are_measured_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "bf16_slowdown", lambda: 0.5)
    seen: list[tuple[str, int, int]] = []
    result = score.run(SETTING, lambda *what: seen.append(what))
    assert seen == [("fp32", 0, 2), ("bf16", 1, 2), ("done", 2, 2)]
    for key in ("seconds", "configs_per_second", "peak_mib", "rows_share"):
        assert result[key] == result["variants"]["bf16"][key]
    assert result["configs_per_second"] == pytest.approx(40 / result["seconds"])
    assert 50 < result["peak_mib"] < 4000 and 0 < result["bf16_difference"] < 2e-3
    assert 0.8 < result["bf16_tau"] < 1
    assert result["setting"] == {"nodes": 2400, "configurable": 100, "configs": 40}


@pytest.mark.e2e
@pytest.mark.slow
def test_a_processor_without_bf16_measures_fp32_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "bf16_slowdown", lambda: 50.0)
    result = score.run(SETTING)
    assert list(result["variants"]) == ["fp32"] and result["seconds"] == result["variants"]["fp32"]["seconds"]
    assert result["not_measured"] == ["bf16 (products in bf16 take 50 times as long as in fp32 on this processor)"]
    assert "bf16_tau" not in result


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (score.Setting(2400, 121, 40), "--configurable is 121; of 2400 nodes.*120"),
        (score.Setting(2400, 0, 40), "--configurable is 0"),
        (score.Setting(10, 1, 40), "10 nodes"),
        (score.Setting(2400, 100, 0), "0 configurations"),
    ],
)
def test_impossible_settings_are_refused(setting: score.Setting, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        score.run(setting)
