"""Plans of a workload over lanes of one accelerator, simulated and measured: how well the simulator ranks them.

In: a program and the time of each operation alone. Out: Spearman's rank correlation of simulated and measured times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy.stats import spearmanr

from gst.execution.lane_graphs import LaneGraph
from gst.execution.lanes import LaneExecutor
from gst.execution.measure import timed
from gst.lowering.calls import profiled_costs
from gst.lowering.lower import stream_program
from gst.lowering.plan import Plan, StreamProgram
from gst.machine.devices import Device
from gst.placement.baselines.portfolio import etf
from gst.placement.machines import STREAMS
from gst.placement.task import Task
from gst.programs import Program

RUNS = 3  # of each plan that is simulated too, of which the median counts

Times = Float64[np.ndarray, " nodes"]


def lanes(device: torch.device, count: int) -> list[Device]:
    """Streams of one accelerator, all of the same speed."""
    return [Device(f"{device}/stream:{lane}", device.type, (), 1, str(device), "measured") for lane in range(count)]


def task_of(program: Program, device: torch.device, count: int, times_us: Times) -> Task:
    """Placing a program on so many lanes of one accelerator."""
    devices = lanes(device, count)
    return Task.of_program(program, profiled_costs(program, devices, np.tile(times_us, (count, 1))), STREAMS)


def lanes_of(task: Task, program: Program) -> LaneExecutor:
    """All operations in order on one lane, or on several each where it can begin first (ETF)."""
    if len(task.devices) == 1:
        plan = Plan(task.names, np.zeros(program.num_nodes, np.int64))
        return LaneExecutor(program, stream_program(program, plan, task.devices), task.devices)
    return LaneExecutor(program, plan_streams(task, first_plan(task)), task.devices)


def plan_streams(task: Task, plan: Plan) -> StreamProgram:
    """Return the stream program of a plan for a captured program, lowered in the order of its simulation."""
    assert task.program is not None, "costs alone have no stream program"
    rank = np.empty(task.num_nodes, np.int64)
    rank[task.simulator.run(plan).order] = np.arange(task.num_nodes)
    costs = task.costs
    return stream_program(task.program, plan, task.devices, costs.storages, costs.own_bytes, rank)


def first_plan(task: Task) -> Plan:
    """Each operation where it can begin first."""
    plan = etf(task)
    if plan is None:
        raise ValueError(f"no schedule on {len(task.names)} lanes")
    return plan


def simulated_and_measured(program: Program, task: Task, count: int, seconds: float = float("inf")) -> dict[str, Any]:
    """Return Spearman's rank correlation of simulated and measured times of plans, and all times.

    Plans range from one lane over the schedule of `first_plan` to operations anywhere. Each runs by graphs where those
    can be recorded.

    Args:
        program: that is placed.
        task: on lanes.
        count: of plans.
        seconds: after which no other plan is measured.

    Returns:
        lanes; asked and plans, how many were asked for and done; graphs, how many ran by graphs; spearman, None
        where there is none; simulated_ms, measured_ms.
    """
    times: dict[str, list[float]] = {"simulated_ms": [], "measured_ms": []}
    graphs, ends = 0, time.monotonic() + seconds
    for plan in spread_plans(task, count):
        if time.monotonic() > ends:
            break
        graph = LaneGraph(LaneExecutor(program, plan_streams(task, plan), task.devices))
        graphs += not graph.reason
        graph.run()
        times["measured_ms"].append(float(np.median([timed(graph.run) for _ in range(RUNS)])))
        times["simulated_ms"].append(task.simulator.run(plan).makespan_us / 1e3)
    simulated, measured = times.values()
    return {
        "lanes": len(task.devices), "asked": count, "plans": len(measured), "graphs": graphs,
        "spearman": _rank(simulated, measured),
        **{name: [round(each, 4) for each in values] for name, values in times.items()},
    }  # fmt: skip


def spread_plans(task: Task, count: int) -> Iterator[Plan]:
    """`first_plan` with a share of its operations elsewhere: on the first lane, or on any, in turns. Shares are spread
    evenly over 0 .. 1, in an order drawn at random: of those that are left out at the end all sizes are missed."""
    rng, plan = np.random.default_rng(0), first_plan(task)
    for number in rng.permutation(count):
        is_moved = rng.random(task.num_nodes) < number / max(count - 1, 1)
        there = 0 if number % 2 else rng.integers(0, len(task.names), task.num_nodes)
        yield replace(plan, placement=np.where(is_moved, there, plan.placement))


def _rank(simulated: list[float], measured: list[float]) -> float | None:
    rank = spearmanr(simulated, measured).statistic if len(measured) > 1 else float("nan")
    return None if np.isnan(rank) else float(rank)
