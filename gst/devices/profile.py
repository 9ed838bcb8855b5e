"""How long each operation of a program takes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from gst.devices.calls import Call, Step, Values, bind, steps_in_order
from gst.devices.discover import Device, select
from gst.devices.execution import AnyExecutor
from gst.devices.native import NativeExecutor, Timeline
from gst.devices.plan import Plan
from gst.programs import Program


def profile(
    program: Program, executor: AnyExecutor | None = None, device: str | None = None, repetitions: int = 5
) -> Float64[np.ndarray, " nodes"]:
    """Median time of each operation in program order, in microseconds; 0 for inputs and constants.

    The call itself is part of it, as it is in a run. One pass before warms up and is not counted.

    Args:
        program: what to run.
        executor: whose device to use; the calling thread with all its threads if None.
        device: name of the device, the executor's first if None; one of one thread gives one-thread times.
        repetitions: passes to take the median of.

    Raises:
        ValueError: the executor has no such device, or there are no repetitions.
    """
    if repetitions < 1:
        raise ValueError(f"want repetitions >= 1, got {repetitions}")
    if executor is None:
        return _profile(program, torch.device("cpu"), repetitions)
    chosen: Device = select([device or executor.devices[0].name], executor.devices)[0]
    if isinstance(executor, NativeExecutor):
        return np.median([each.end_us - each.begin_us for each in alone(executor, chosen.name, repetitions)], axis=0)
    return executor.submit(chosen.name, partial(_profile, program, chosen.torch_device, repetitions))


def alone(executor: NativeExecutor, device: str, repetitions: int) -> list[Timeline]:
    """Runs of the whole program on one device, after one that is not counted."""
    plan = Plan((device,), np.zeros(executor.program.num_nodes, np.int64))
    timelines = []
    for _ in range(repetitions + 1):
        executor.run(plan)
        timelines.append(executor.last_timeline)
    return timelines[1:]


def _profile(program: Program, device: torch.device, repetitions: int) -> Float64[np.ndarray, " nodes"]:
    calls: Sequence[Call | None] = bind(program, device)
    order = [node for node, call in enumerate(calls) if call is not None]
    steps = steps_in_order(program, calls, order)
    fixed: list[Any] = [*program.inputs]
    fixed += [operation.constant for operation in program.operations[len(fixed) :]]
    fixed = [None if value is None else value.to(device) for value in fixed]
    times = np.zeros((repetitions, program.num_nodes))
    with torch.no_grad():
        _timed_pass(steps, fixed.copy(), np.zeros(program.num_nodes), device)
        for row in times:
            _timed_pass(steps, fixed.copy(), row, device)
    return np.median(times, axis=0)


def _timed_pass(
    steps: Sequence[Step], values: Values, times: Float64[np.ndarray, " nodes"], device: torch.device
) -> None:
    """Run all operations once and write the microseconds of each into `times`."""
    for node, call, dead in steps:
        start = perf_counter_ns()
        values[node] = call(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times[node] = (perf_counter_ns() - start) / 1e3
        for each in dead:
            values[each] = None
