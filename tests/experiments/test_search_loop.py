"""The loop on machines that are not as the search believes, where what is found can be judged without noise."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.bench import search_loop
from experiments.bench.search_loop import PretendedObjective, over_loop, pretended, unlike
from gst.placement.baselines.portfolio import portfolio
from gst.placement.machines import machine
from gst.placement.objectives import SimulatedObjective
from gst.programs import traced

TINY = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"


@pytest.mark.parametrize("name", ["cores:2", "gpus:2"])
def test_the_machine_is_another_for_each_seed_and_the_same_for_one(name: str) -> None:
    task = machine(name).task(traced(TINY))
    plans = list(portfolio(task).values())
    believed, *real = (SimulatedObjective(each)(plans) for each in (task, *(unlike(task, seed) for seed in (0, 0, 1))))
    assert (real[0] == real[1]).all() and (real[0] != real[2]).any()
    assert (np.abs(np.log(real[0] / believed)) > 0.01).all() and (real[0] / believed < 3).all()


def test_runs_are_noisy_about_the_truth() -> None:
    task = machine("cores:2").task(traced(TINY))
    (plan, *_) = portfolio(task).values()
    (truth,) = SimulatedObjective(task)([plan])
    runs = [each.samples_ms for each in PretendedObjective(task, 0).measure([plan] * 200)]
    assert np.std(np.log(runs)) == pytest.approx(search_loop.NOISE, rel=0.15)
    assert np.mean(np.log(runs)) == pytest.approx(np.log(truth), abs=0.01)


@pytest.mark.slow
def test_every_search_ends_with_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_loop, "EVALUATIONS", 60)
    monkeypatch.setattr(search_loop, "NETWORK_EVALUATIONS", 10)
    monkeypatch.setattr("gst.placement.cost_models.EPOCHS", 2)
    monkeypatch.setattr("gst.placement.cost_models.MORE_EPOCHS", 1)
    row = pretended(TINY, "cores:2", budget=24, seed=0, more=2)
    keys = ("portfolio", "simulated", "loop", "network", "alone", "alone_more")
    assert row.keys() == {f"{key}_ms" for key in keys}
    assert pretended(TINY, "cores:2", budget=24, seed=0, more=2) == row


def test_ratios_are_geometric_means() -> None:
    one, other = (1.0, 2.0, 3.0), (2.0, 1.0, 6.0)
    rows = [dict(zip(("loop_ms", "alone_ms", "alone_more_ms"), each, strict=True)) for each in (one, other)]
    assert over_loop(rows) == pytest.approx({"alone": 1.0, "alone_more": 3.0})
