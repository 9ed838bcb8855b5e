"""The stream program of a plan: lowered in the order of its simulation, checked, run by the hostile interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.bench.hostile import verify
from gst.lowering.lower import stream_program
from gst.lowering.plan import Plan
from gst.lowering.race_check import check
from gst.lowering.stream_program import StreamProgram
from gst.placement.task import Task

HOSTILE_RUNS = 5  # hostile runs, each with delays of its own


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
        >>> task = machine("cores:2").task(program)
        >>> print(plan_streams(task, Plan(task.names, np.array([0, 0, 1]))).text(lambda node: "xyz"[node]))
        cpu:0 starts with x
        lane cpu:0 in cpu:0, 2 steps
          run y
          record event 0
        lane cpu:1 in cpu:1, 3 steps
          wait event 1
          run z
          free y
        lane copies of cpu:0 in cpu:0, 4 steps
          wait event 0
          copy y to cpu:1
          record event 1
          free y
        cpu:1 ends with z
    """
    assert task.program is not None, "costs alone have no stream program"
    rank = np.empty(task.num_nodes, np.int64)
    rank[task.simulator.run(plan).order] = np.arange(task.num_nodes)
    costs = task.costs
    return stream_program(task.program, plan, task.devices, costs.storages, costs.own_bytes, rank)


def checked_streams(task: Task, plan: Plan, hostile: bool) -> tuple[StreamProgram, dict[str, Any]]:
    """Lower and check a plan.

    Args:
        task: of a captured program.
        plan: for it.
        hostile: also run it by the hostile interpreter, `HOSTILE_RUNS` times, and compare outputs.

    Returns:
        The stream program, and for a result: the numbers of steps, events and hostile runs, and for each memory the
        most bytes that values take in any run (`peak_bytes`) and those of inputs and constants (`resident_bytes`).

    Raises:
        RaceError: two steps race, which is a mistake of lowering.
        ExecutionError: outputs of a hostile run differ.
    """
    streams = plan_streams(task, plan)
    assert task.program is not None
    checked = verify(task.program, streams, HOSTILE_RUNS) if hostile else check(streams)
    return streams, {
        "steps": streams.num_steps, "events": streams.num_events, "hostile_runs": HOSTILE_RUNS if hostile else 0,
        "peak_bytes": checked.peak_bytes, "resident_bytes": checked.resident_bytes,
    }  # fmt: skip
