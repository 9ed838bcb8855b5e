"""Operations that some devices cannot run, whose times there are infinite: they are planned elsewhere, and records of
their costs are JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.objectives import Planned, SimulatedObjective
from gst.placement.planning import check_fits
from gst.placement.profiling import cached_task, whole_step
from gst.placement.task import Task
from gst.programs import Program, Step, capture

DEVICES = [Device("xpu:0", "xpu", (), 1, "xpu:0", "test"), Device("cpu:0", "cpu", (0, 1), 2, "host", "test")]


def program() -> Program:
    def function(a: torch.Tensor) -> list[torch.Tensor]:
        return [((each @ each).relu() + 1).sum() for each in (a, a + 1)]

    return capture(Step("chain", function, (torch.ones(4, 4),)))


def task_of(*cannot_run: tuple[int, str], devices: list[Device] = DEVICES) -> Task:
    """Times of 10 us, infinite for pairs of a device and an operator that it cannot run."""
    of = program()
    times_us = np.array([[10.0 if each.kind == "operation" else 0.0 for each in of.operations]] * len(devices))
    for device, name in cannot_run:
        times_us[device, [str(each.target) == name for each in of.operations]] = np.inf
    return Task.of_profile(of, devices, times_us)


NO_RELU, NO_SUM = (0, "aten.relu.default"), (1, "aten.sum.default")


def planned(task: Task, plan: Plan) -> dict[str, Planned]:
    return {"single": Planned(plan, float(SimulatedObjective(task)([plan])[0]), 0.0, 1)}


def test_a_plan_can_run_if_each_operation_can_run_on_its_device() -> None:
    task = task_of(NO_RELU)
    zeros = np.zeros(task.num_nodes, np.int64)
    assert not task.can_run(task.plan(zeros)) and task.can_run(task.plan(zeros + 1))
    assert task.can_run(Plan(("cpu:0", "xpu:0"), zeros)) and not task.can_run(Plan(("xpu:0",), zeros))


def test_of_plans_that_cannot_run_no_memory_is_asked() -> None:
    limited = [replace(each, memory_limit=8) for each in DEVICES]
    task = task_of(NO_RELU, devices=limited)
    zeros = np.zeros(task.num_nodes, np.int64)
    with pytest.raises(ValueError, match=r"^no plan of chain that was found can run on xpu:0, cpu:0: "):
        check_fits(task, planned(task, task.plan(zeros)))
    both = planned(task, task.plan(zeros)) | {"other": planned(task, task.plan(zeros + 1))["single"]}
    with pytest.raises(ValueError, match=r"^no plan of chain fits \(.*the least that would do for a plan found is 0"):
        check_fits(task, both)


def test_the_whole_step_goes_where_all_operations_can_run() -> None:
    somewhere, num_nodes = task_of(NO_RELU), task_of().num_nodes
    assert whole_step(task_of()).placement.tolist() == [1] * num_nodes, "the device with most threads"
    assert whole_step(somewhere).placement.tolist() == [1] * num_nodes
    assert whole_step(task_of(NO_SUM)).placement.tolist() == [0] * num_nodes, "though it has fewer threads"


def test_the_record_of_costs_is_json(tmp_path: Path) -> None:
    def refused(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    task = task_of(NO_RELU)
    assert task.program is not None
    for make in (lambda: task, pytest.fail):  # measured, then read
        again = cached_task(task.program, DEVICES, tmp_path, make)  # type: ignore[arg-type]
        assert np.array_equal(again.times_us, task.times_us) and again.contention == task.contention
    json.loads((tmp_path / "costs.json").read_text(), parse_constant=refused)
