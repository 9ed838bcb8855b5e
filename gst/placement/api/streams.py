"""The stream program of a plan, lowered in the order of its simulation."""

from __future__ import annotations

import numpy as np

from gst.lowering.lower import stream_program
from gst.lowering.plan import Plan
from gst.lowering.stream_program import StreamProgram
from gst.placement.task import Task


def plan_streams(task: Task, plan: Plan) -> StreamProgram:
    """Return the stream program of a plan for a captured program.

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
