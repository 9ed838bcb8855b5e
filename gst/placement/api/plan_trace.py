"""A plan's timeline as a Chrome trace, for ui.perfetto.dev: a row for each device, and every value under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.problem import Problem
from gst.execution.trace import kind_of
from gst.lowering.plan import Plan
from gst.placement.search.window_schedules import Schedule, moved
from gst.placement.task import Task
from gst.simulation.copies import Copies, copies_of

PER_UNIT_US = {"s": 1e6, "ms": 1e3}


def trace_of_task(task: Task, plan: Plan) -> dict[str, Any]:
    """The simulated run of a plan, for `gst.execution.trace.save_trace`.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> {event["ph"] for event in trace_of_task(task, single(task, 0))["traceEvents"]} == {"M", "X"}
        True
    """
    costs, run = task.costs, task.simulator.run(plan)
    computed = np.flatnonzero(costs.computed)
    moves = copies_of(costs, run)
    operations = None if task.program is None else task.program.operations
    names = [f"node {n}" if operations is None else operations[n].name for n in range(task.num_nodes)]
    kinds = ["operation" if operations is None else kind_of(operations[n]) for n in range(task.num_nodes)]
    return _trace(
        f"{task.name}, simulated", task.names, names, kinds, computed, run.device, run.begin_us, run.end_us, moves
    )


def trace_of_schedule(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """The schedule of a published problem, likewise; where the file has no unit of time, one is drawn as a millisecond.

    Args:
        schedule: one that the problem admits.
    """
    unit = problem.graph.unit
    scale = PER_UNIT_US.get(unit, 1e3) / problem.graph.scale
    producers, consumers = problem.graph.edges
    here, there = schedule.home[producers], schedule.home[consumers]
    took = np.array([
        scale * moved(edge, a, b, problem.arrays) for edge, (a, b) in enumerate(zip(here, there, strict=True))
    ])  # fmt: skip
    moves = _moves(producers, there, scale * schedule.end[producers], took)
    names, nodes = [str(each) for each in problem.graph.ids], np.arange(problem.num_nodes)
    return _trace(
        f"{problem.graph.name} on {problem.machine}, simulated, {unit}", problem.devices, names,
        ["operation"] * len(names), nodes, schedule.home, scale * schedule.begin, scale * schedule.end, moves,
    )  # fmt: skip


def _moves(
    node: Int64[np.ndarray, " edges"], target: Int64[np.ndarray, " edges"], begin_us: Float64[np.ndarray, " edges"],
    took_us: Float64[np.ndarray, " edges"],
) -> Copies:  # fmt: skip
    """Of edges that take time: a value goes to a device once, whoever reads it there."""
    moving = np.flatnonzero(took_us > 0)
    pairs = np.stack([node[moving], target[moving]])
    first = moving[np.unique(pairs, axis=1, return_index=True)[1]] if moving.size else moving
    return Copies(node[first], target[first], begin_us[first], begin_us[first] + took_us[first])


def _trace(
    title: str, devices: Sequence[str], names: Sequence[str], kinds: Sequence[str], nodes: Int64[np.ndarray, " shown"],
    home: Int64[np.ndarray, " nodes"], begin_us: Float64[np.ndarray, " nodes"], end_us: Float64[np.ndarray, " nodes"],
    moves: Copies,
) -> dict[str, Any]:  # fmt: skip
    """Operations are complete events, which never overlap in a row; values under way are asynchronous ones, which may:
    links do not queue."""
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
