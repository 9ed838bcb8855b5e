"""The benchmark of the parts of the placement loop, on a machine that is simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from experiments.bench.ablation import ROWS, Believed, Rates, over_loop, plan_of
from experiments.bench.search_loop import PretendedObjective, unlike
from gst.execution.measure import Measurement
from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.cost_models import LinearSurrogate
from gst.placement.loop import AT_ONCE
from gst.placement.machines import machine
from gst.placement.objectives import Batches
from gst.placement.planning import BUDGET
from gst.placement.policies.constructive.fine_tuning import FineTuning
from gst.placement.reward import LEAST_MEASUREMENTS, Reward
from gst.placement.task import Task
from gst.programs import traced

RATES = Rates(step=1e-3, build=1e-3, measure=1e-3)  # pretended, so that what is found depends on the seed alone


class Counting(PretendedObjective):
    """Counts the plans that are measured."""

    num_measured = 0

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]:
        self.num_measured += sum(map(len, batches))
        return super().measure_batches(batches)


@pytest.fixture(scope="module")
def task() -> Task:
    return machine("gpus:2").task(traced("rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"))


@pytest.mark.parametrize("row", [row for row in ROWS if row not in ("network", "portfolio")])
def test_a_loop_has_its_own_parts_and_no_other(task: Task, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = set()
    for kind, name in ((LinearSurrogate, "learn"), (Believed, "learn"), (FineTuning, "run")):
        kept = getattr(kind, name)

        def spy(self: Any, *given: Any, kept: Any = kept, kind: type = kind, **named: Any) -> Any:
            called.add(kind.__name__)
            return kept(self, *given, **named)

        monkeypatch.setattr(kind, name, spy)
    measurer = Counting(unlike(task, 0), seed=0)
    plan = plan_of(row, task, measurer, RATES, 1.0, seed=0)
    assert task.can_run(plan)
    assert measurer.num_measured == (0 if row == "measurements" else BUDGET)
    assert (plan.priority is None) == (row == "schedule")
    learner = {"learning": {"Believed"}, "measurements": set()}.get(row, {"LinearSurrogate"})
    assert called == learner | ({"FineTuning"} if row == "policy" else set())


def test_a_simulator_that_is_believed_is_never_corrected(task: Task) -> None:
    plans = list(portfolio(task).values())
    corrected = Reward(task, Believed())
    before = corrected(plans)
    corrected.learn(plans, 2 * before)
    assert corrected.num_measured >= LEAST_MEASUREMENTS and (corrected.with_spread(plans)[0] == before).all()


def test_rates_are_seconds_of_each(task: Task) -> None:
    [start, *_] = portfolio(task).values()
    asked: list[int] = []

    def measurer(plans: Sequence[Plan]) -> np.ndarray:
        asked.append(len(plans))
        time.sleep(0.02)
        return np.ones(len(plans))

    rates = Rates.of(task, start, measurer)
    assert asked == [AT_ONCE, AT_ONCE] and rates.measure == pytest.approx(0.02 / AT_ONCE, rel=0.5)
    assert 0 < rates.step < 0.02 and 0 < rates.build < 0.02


def test_rows_are_compared_seed_by_seed_and_program_by_program() -> None:
    def program(loop: list[float], other: list[float | None]) -> dict[str, Any]:
        rows = {row: {"ms": loop if row in ("loop", "portfolio") else other, "seconds": [3.0]} for row in ROWS}
        return {"rows": rows | {"network": {"ms": other, "seconds": [6.0]}}}

    programs = {"one": program([1.0, 2.0], [2.0, 4.0]), "two": program([3.0, 5.0], [1.5, 2.5])}
    found = over_loop(programs)
    assert set(found) == set(ROWS) - {"loop"} and found["network"]["seconds"] == 2.0
    expected = {"mean": 1.0, "low": 0.5, "high": 2.0, "seconds": 1.0}
    assert found["policy"] == pytest.approx(expected)
    failed = over_loop({"one": program([1.0, 2.0], [None, 8.0])})  # null in JSON: counts as the baseline
    assert failed["policy"]["mean"] == pytest.approx(2.0)
