"""The benchmark of the parts of the placement loop, on a machine that is simulated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from experiments.bench.ablation import PARTS, ROWS, Believed, Rates, found_without, over_full
from experiments.bench.search_loop import PretendedObjective, unlike
from gst.devices import Measurement, Plan
from gst.placement.machines import machine
from gst.placement.objective import Batches
from gst.placement.planning import BUDGET
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


@pytest.mark.parametrize("part", ["full", *PARTS])
def test_a_loop_without_a_part_does_without_it(task: Task, part: str) -> None:
    measurer = Counting(unlike(task, 0), seed=0)
    plan = found_without(part, task, measurer, RATES, 1.0, seed=0)
    assert isinstance(plan, Plan) and task.can_run(plan)
    assert measurer.num_measured == (0 if part == "measurements" else BUDGET)
    assert (plan.priority is None) == (part == "schedule")


def test_a_simulator_that_is_believed_is_never_corrected() -> None:
    believed, nothing = Believed(), np.zeros(0)
    believed.learn([], nothing, nothing)
    assert [each.tolist() for each in believed([], nothing)] == [[], []]


def test_rows_are_compared_seed_by_seed_and_program_by_program() -> None:
    def program(full: list[float], other: list[float]) -> dict[str, object]:
        return {"rows": {row: {"ms": full if row == "full" else other} for row in ROWS}}

    programs = {"one": program([1.0, 2.0], [2.0, 4.0]), "two": program([3.0, 5.0], [1.5, 2.5])}
    found = over_full(programs)
    assert set(found) == set(ROWS) - {"full"}
    assert found["policy"] == {"mean": pytest.approx(1.0), "low": pytest.approx(0.5), "high": pytest.approx(2.0)}
    failed = over_full({"one": program([1.0, 2.0], [float("nan"), 4.0])})
    assert failed["network"]["mean"] == pytest.approx(2.0)
