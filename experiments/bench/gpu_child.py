"""One workload on the accelerator of this machine, as written and by lanes, in a process of its own.

python -m experiments.bench.gpu_child NAME SETTINGS.json    # out: a line of JSON, and another with what is compiled
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from gst.devices import Device, Plan, eager, measure
from gst.devices.execute.costs import profiled_costs
from gst.devices.execute.event_times import event_times_us
from gst.devices.execute.lane_graphs import LaneGraph
from gst.devices.execute.lanes import LaneExecutor
from gst.devices.execute.lowering import stream_program
from gst.devices.execute.measure import timed
from gst.devices.execute.on_accelerator import as_written, one_graph, whole
from gst.devices.plan import ExecutionError
from gst.placement.baselines.list_schedules import etf
from gst.placement.machines import STREAMS
from gst.placement.streams import plan_streams
from gst.placement.task import Task
from gst.programs import Program, capture, outputs_differ, resolve

DEAREST = 10  # operations whose times are reported
RUNS = 3  # of each plan that is simulated too, of which the median counts


def reports(name: str, settings: Mapping[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """Figures of one workload on the first accelerator: first without what is compiled, which takes long, then with it.

    Args:
        name: of the workload.
        settings: `repetitions` of each way, the numbers of `lanes`, the `modes` of `torch.compile`, and how many
            `plans` are simulated and measured on the most lanes; 0 for none.
        kind: of the accelerator. With `cpu` the same is done there, which times little but proves the way.

    Returns:
        nodes; ways (by name: the measurement of the step as written, in one graph of the accelerator, compiled, by
        lanes, and of their graph; one that is no graph or has other outputs than the program on the CPU says so in
        `reason`); operations_ms, the sum of all times by events, and the dearest of them; simulator, see
        `simulated_and_measured`, once plans were.
    """
    step = resolve(name)
    program = capture(step, kind="cuda")
    device, want = torch.device(kind) if kind == "cpu" else torch.device(kind, 0), eager(program)
    times = event_times_us(program, device)
    written = as_written(step, device)
    runs: dict[str, Callable[[], list[Any]]] = {"as written": written}
    reasons = {}
    for lanes in settings["lanes"]:
        executor = lanes_of(program, device, lanes, times)
        runs[f"{lanes} lanes"] = executor.run
        graph = LaneGraph(executor)
        runs[f"{lanes} lanes, graph"] = graph.run
        if graph.reason:
            reasons[f"{lanes} lanes, graph"] = graph.reason
    try:
        runs["as written, graph"] = one_graph(written, device)
    except Exception as error:  # whatever an operation does that a graph cannot
        reasons["as written, graph"] = _first_line(error)
    reasons |= {way: reasons.get(way) or _difference(run, want) for way, run in runs.items()}
    dearest = np.argsort(-times)[:DEAREST]
    row = {
        "nodes": program.num_nodes, "operations_ms": float(times.sum()) / 1e3,
        "dearest": [[str(program.operations[node].target), round(float(times[node]), 2)] for node in dearest],
    }  # fmt: skip
    yield row | {"ways": _ways(runs, reasons, settings["repetitions"])}
    if settings["plans"]:
        row["simulator"] = simulated_and_measured(program, device, max(settings["lanes"]), times, settings["plans"])
        yield row | {"ways": _ways(runs, reasons, settings["repetitions"])}
    for mode in settings["modes"]:
        way = f"compiled, {mode}"
        try:
            runs[way] = whole(program, device, mode)
        except RuntimeError as error:  # no such mode
            reasons[way] = _first_line(error)
        else:
            reasons[way] = _difference(runs[way], want)
    if settings["modes"]:
        yield row | {"ways": _ways(runs, reasons, settings["repetitions"])}


def _ways(
    runs: Mapping[str, Callable[[], list[Any]]], reasons: Mapping[str, str], repetitions: int
) -> dict[str, dict[str, Any]]:
    """Ways that are right, timed in turns; the others with their reason."""
    ran = measure({way: runs[way] for way, reason in reasons.items() if not reason}, repetitions)
    ways: dict[str, dict[str, Any]] = {way: {"median_ms": None, "reason": reason} for way, reason in reasons.items()}
    for way, each in ran.items():
        ways[way] = {
            "median_ms": each.median_ms, "low_ms": each.low_ms, "high_ms": each.high_ms, "reason": each.reason,
        }  # fmt: skip
    return ways


def lanes_of(program: Program, device: torch.device, lanes: int, times_us: np.ndarray) -> LaneExecutor:
    """An executor of so many lanes of one accelerator: all operations in order on one lane, or each where it can begin
    first (ETF), by their times alone."""
    task = task_of(program, device, lanes, times_us)
    if lanes == 1:
        plan = Plan(task.names, np.zeros(program.num_nodes, np.int64))
        return LaneExecutor(program, stream_program(program, plan, task.devices), task.devices)
    plan = first_plan(task)
    return LaneExecutor(program, plan_streams(task, plan), task.devices)


def task_of(program: Program, device: torch.device, lanes: int, times_us: np.ndarray) -> Task:
    """Placing a program on streams of one accelerator, all of the same speed."""
    devices = [Device(f"{device}/stream:{lane}", device.type, (), 1, str(device), "measured") for lane in range(lanes)]
    return Task.of_program(program, profiled_costs(program, devices, np.tile(times_us, (lanes, 1))), STREAMS)


def first_plan(task: Task) -> Plan:
    """Each operation where it can begin first."""
    plan = etf(task)
    if plan is None:
        raise ValueError(f"no schedule on {len(task.names)} lanes")
    return plan


def simulated_and_measured(
    program: Program, device: torch.device, lanes: int, times_us: np.ndarray, count: int
) -> dict[str, Any]:
    """How well the simulator ranks plans: Spearman's rank correlation with measured times, and the times of both.

    Plans range from one lane over the schedule of `first_plan` to operations anywhere. Each runs by graphs where those
    can be recorded (`graphs` of them).
    """
    task = task_of(program, device, lanes, times_us)
    simulated, measured, graphs = [], [], 0
    for plan in spread_plans(task, count):
        graph = LaneGraph(LaneExecutor(program, plan_streams(task, plan), task.devices))
        graphs += not graph.reason
        graph.run()
        measured.append(float(np.median([timed(graph.run) for _ in range(RUNS)])))
        simulated.append(task.simulator.run(plan).makespan_us / 1e3)
    rank = spearmanr(simulated, measured).statistic if count > 1 else float("nan")
    return {
        "lanes": lanes, "plans": count, "graphs": graphs, "spearman": None if np.isnan(rank) else float(rank),
        "simulated_ms": [round(each, 4) for each in simulated], "measured_ms": [round(each, 4) for each in measured],
    }  # fmt: skip


def spread_plans(task: Task, count: int) -> Iterator[Plan]:
    """`first_plan` with a growing share of its operations elsewhere: on the first lane, or on any, in turns."""
    rng, plan = np.random.default_rng(0), first_plan(task)
    for number in range(count):
        is_moved = rng.random(task.num_nodes) < number / max(count - 1, 1)
        there = 0 if number % 2 else rng.integers(0, len(task.names), task.num_nodes)
        yield replace(plan, placement=np.where(is_moved, there, plan.placement))


def _difference(function: Callable[[], Sequence[Any]], want: Sequence[Any]) -> str:
    """Why a way to run the step is not timed; empty if its outputs are right."""
    try:
        return outputs_differ(function(), want) or ""
    except Exception as error:  # whatever operators and compilers raise
        return _first_line(error)


def _first_line(error: Exception) -> str:
    words = str(error.reason if isinstance(error, ExecutionError) else error).strip()
    return (words.splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        sys.exit("there is no accelerator here")
    for row in reports(sys.argv[1], json.loads(sys.argv[2]), accelerator.type):
        print(json.dumps(row), flush=True)
