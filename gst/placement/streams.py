"""The stream program of a plan: lowered in the order of its simulation, checked, run by the hostile interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gst.devices import Plan
from gst.devices.execute.hostile import verify
from gst.devices.execute.lowering import stream_program
from gst.devices.execute.race_check import check
from gst.devices.execute.stream_program import StreamProgram
from gst.files.untrusted import read_object
from gst.files.writing import atomic_write
from gst.placement.task import Task

MOST_STEPS = 20_000  # of a stream program that `plan.json` holds: about a megabyte
VERIFIED_RUNS = 5  # hostile runs, each with delays of its own


def plan_streams(task: Task, plan: Plan) -> StreamProgram:
    """The stream program of a plan, in the order in which its simulation begins operations.

    Args:
        task: of a captured program, with its costs.
        plan: for it.

    Examples:
        >>> import torch
        >>> from gst.placement.machines import machine
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), (torch.zeros(8),))
        >>> task = machine("gpus:2").task(program)
        >>> print(plan_streams(task, Plan(task.names, np.array([0, 0, 1]))).text(lambda node: "xyz"[node]))
        gpu:0 starts with x
        lane gpu:0 in gpu:0, 2 steps
          run y
          record event 0
        lane gpu:1 in gpu:1, 2 steps
          wait event 1
          run z
          free y
        lane copies of gpu:0 in gpu:0, 4 steps
          wait event 0
          copy y to gpu:1
          record event 1
          free y
        gpu:1 ends with z
    """
    assert task.program is not None, "costs alone have no stream program"
    rank = np.empty(task.num_nodes, np.int64)
    rank[np.argsort(task.simulator.run(plan).begin_us, kind="stable")] = np.arange(task.num_nodes)
    costs = task.costs
    return stream_program(task.program, plan, task.devices, costs.storages, costs.own_bytes, rank)


def record_streams(task: Task, plan: Plan, directory: Path, show: bool, hostile: bool) -> dict[str, Any]:
    """Lower and check a plan, and add its stream program to `plan.json` if it has at most `MOST_STEPS` steps.

    Args:
        task: of a captured program.
        plan: for it, saved in `directory`.
        directory: holds `plan.json`.
        show: also write the program as text, `program.txt`.
        hostile: also run it by the hostile interpreter and compare outputs.

    Returns:
        For a result: the numbers of steps, events and hostile runs, and for each memory the most bytes that values take
        in any run, and those of inputs and constants.

    Raises:
        RaceError: two steps race, which is a mistake of lowering.
        ExecutionError: outputs of a hostile run differ.
    """
    streams = plan_streams(task, plan)
    assert task.program is not None
    checked = verify(task.program, streams, VERIFIED_RUNS) if hostile else check(streams)
    if streams.num_steps <= MOST_STEPS:
        record = read_object(directory / "plan.json")
        with atomic_write(directory / "plan.json") as file:
            json.dump(record | {"streams": streams.to_dict()}, file)
    if show:
        names = [operation.name for operation in task.program.operations]
        with atomic_write(directory / "program.txt") as file:
            file.write(streams.text(names.__getitem__) + "\n")
    return {
        "steps": streams.num_steps, "events": streams.num_events, "hostile_runs": VERIFIED_RUNS if hostile else 0,
        "peak_bytes": checked.peak_bytes, "resident_bytes": checked.resident_bytes,
    }  # fmt: skip
