"""Operations that are profiled while other processes use the cores: again when these are quiet, and said otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from gst.cli import main
from gst.lowering.calls import Costs
from gst.lowering.plan import ExecutionError, Plan, RunsInTurns
from gst.machine.load import LoadGate
from gst.placement.profiling import NO_WAIT, cached_task, measured_task
from gst.placement.task import Task
from gst.simulation.simulator import Contention

CONTENTION = Contention(slowdown=0.05)
QUIET, BUSY = 0.02, 0.6
IDLE = LoadGate(patience_s=1.0, interval_s=0.0, read=lambda: (0.0, 0.0), sleep=lambda seconds: None, clock=lambda: 0.0)


class Runner:
    """Runs plans of a task as its simulator does. While others are busy every operation takes thrice as long.

    Args:
        task: whose costs and contention are to be learned.
        loads: share of the cores that others take during each request.
    """

    def __init__(self, task: Task, loads: Sequence[float]) -> None:
        self.task, self.devices, self.loads = task, task.devices, list(loads)
        self.truth = replace(task, contention=CONTENTION)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def costs(self, repetitions: int = 5) -> Costs:
        return replace(self.task.costs, load=self.loads.pop(0))

    def timelines(self, plans: Sequence[Plan], repetitions: int = 3) -> RunsInTurns:
        load = self.loads.pop(0)
        slow = 3.0 if load == BUSY else 1.0
        runs = [self.truth.simulator.run(plan) for plan in plans]
        return RunsInTurns(
            [[replace(run, begin_us=slow * run.begin_us, end_us=slow * run.end_us)] * repetitions for run in runs], load
        )


@pytest.mark.parametrize(
    ("loads", "gate", "left", "is_quiet"),
    [
        ([BUSY, BUSY, QUIET, QUIET], IDLE, 1, True),
        ([QUIET, QUIET, QUIET], IDLE, 1, True),
        ([BUSY, BUSY, BUSY, BUSY, QUIET], IDLE, 1, False),  # not for ever
        ([BUSY, BUSY, QUIET], NO_WAIT, 1, False),
        ([BUSY, BUSY, QUIET], replace(IDLE, threshold=-1.0, patience_s=0.0), 1, False),  # never quiet
    ],
)
def test_a_busy_profile_is_made_again_on_quiet_cores(
    task: Task, loads: list[float], gate: LoadGate, left: int, is_quiet: bool, tmp_path: Path
) -> None:
    runner = Runner(task, loads)
    assert task.program is not None
    measured = measured_task(task.program, runner, 0, gate)
    assert len(runner.loads) == left and measured.costs.load == (QUIET if is_quiet else BUSY)
    assert np.allclose(measured.times_us, task.times_us * (1 if is_quiet else 3))
    if is_quiet:
        assert abs(measured.contention.slowdown - CONTENTION.slowdown) < 0.01
    for make in (lambda: measured, pytest.fail):  # measured, then read
        assert cached_task(task.program, task.devices, tmp_path, make).costs.load == measured.costs.load  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "runs"), [(np.inf, 5 * 14), (0.0, 2 * 4), (0.5, None)])
def test_a_profile_in_short_time_runs_fewer_plans(task: Task, seconds: float, runs: int | None) -> None:
    asked: list[int] = []

    class Counted(Runner):
        def timelines(self, plans: Sequence[Plan], repetitions: int = 3) -> RunsInTurns:
            asked.append(len(plans) * repetitions)
            return super().timelines(plans, repetitions)

    assert task.program is not None
    limit_s = seconds * 40 * task.least_alone_us / 1e6
    measured = measured_task(task.program, Counted(task, [QUIET, QUIET]), 0, NO_WAIT, seconds=limit_s)
    assert np.allclose(measured.times_us, task.times_us)
    assert asked == [runs] if runs else 8 <= asked[0] <= 28, "a run may take longer than on the fastest device alone"


def test_a_profile_that_cannot_be_made_again_leaves_the_one_before(task: Task, tmp_path: Path) -> None:
    class Failing(Runner):
        def timelines(self, plans: Sequence[Plan], repetitions: int = 3) -> RunsInTurns:
            if len(self.loads) == 1:
                raise ExecutionError("a child died")
            return super().timelines(plans, repetitions)

    assert task.program is not None
    measured = measured_task(task.program, Failing(task, [BUSY, BUSY, QUIET]), 0, IDLE)
    assert measured.costs.load == BUSY and np.allclose(measured.times_us, task.times_us * 3)


def test_costs_of_another_release_or_machine_are_refused(task: Task, tmp_path: Path) -> None:
    assert task.program is not None
    cached_task(task.program, task.devices, tmp_path, lambda: task)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"contention": {"least_share": 0.5}}))
    with pytest.raises(ValueError, match=r"costs.json is damaged, or of another release; give an empty directory"):
        cached_task(task.program, task.devices, tmp_path, lambda: task)
    cached_task(task.program, task.devices, tmp_path / "other", lambda: task)
    with pytest.raises(ValueError, match=r"costs.json was made with machine .*; give another --out"):
        cached_task(task.program, task.devices, tmp_path / "other", lambda: task, {"cpu": "another"})


@pytest.mark.parametrize("load", [QUIET, BUSY])
def test_the_command_says_that_others_were_busy_while_operations_were_profiled(
    load: float, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert task.program is not None
    monkeypatch.setattr("gst.placement.api.command.traced", lambda name, kind: task.program)
    monkeypatch.setattr("gst.placement.api.command.usable_devices", lambda names, limit: list(task.devices))
    monkeypatch.setattr(
        "gst.placement.api.command.IsolatedExecutor", lambda program, devices: Runner(task, [load, load])
    )
    arguments = ["place", "rnnlm", "--runtime", "simulated", "--evaluations", "20", "--methods", "annealing"]
    arguments += ["--patience", "0", "--out", "out", "--explain"]
    assert main([*arguments, "--json", "result.json"]) == 0
    words = "Other processes took 60% of the cores while operations were profiled: place it again from the beginning"
    assert (words in capsys.readouterr().out) == (words in Path("out/report.html").read_text()) == (load == BUSY)
    assert json.loads(Path("result.json").read_text())["profile_load"] == load
    assert main([*arguments, "--resume"]) == 0
    assert (words in capsys.readouterr().out) == (load == BUSY), "costs of before are used"
