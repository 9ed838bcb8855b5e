"""One workload on the accelerator of this machine, as written and by lanes, in a process of its own.

python -m experiments.bench.gpu_child NAME SETTINGS.json    # out: one line of JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.devices import Device, Plan, eager, measure
from gst.devices.execute.costs import profiled_costs
from gst.devices.execute.event_times import event_times_us
from gst.devices.execute.lane_graphs import LaneGraph
from gst.devices.execute.lanes import LaneExecutor
from gst.devices.execute.lowering import stream_program
from gst.devices.plan import ExecutionError
from gst.placement.baselines.list_schedules import etf
from gst.placement.machines import STREAMS
from gst.placement.streams import plan_streams
from gst.placement.task import Task
from gst.programs import Program, Step, capture, outputs_differ, resolve

DEAREST = 10  # operations whose times are reported


def report(name: str, settings: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Figures of one workload on the first accelerator.

    Args:
        name: of the workload.
        settings: `repetitions` of each way, and the numbers of `lanes`.
        kind: of the accelerator. With `cpu` the same is done there, which times little but proves the way.

    Returns:
        nodes; ways (by name: the measurement of the step as written, of lanes, and of their graph; one that is no graph
        or has other outputs than the program on the CPU says so in `reason`); operations_ms, the sum of all times by
        events, and the dearest of them.
    """
    step = resolve(name)
    program = capture(step, kind="cuda")
    device, want = torch.device(kind, 0), eager(program)
    times = event_times_us(program, device)
    runs: dict[str, Callable[[], list[Any]]] = {"as written": as_written(step, device)}
    reasons = {}
    for lanes in settings["lanes"]:
        executor = lanes_of(program, device, lanes, times)
        runs[f"{lanes} lanes"] = executor.run
        graph = LaneGraph(executor)
        runs[f"{lanes} lanes, graph"] = graph.run
        if graph.reason:
            reasons[f"{lanes} lanes, graph"] = graph.reason
    reasons = {way: reasons.get(way) or _difference(function, want) for way, function in runs.items()}
    ran = measure({way: runs[way] for way, reason in reasons.items() if not reason}, settings["repetitions"])
    ways = {way: {"median_ms": None, "reason": reasons[way]} for way in runs}
    for way, each in ran.items():
        ways[way] = {
            "median_ms": each.median_ms, "low_ms": each.low_ms, "high_ms": each.high_ms, "reason": each.reason,
        }  # fmt: skip
    dearest = np.argsort(-times)[:DEAREST]
    return {
        "nodes": program.num_nodes, "ways": ways, "operations_ms": float(times.sum()) / 1e3,
        "dearest": [[str(program.operations[node].target), round(float(times[node]), 2)] for node in dearest],
    }  # fmt: skip


def as_written(step: Step, device: torch.device) -> Callable[[], list[Any]]:
    """The step with its inputs, and the tensors that it makes, on a device."""
    inputs = pytree.tree_map_only(Tensor, lambda value: value.detach().to(device), step.inputs)

    def run() -> list[Any]:
        with device:
            return pytree.tree_leaves(step.function(*inputs))

    return run


def lanes_of(program: Program, device: torch.device, lanes: int, times_us: np.ndarray) -> LaneExecutor:
    """An executor of so many lanes of one accelerator: all operations in order on one lane, or each where it can begin
    first (ETF), by their times alone."""
    devices = [Device(f"{device}/stream:{lane}", "cuda", (), 1, str(device), "measured") for lane in range(lanes)]
    if lanes == 1:
        plan = Plan((devices[0].name,), np.zeros(program.num_nodes, np.int64))
        return LaneExecutor(program, stream_program(program, plan, devices), devices)
    task = Task.of_program(program, profiled_costs(program, devices, np.tile(times_us, (lanes, 1))), STREAMS)
    plan = etf(task)
    if plan is None:
        raise ValueError(f"no schedule on {lanes} lanes")
    return LaneExecutor(program, plan_streams(task, plan), devices)


def _difference(function: Callable[[], Sequence[Any]], want: Sequence[Any]) -> str:
    """Why a way to run the step is not timed; empty if its outputs are right."""
    try:
        return outputs_differ(function(), want) or ""
    except (RuntimeError, ValueError) as error:
        return str(error.reason if isinstance(error, ExecutionError) else error).splitlines()[0]


if __name__ == "__main__":
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        sys.exit("there is no accelerator here")
    print(json.dumps(report(sys.argv[1], json.loads(sys.argv[2]), accelerator.type)))
