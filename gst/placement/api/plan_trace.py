"""Stream program of a plan, and its simulated timeline as a Chrome trace for ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.lower import stream_program
from gst.lowering.plan import Plan
from gst.lowering.stream_program import StreamProgram
from gst.placement.task import Task
from gst.programs.features import kind_of
from gst.simulation.copies import Copies, copies_of


def plan_streams(task: Task, plan: Plan) -> StreamProgram:
    """Return the stream program of a plan for a captured program, lowered in the order of its simulation.

    Examples:
        >>> import torch
        >>> from gst.placement.machines import machine
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), (torch.zeros(8),))
        >>> task = machine("cores:2").task(program)
        >>> plan_streams(task, Plan(task.names, np.array([0, 0, 1]))).num_events
        2
    """
    assert task.program is not None, "costs alone have no stream program"
    rank = np.empty(task.num_nodes, np.int64)
    rank[task.simulator.run(plan).order] = np.arange(task.num_nodes)
    costs = task.costs
    return stream_program(task.program, plan, task.devices, costs.storages, costs.own_bytes, rank)


def trace_of_task(task: Task, plan: Plan) -> dict[str, Any]:
    """Return the simulated run of a plan, a row for each device, for `gst.util.writing.write_json`.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> {event["ph"] for event in trace_of_task(task, single(task, 0))["traceEvents"]} == {"M", "X"}
        True
    """
    costs, run = task.costs, task.simulator.run(plan)
    operations = None if task.program is None else task.program.operations
    names = [f"node {n}" if operations is None else operations[n].name for n in range(task.num_nodes)]
    kinds = ["operation" if operations is None else kind_of(operations[n]) for n in range(task.num_nodes)]
    return trace_of(
        f"{task.name}, simulated", task.names, names, kinds, np.flatnonzero(costs.computed), run.device, run.begin_us,
        run.end_us, copies_of(costs, run),
    )  # fmt: skip


def trace_of(
    title: str, devices: Sequence[str], names: Sequence[str], kinds: Sequence[str], nodes: Int64[np.ndarray, " shown"],
    home: Int64[np.ndarray, " nodes"], begin_us: Float64[np.ndarray, " nodes"], end_us: Float64[np.ndarray, " nodes"],
    moves: Copies,
) -> dict[str, Any]:  # fmt: skip
    """Return a trace of operations, as complete events, and of copies, as asynchronous events, which may overlap.

    Args:
        nodes: operations that take time.
        home: device of each node.
        moves: copies of values between devices.
    """
    events: list[dict[str, Any]] = [_named("process_name", 0, title)]
    events += [_named("thread_name", row, name) for row, name in enumerate(devices)]
    for node in nodes.tolist():
        begin, end = float(begin_us[node]), float(end_us[node])
        events.append({
            "ph": "X", "name": names[node], "cat": kinds[node], "pid": 0, "tid": int(home[node]), "ts": begin,
            "dur": end - begin, "args": {"node": node},
        })  # fmt: skip
    for number, (node, target, begin, end) in enumerate(zip(*(each.tolist() for each in moves), strict=True)):
        label = f"{names[node]} to {devices[target]}"
        shared = {"name": label, "cat": "copy", "id": number, "pid": 0, "tid": int(home[node])}
        events += [{"ph": "b", "ts": begin, **shared, "args": {"node": node, "target": target}},
                   {"ph": "e", "ts": end, **shared}]  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(what: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": row, "args": {"name": name}}
