"""The loop on a pretended machine: what rewards the proposers, what is measured, and what each brought."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.random_tasks import generated_task
from experiments.reproductions.colocrl import reinforce
from experiments.reproductions.colocrl.method import ColocRL
from gst.execution.measure import Log, Measurement
from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.cost_models import NetworkSurrogate
from gst.placement.loop import Loop, Trial, brought, tau
from gst.placement.loop import ran as ran_of
from gst.placement.objectives import LEAST_MEASUREMENTS, Reward, SimulatedObjective, Surrogate
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task
from tests.placement.pretended import Pretended


@pytest.fixture(scope="module")
def task() -> Task:
    return generated_task(3, num_nodes=50, num_devices=3)


def begun(task: Task, folder: Path, methods: Sequence[str], budget: int = 30, **settings: Any) -> Loop:
    log = Log(folder / "log.jsonl")
    return Loop(task, Pretended(task), log, portfolio(task), budget, 64, rounds=2, methods=methods, **settings)


@pytest.mark.parametrize("method", ["annealing", "colocrl"])
def test_plans_of_every_proposer_are_predicted_and_measured(task: Task, method: str, tmp_path: Path) -> None:
    loop = begun(task, tmp_path, [method])
    loop.run()
    mine = [trial for trial in loop.trials if trial.origin == method]
    assert len(loop.trials) == 30 and mine and all(trial.predicted_ms > 0 for trial in mine)
    assert brought(loop.trials)[method]["measured"] == len(mine)
    assert brought(loop.trials)[method]["best_ms"] == min(trial.measurement.median_ms for trial in mine)


def test_tau_compares_predictions_with_first_measurements_alone(task: Task) -> None:
    rows = [(1.0, 10.0, "go"), (2.0, 20.0, "go"), (3.0, 30.0, "annealing"), (4.0, 5.0, "again"), (np.nan, 1.0, "go")]
    trials = [
        Trial(plan, origin, 1, predicted, Measurement(plan.key, plan.key, (took,), took, took, took))
        for (_, plan), (predicted, took, origin) in zip(random_plans(task), rows, strict=False)
    ]
    assert tau(trials) == 1.0 and np.isnan(tau(trials[2:]))


def test_several_proposers_share_the_evaluations_by_what_they_brought(task: Task, tmp_path: Path) -> None:
    loop = begun(task, tmp_path, ["annealing", "go"], budget=40)
    assert loop.shares() == {"annealing": 0.5, "go": 0.5}
    loop.run()
    origins = {trial.origin for trial in loop.trials if trial.round}
    assert {"annealing", "go", "mutation"} <= origins
    best, wins = np.inf, {"annealing": 1, "go": 1}
    for trial in loop.trials:
        wins[trial.origin] = wins.get(trial.origin, 0) + (trial.measurement.median_ms < best)
        best = min(best, trial.measurement.median_ms)
    total = wins["annealing"] + wins["go"]
    assert loop.shares() == {"annealing": wins["annealing"] / total, "go": wins["go"] / total}


def test_a_reward_goes_from_measurements_through_the_network_into_the_policy(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None
) -> None:
    """REINFORCE gets what the GST network predicts of plans, and what was measured of those that were measured. The
    network has learned from plans of that policy, and the policy's weights follow from those rewards alone."""
    rewarded: list[np.ndarray] = []
    asked: list[Plan] = []
    learned: list[set[str]] = []

    class Recorded(NetworkSurrogate):
        def learn(self, plans: Sequence[Plan], *told: np.ndarray) -> None:
            learned.append({plan.key for plan in plans})
            super().learn(plans, *told)

    def recorded(runtimes_ms: np.ndarray, unit_ms: float) -> torch.Tensor:
        rewarded.append(runtimes_ms.copy())
        return rewards_of(runtimes_ms, unit_ms)

    def decided(self: ColocRL, decisions: torch.Tensor) -> list[Plan]:
        asked.extend(found := plans_of(self, decisions))
        return found

    rewards_of, plans_of = reinforce.rewards_of, ColocRL.plans
    network = Recorded(task, members=1)
    loop = begun(task, tmp_path, ["colocrl"], surrogate=network)
    (_, proposer), _ = loop._proposers
    loop._measure(loop._first(), 0)
    for number in (1, 2):
        ran = ran_of(loop.trials)
        loop.reward.learn([trial.plan for trial in ran], np.array([trial.measurement.median_ms for trial in ran]))
        if number == 2:  # what the policy proposed in the round before was measured and learned from
            assert {trial.plan.key for trial in ran if trial.origin == "colocrl"} & learned[-1]
            monkeypatch.setattr(reinforce, "rewards_of", recorded)
            monkeypatch.setattr(ColocRL, "plans", decided)
            before = {name: value.clone() for name, value in proposer.policy.policy.named_parameters()}  # type: ignore
        loop._measure(loop._chosen(8), number)
    assert len(ran) >= LEAST_MEASUREMENTS
    simulated = SimulatedObjective(task)(asked)
    predicted = simulated * np.exp(network(asked, simulated)[0])
    known = {trial.plan.key: trial.measurement.median_ms for trial in ran}
    want = np.array([known.get(plan.key, ms) for plan, ms in zip(asked, predicted, strict=True)])
    np.testing.assert_allclose(np.concatenate(rewarded), want, rtol=1e-5)
    assert not np.allclose(want, simulated, rtol=1e-2)
    after = dict(proposer.policy.policy.named_parameters())  # type: ignore[attr-defined]
    assert any(not torch.equal(value, after[name]) for name, value in before.items())


def test_expected_improvement_is_the_mean_gain_over_the_best(task: Task) -> None:
    plans = [plan for _, plan in islice(random_plans(task), 40)]
    reward = Reward(task, Surrogate())
    reward.learn(plans[:10], 1.2 * SimulatedObjective(task)(plans[:10]))
    gains = reward.expected_improvement(plans)
    assert (gains[:10] == 0).all() and (gains >= 0).all()
    best = np.log(1.2 * SimulatedObjective(task)(plans[:10]).min())
    drawn = np.log(SimulatedObjective(task)(plans[10:])) + 0.1 * np.random.default_rng(0).standard_normal((40_000, 30))
    np.testing.assert_allclose(gains[10:], np.maximum(best - drawn, 0).mean(0), atol=3e-3)


def test_no_cost_model_is_the_order_of_the_simulator(task: Task, tmp_path: Path) -> None:
    loop = begun(task, tmp_path, ["annealing"], surrogate=Surrogate())
    loop.run()
    plans = [trial.plan for trial in loop.trials]
    np.testing.assert_array_equal(loop.reward.means(plans), SimulatedObjective(task)(plans))
    assert {json.loads(line)["origin"] for line in (tmp_path / "log.jsonl").read_text().splitlines()} >= {"annealing"}
