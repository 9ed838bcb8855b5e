"""The simulator first, measurements second: corrections learn, stay exact and repeat by seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from gst.cost.metrics import kendall_tau
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.cost_models import NetworkSurrogate
from gst.placement.fitted import FittedSimulator
from gst.placement.loop import Loop
from gst.placement.objectives import DEFAULT_ERROR, Budgeted, Reward, SimulatedObjective, Surrogate
from gst.placement.search.annealing import anneal
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task
from gst.simulation.simulator import Contention
from tests.placement.pretended import Pretended

TRUTH = Contention(slowdown=0.25, helper_us=15.0, hand_over_us=6.0)  # what the task's simulator does not know of


@pytest.fixture(scope="module")
def plans(moldable: Task) -> list[Plan]:
    found = [plan for _, plan in islice(random_plans(moldable), 120)]
    return [found[number] for number in np.random.default_rng(0).permutation(len(found))]


@pytest.fixture(scope="module")
def measured(moldable: Task, plans: list[Plan]) -> np.ndarray:
    noise = np.random.default_rng(1).normal(scale=0.01, size=len(plans))
    return SimulatedObjective(replace(moldable, contention=TRUTH))(plans) * np.exp(noise)


@pytest.fixture(scope="module")
def network(moldable: Task, plans: list[Plan], measured: np.ndarray) -> Reward:
    screened = Reward(moldable, NetworkSurrogate(moldable, seed=1, members=1))
    screened.learn(plans[:24], measured[:24])
    return screened


def test_a_search_anneals_on_the_simulator_and_on_what_it_has_learned(
    moldable: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def recorded(task: Task, runtime: Budgeted, *arguments: object, **options: object) -> None:
        asked.append(runtime.objective)
        anneal(task, runtime, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("gst.placement.search.annealing.anneal", recorded)
    starts, log = portfolio(moldable), Log(tmp_path / "log.jsonl")
    search = Loop(moldable, Pretended(moldable), log, starts, 2 * len(starts) + 8, 50, rounds=2)
    search.run()
    assert [type(each).__name__ for each in asked] == 2 * ["_Predicted", "SimulatedObjective"]


def test_what_does_not_fit_is_told_by_how_much(moldable: Task, plans: list[Plan]) -> None:
    small = replace(moldable, costs=replace(moldable.costs, devices=tuple(
        replace(device, memory_limit=1) for device in moldable.devices
    )))  # fmt: skip
    reward, excess = Reward(small, FittedSimulator(small)), SimulatedObjective(small).excess(plans[0])
    assert reward.excess(plans[0]) == reward.predicted.excess(plans[0]) == excess > 0  # type: ignore[attr-defined]


def test_before_measurements_a_plan_may_improve_by_the_error_of_the_simulator(
    moldable: Task, plans: list[Plan]
) -> None:
    """Of one plan the expectation of the positive part of a normal error is its deviation over sqrt(2 pi)."""
    expected = Reward(moldable, FittedSimulator(moldable)).expected_improvement(plans[:1])
    assert expected == pytest.approx(DEFAULT_ERROR / np.sqrt(2 * np.pi))


def error(said: np.ndarray, measured: np.ndarray) -> float:
    return float(np.abs(said / measured - 1).mean())


def test_few_measurements_leave_the_simulator_alone(moldable: Task, plans: list[Plan], measured: np.ndarray) -> None:
    screened = Reward(moldable, FittedSimulator(moldable))
    screened.learn(plans[:7], measured[:7])
    assert np.array_equal(screened.means(plans), SimulatedObjective(moldable)(plans))
    np.testing.assert_allclose(screened(plans[:7]), measured[:7])
    assert np.array_equal(screened(plans[7:]), SimulatedObjective(moldable)(plans[7:]))
    deviations = screened._predicted(plans)[2]
    assert np.ptp(deviations) == 0 and (deviations > 0).all()


def test_fitted_costs_learn_what_the_simulator_does_not_know(
    moldable: Task, plans: list[Plan], measured: np.ndarray
) -> None:
    screened = Reward(moldable, FittedSimulator(moldable))
    screened.learn(plans[:40], measured[:40])
    simulated = SimulatedObjective(moldable)(plans[40:])
    said, deviations = screened.means(plans[40:]), screened._predicted(plans[40:])[2]
    factor = np.median(measured[:40] / SimulatedObjective(moldable)(plans[:40]))
    assert error(said, measured[40:]) < error(simulated, measured[40:]) / 2
    assert error(said, measured[40:]) < error(factor * simulated, measured[40:])
    assert kendall_tau(said, measured[40:]) > kendall_tau(simulated, measured[40:])
    inside = np.mean(np.abs(np.log(said / measured[40:])) <= deviations)
    assert 0.5 < inside < 0.95 and (deviations > 0).all(), "0.68 of normal errors"


@pytest.mark.slow
def test_a_network_learns_it_too(moldable: Task, plans: list[Plan], measured: np.ndarray, network: Reward) -> None:
    simulated = SimulatedObjective(moldable)(plans[24:])
    assert error(network(plans[24:]), measured[24:]) < error(simulated, measured[24:]) / 2
    assert (network._predicted(plans)[2] > 0).all()


@pytest.mark.slow
def test_a_network_goes_on_and_repeats_by_seed(
    moldable: Task, plans: list[Plan], measured: np.ndarray, hurried: None
) -> None:
    def learned(seed: int) -> tuple[np.ndarray, np.ndarray]:
        screened = Reward(moldable, NetworkSurrogate(moldable, seed, members=2))
        screened.learn(plans[:10], measured[:10])
        first = screened(plans[20:40])
        screened.learn(plans[10:20], measured[10:20])
        return first, screened(plans[20:40])

    one, again = learned(3), learned(3)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], one[1]) and not np.array_equal(one[1], learned(4)[1])


def test_plans_that_failed_are_ignored(moldable: Task, plans: list[Plan], measured: np.ndarray) -> None:
    clean, mixed = Reward(moldable, FittedSimulator(moldable)), Reward(moldable, FittedSimulator(moldable))
    clean.learn(plans[:20], measured[:20])
    mixed.learn(plans[:25], np.r_[measured[:20], np.full(5, np.nan)])
    mixed.learn(plans[25:27], np.full(2, np.nan))
    assert mixed.num_measured == 20 and np.array_equal(clean(plans), mixed(plans))


@pytest.mark.parametrize("make", [FittedSimulator, NetworkSurrogate])
def test_what_cannot_run_gets_no_runtime(
    moldable: Task, plans: list[Plan], measured: np.ndarray, make: Callable[[Task], Surrogate],
    hurried: None,
) -> None:  # fmt: skip
    """Operation 30 cannot run on the wide device."""
    times = moldable.times_us.copy()
    times[2, 30] = np.inf
    able = replace(moldable, costs=replace(moldable.costs, times_us=times))
    screened = Reward(able, make(able))
    screened.learn(plans[:20], measured[:20])
    said = screened(plans)
    impossible = np.array([plan.placement[30] == 2 for plan in plans])
    assert impossible.any() and np.array_equal(np.isnan(said), impossible)
    assert screened.num_measured == (~impossible[:20]).sum() >= 8


def test_a_runtime_that_is_not_positive_is_refused(moldable: Task, plans: list[Plan]) -> None:
    with pytest.raises(ValueError, match=r"a measurement is 0\.0 ms"):
        Reward(moldable, FittedSimulator(moldable)).learn(plans[:2], np.array([1.0, 0.0]))
