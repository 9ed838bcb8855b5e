"""Groups compiled here as single operations of a task: what is searched is what runs, with the same outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gst.execution.isolated import IsolatedExecutor
from gst.execution.measure import Log
from gst.lowering.plan import ExecutionError, Plan
from gst.machine.devices import Device, discover, select, usable_cores
from gst.placement.measured import place_measured
from gst.placement.planning import Settings
from gst.placement.profiling import FusedTask, chains, fused_task, measured_task, whole_step
from gst.placement.task import Task
from gst.programs import Program, TrainingStep, capture
from gst.util.compiled import compiler

pytestmark = [
    pytest.mark.e2e,  # Inductor compiles groups and steps
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine"),
    pytest.mark.skipif(len(usable_cores()) < 2, reason="this machine has one core"),
]


@pytest.fixture(scope="module")
def program() -> Program:
    """Two products of matrices, each followed by the same chain of element-wise operations that hands on two values:
    compiled once. No operation computes long for each number, so that fewer passes over memory are faster everywhere.
    """

    def chain(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x) * x + 1.0
        return torch.abs(y) * y - x, y

    def step(p: dict) -> tuple[torch.Tensor, dict]:
        one, inside_one = chain(p["w"] @ p["v"])
        two, inside_two = chain(one @ p["v"])
        return two.sum() + inside_one.mean() + inside_two.mean(), {"w": one, "v": two}

    generator = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(256, 256, generator=generator) / 16 for name in ("w", "v")}
    return capture(TrainingStep("chains", step, (inputs,)))


@pytest.fixture(scope="module")
def devices() -> tuple[Device, ...]:
    return tuple(select(["cpu:0", "cpu:1"], discover()))


@pytest.fixture(scope="module")
def saved(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "chains"
    program.save(path)
    return path


@pytest.fixture(scope="module")
def isolated(saved: Path, devices: tuple[Device, ...]) -> Iterator[IsolatedExecutor]:
    with IsolatedExecutor(saved, devices) as made:
        yield made


@pytest.fixture(scope="module")
def task(program: Program, isolated: IsolatedExecutor) -> Task:
    return measured_task(program, isolated, 0)


@pytest.fixture(scope="module")
def made(task: Task, isolated: IsolatedExecutor) -> FusedTask:
    found = fused_task(task, isolated, chains(task))
    assert found is not None, "six passes over 256 kB become one"
    return found


def test_contention_is_learned_from_plans_of_several_devices(
    program: Program, isolated: IsolatedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many devices as plans to learn from, the first plans are all of single devices."""
    monkeypatch.setattr("gst.placement.profiling.NUM_CALIBRATION", len(isolated.devices))
    learned: list[int] = []
    monkeypatch.setattr(
        "gst.placement.profiling.fit",
        lambda costs, runs, start: learned.append(sum(len(set(of_plan[0].device)) > 1 for of_plan in runs)),
    )
    measured_task(program, isolated, 0)
    assert learned == [len(isolated.devices)]


def test_any_plan_of_it_runs_with_the_same_outputs(made: FusedTask, isolated: IsolatedExecutor) -> None:
    generator = np.random.default_rng(0)
    for _ in range(5):
        placement, priority = generator.integers(0, 2, made.task.num_nodes), generator.permutation(made.task.num_nodes)
        isolated.check(made.unfold(made.task.plan(placement, priority)))


def test_a_group_takes_part_of_what_its_operations_take(made: FusedTask, task: Task) -> None:
    inside = made.groups >= 0
    of = made.node_of[inside]
    separately = np.stack([np.bincount(of, row[inside], made.task.num_nodes) for row in task.times_us])
    is_group = np.bincount(of, minlength=made.task.num_nodes) > 0
    assert (made.task.times_us[:, is_group] < separately[:, is_group]).all()
    alone = np.flatnonzero(~inside)
    assert made.task.times_us[:, made.node_of[alone]] == pytest.approx(task.times_us[:, alone])


def test_groups_that_pay_nowhere_are_left_alone(
    task: Task, isolated: IsolatedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Plan] = []

    def slower(plan: Plan) -> dict[int, float]:
        asked.append(plan)
        return {int(np.flatnonzero(plan.fusion == number)[0]): 1.0 for number in set(plan.fusion.tolist()) - {-1}}  # type: ignore[union-attr]

    monkeypatch.setattr(isolated, "groups", slower)
    assert fused_task(task, isolated, chains(task)) is None and asked


def test_a_group_that_ends_its_process_is_left_alone(
    made: FusedTask, task: Task, isolated: IsolatedExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups, bad = isolated.groups, int(np.flatnonzero(made.groups == 0)[0])

    def ends(plan: Plan) -> dict[int, float]:
        assert plan.fusion is not None
        if plan.fusion[bad] >= 0:
            raise ExecutionError("crashed: signal 11")
        return groups(plan)

    monkeypatch.setattr(isolated, "groups", ends)
    kept = tmp_path / "groups.json"
    found = fused_task(task, isolated, chains(task), cache=kept)
    assert found is not None and found.groups[bad] == -1
    assert (found.groups >= 0).sum() == (made.groups > 0).sum() > 0
    monkeypatch.undo()
    again = fused_task(task, isolated, chains(task), cache=kept)
    assert again is not None and again.task.key == found.task.key, "a search goes on with the groups it began with"
    assert task.program is not None
    other = Task.of_profile(task.program, task.devices[:1], task.times_us[:1])
    with pytest.raises(ValueError, match=r"groups\.json was made with devices .*, now it is"):
        fused_task(other, isolated, chains(other), cache=kept)


def test_the_whole_step_is_one_operation(task: Task, isolated: IsolatedExecutor) -> None:
    plan = whole_step(task)
    (share,) = isolated.groups(plan).values()
    assert 0.0 < share <= 1.0
    isolated.check(plan)
    assert len(set(plan.placement.tolist())) == 1


def test_what_is_placed_with_fusion_is_written_as_a_plan_of_the_program(
    program: Program, saved: Path, devices: tuple[Device, ...], isolated: IsolatedExecutor, tmp_path: Path
) -> None:
    chosen = Settings(
        8, 50, ("annealing",), ("placement", "schedule", "fusion"), repetitions=3, patience_s=0.0, compile_step=False
    )
    found = place_measured(program, saved, devices, tmp_path / "out", chosen)
    names = set(found.result["plans"])
    assert {"loop", "whole:fused", "pytorch", "heft"} <= names
    assert len([name for name in names if name.endswith(":fused")]) == 2
    assert len(found.plan.placement) == program.num_nodes
    isolated.check(found.plan)
    entry = found.result["plans"]["loop"]
    assert entry["measurements"] == 8 and np.isfinite(entry["simulated_ms"])
    again = place_measured(program, saved, devices, tmp_path / "out", replace(chosen, repetitions=2))
    assert again.result["plans"]["loop"]["measurements"] == 8  # nothing is left to measure
    assert (again.task.times_us == found.task.times_us).all(), "the costs it began with"
    more = place_measured(program, saved, devices, tmp_path / "out", replace(chosen, repetitions=2, budget=12))
    starts = [each["origin"] for each in Log(tmp_path / "out/measurements.jsonl").read() if each["round"] == 0]
    assert more.result["plans"]["loop"]["measurements"] == 12 and len(starts) == len(set(starts)), "none made anew"
