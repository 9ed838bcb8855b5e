"""Measurement of costs: times of operations alone on each device, and of copies between devices.

A copy takes latency + bytes / bandwidth, fitted to copies of several sizes, which `Lane` makes as those of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter, perf_counter_ns

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import nnls

from gst.execution.event_times import event_times_us
from gst.execution.lanes import Lane, synchronise
from gst.execution.native import NativeExecutor
from gst.lowering.calls import Step, Values, fixed_values, in_program_order
from gst.lowering.costs import Costs, Links, profiled_costs, shortest_us
from gst.lowering.plan import Plan, Timeline
from gst.machine.devices import Device
from gst.programs import Program

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of copies that are timed."""
REPETITIONS = 5  # of each, of which the median counts

MOST_GB_PER_S = 1e6  # where larger copies take no longer, by chance: JSON knows no infinite speed
LEAST_US = 1e-3  # latency of a copy whose time is all bandwidth: none is free


def measure_costs(executor: NativeExecutor, repetitions: int = 5) -> Costs:
    """Run the program of an entered executor on each device alone; devices with as many threads share their times. The
    shortest of `repetitions` times of each operation counts."""
    by_threads: dict[int, list[Timeline]] = {}
    for device in executor.devices:
        if device.threads not in by_threads:
            by_threads[device.threads] = alone(executor, device.name, repetitions)
    runs = [by_threads[device.threads] for device in executor.devices]
    own_bytes = np.stack([np.min([each.own_bytes for each in mine], axis=0) for mine in runs])
    costs = profiled_costs(executor.program, executor.devices, np.stack([shortest_us(mine) for mine in runs]))
    return replace(costs, own_bytes=own_bytes)


def alone(executor: NativeExecutor, device: str, repetitions: int) -> list[Timeline]:
    """Run the whole program on one device several times, after one run that is not counted."""
    plan = Plan((device,), np.zeros(executor.program.num_nodes, np.int64))
    timelines = []
    for _ in range(repetitions + 1):
        executor.run(plan)
        timelines.append(executor.last_timeline)
    return timelines[1:]


def profile(program: Program, device: torch.device, repetitions: int) -> Float64[np.ndarray, " nodes"]:
    """Return the median time of each operation in program order on this thread, in microseconds; 0 for inputs and
    constants. On an accelerator it is the time by its own events (`event_times_us`), infinite where the operation
    cannot run there.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.zeros(1000),))
        >>> (profile(program, torch.device("cpu"), 2) > 0).tolist()  # the input, and relu
        [False, True]
    """
    if device.type != "cpu":
        return event_times_us(program, device, repetitions)
    steps = in_program_order(program, device)
    fixed = [None if value is None else value.to(device) for value in fixed_values(program)]
    times = np.zeros((repetitions, program.num_nodes))
    with torch.no_grad():
        _timed_pass(steps, fixed.copy(), np.zeros(program.num_nodes))
        for row in times:
            _timed_pass(steps, fixed.copy(), row)
    return np.median(times, axis=0)


def _timed_pass(steps: Sequence[Step], values: Values, times: Float64[np.ndarray, " nodes"]) -> None:
    for node, call, dead in steps:
        start = perf_counter_ns()
        values[node] = call(values)
        times[node] = (perf_counter_ns() - start) / 1e3
        for each in dead:
            values[each] = None


def fitted(num_bytes: Sequence[float], times_us: Sequence[float]) -> tuple[float, float]:
    """Fit latency and bandwidth to times of copies: least squares of relative errors, neither negative.

    Args:
        num_bytes: of each copy; at least two sizes.
        times_us: of each, all above 0.

    Returns:
        latency_us; gb_per_s, at most `MOST_GB_PER_S`.

    Raises:
        ValueError: there are fewer than two sizes, a size or time is impossible, or their numbers differ.

    Examples:
        >>> latency_us, gb_per_s = fitted([0, 1_000_000, 10_000_000], [20.0, 120.0, 1020.0])
        >>> round(latency_us, 3), round(gb_per_s, 3)
        (20.0, 10.0)
    """
    size, time = np.asarray(num_bytes, np.float64), np.asarray(times_us, np.float64)
    if size.shape != time.shape or len(np.unique(size)) < 2:
        raise ValueError(f"a link is fitted to times of at least two sizes, got {len(size)} sizes, {len(time)} times")
    if not (np.isfinite(time).all() and (time > 0).all() and np.isfinite(size).all() and (size >= 0).all()):
        raise ValueError("a link is fitted to times above 0 of sizes that are not negative")
    largest = size.max()
    (latency, slope), _ = nnls(np.stack([1 / time, size / largest / time], axis=1), np.ones(len(time)))
    gb_per_s = largest / slope / 1e3 if slope > 0 else MOST_GB_PER_S
    return max(float(latency), LEAST_US), min(float(gb_per_s), MOST_GB_PER_S)


def copy_rate(source: torch.device, destination: torch.device, is_pinned: bool = False) -> tuple[float, float]:
    """Measure copies from one device to another, and return the latency in microseconds and GB per second.

    Args:
        source, destination: the CPU, or accelerators of this process.
        is_pinned: memory of the host is pinned.
    """
    return fitted(SIZES, [_copy_us(each, source, destination, is_pinned) for each in SIZES])


def _copy_us(size: int, source: torch.device, destination: torch.device, is_pinned: bool) -> float:
    """Return median microseconds of a copy of `size` bytes, into a pageable tensor that exists, or a pinned one."""
    lane = Lane(source, 0)
    value = torch.zeros(size, dtype=torch.uint8, device=source)
    buffer = torch.zeros(size, dtype=torch.uint8, device=destination)
    if is_pinned:
        value, buffer = (each.pin_memory() if each.device.type == "cpu" else each for each in (value, buffer))
    times = []
    for _ in range(REPETITIONS + 1):
        synchronise([source, destination])
        start = perf_counter()
        with lane.stream or nullcontext():
            if is_pinned or source.type != destination.type == "cpu":
                lane.refill(buffer, value)
            else:
                lane.copy(value, destination)
        synchronise([source, destination])
        times.append((perf_counter() - start) * 1e6)
    return float(np.median(times[1:]))


def measured_links(devices: Sequence[Device]) -> Links:
    """Return latency in microseconds and bytes per microsecond from each device (row) to each (column); 0 and infinite
    within a memory. Links to a host are those to pinned memory."""
    count = len(devices)
    latency_us, bytes_per_us = np.zeros((count, count)), np.full((count, count), np.inf)
    rates: dict[tuple[torch.device, torch.device], tuple[float, float]] = {}
    for a, source in enumerate(devices):
        for b, destination in enumerate(devices):
            ends = source.torch_device, destination.torch_device
            if source.memory == destination.memory or (ends[0] == ends[1] and ends[0].type != "cpu"):
                continue
            if ends not in rates:
                rates[ends] = copy_rate(*ends, is_pinned=ends[1].type == "cpu" != ends[0].type)
            latency_us[a, b], gb_per_s = rates[ends]
            bytes_per_us[a, b] = gb_per_s * 1e3
    return latency_us, bytes_per_us
