"""Costs of a program on devices for the simulator: time and memory of each operation alone, and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from gst.execution.event_times import event_times_us
from gst.execution.native import NativeExecutor
from gst.lowering.calls import Call, Step, Storages, Values, bind, fixed_values, steps_in_order, storages
from gst.lowering.plan import Plan, Timeline
from gst.machine.devices import Device
from gst.programs import Program, Reference

Links = tuple[Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "devices devices"]]  # us; bytes per us
COPY_US = 20.0  # from memory to memory where no link was measured
COPY_BYTES_PER_US = 5_000.0  # 5 GB/s, likewise


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of each operation of a program on each device, alone, and of the links between devices.

    Args:
        edges: producer -> consumer.
        computed: false for inputs and constants, which take no time and no memory.
        kept: True for outputs, which are never freed.
        times_us: of each operation alone; infinite where it cannot run.
        output_bytes: of the value of each node.
        own_bytes: the most that each operation takes while it runs, its result included.
        storages: allocations, and the values that keep them.
        latency_us: fixed part of a transfer's time, from device (row) to device (column); 0 within a memory.
        bytes_per_us: of a copy; infinite within a memory.
        copies_queue: True if each memory sends one copy after the other, as a stream program does; otherwise links
            never queue.
        load: share of the cores that other processes took during the measurement, 0 .. 1; None if unknown.
    """

    devices: tuple[Device, ...]
    edges: Int64[np.ndarray, "2 edges"]
    computed: Bool[np.ndarray, " nodes"]
    kept: Bool[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices nodes"]
    output_bytes: Int64[np.ndarray, " nodes"]
    own_bytes: Int64[np.ndarray, "devices nodes"]
    storages: Storages
    latency_us: Float64[np.ndarray, "devices devices"]
    bytes_per_us: Float64[np.ndarray, "devices devices"]
    copies_queue: bool = False
    load: float | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.computed)

    @property
    def traffic_bytes(self) -> Float64[np.ndarray, " nodes"]:
        return traffic_bytes(self.edges, self.output_bytes) * self.computed


def traffic_bytes(
    edges: Int64[np.ndarray, "2 edges"], output_bytes: Int64[np.ndarray, " nodes"]
) -> Float64[np.ndarray, " nodes"]:
    """Return the bytes that each node reads and writes: of its result, and of each value it reads.

    Examples:
        >>> traffic_bytes(np.array([[0], [1]]), np.array([4, 8])).tolist()
        [4.0, 12.0]
    """
    size = output_bytes.astype(np.float64)
    return np.bincount(edges[1], size[edges[0]], len(size)) + size


def measure_costs(executor: NativeExecutor, repetitions: int = 5) -> Costs:
    """Run the program of an entered executor on each device alone; devices with as many threads share their times. The
    shortest of `repetitions` times of each operation counts."""
    program, devices = executor.program, executor.devices
    by_threads: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for device in devices:
        if device.threads not in by_threads:
            by_threads[device.threads] = _measured(executor, device, repetitions)
    times, own = (np.stack([by_threads[device.threads][part] for device in devices]) for part in (0, 1))
    return Costs(
        devices, program.graph.edges, _computed(program), _kept(program), times, program.output_bytes, own,
        storages(program), np.zeros((len(devices),) * 2), np.full((len(devices),) * 2, np.inf),
    )  # fmt: skip


def profiled_costs(
    program: Program,
    devices: Sequence[Device],
    times_us: Float64[np.ndarray, "devices nodes"],
    links: Links | None = None,
) -> Costs:
    """Return costs of a program whose memory was not measured: an operation takes no more than its result.

    Args:
        times_us: of each operation alone; infinite where it cannot run.
        links: from `gst.execution.links.measured_links`; if None, `COPY_US` and `COPY_BYTES_PER_US` between memories.

    Raises:
        ValueError: an operation can run on none of the devices.
    """
    if (stuck := np.flatnonzero(np.isinf(times_us).all(0))).size:
        names = ", ".join(device.name for device in devices)
        what = program.operations[stuck[0]].target
        raise ValueError(f"operation {stuck[0]} of {program.name} ({what}) can run on none of {names}")
    apart = np.array([[a.memory != b.memory for b in devices] for a in devices])
    own_bytes = np.tile(program.output_bytes, (len(devices), 1))
    latency_us, bytes_per_us = links or (COPY_US * apart, np.where(apart, COPY_BYTES_PER_US, np.inf))
    return Costs(
        tuple(devices), program.graph.edges, _computed(program), _kept(program), times_us, program.output_bytes,
        own_bytes, storages(program), latency_us, bytes_per_us,
    )  # fmt: skip


def links_record(costs: Costs) -> dict[str, list[list[float]]]:
    """Return the links of costs for JSON, which has no infinite speed; `links_of` reads it."""
    return {"latency_us": costs.latency_us.tolist(), "us_per_byte": (1 / costs.bytes_per_us).tolist()}


def links_of(record: Mapping[str, Any]) -> Links:
    """Return links of a record of `links_record`."""
    with np.errstate(divide="ignore"):
        return np.array(record["latency_us"], np.float64), 1 / np.array(record["us_per_byte"], np.float64)


def _computed(program: Program) -> Bool[np.ndarray, " nodes"]:
    return np.array([each.kind == "operation" for each in program.operations])


def _kept(program: Program) -> Bool[np.ndarray, " nodes"]:
    kept = np.zeros(program.num_nodes, bool)
    kept[[each.node for each in program.outputs if isinstance(each, Reference)]] = True
    return kept


def _measured(executor: NativeExecutor, device: Device, repetitions: int) -> tuple[np.ndarray, np.ndarray]:
    runs = alone(executor, device.name, repetitions)
    return shortest_us(runs), np.min([each.own_bytes for each in runs], axis=0)


def shortest_us(runs: Sequence[Timeline]) -> Float64[np.ndarray, " nodes"]:
    """Return the shortest time of each operation over several runs of a plan, in microseconds: other processes
    interrupt some operations of every run, but seldom the same one in all.

    Examples:
        >>> begins = np.zeros(2)
        >>> runs = [Timeline(np.zeros(2, np.int64), begins, np.array(ends)) for ends in ([9.0, 2.0], [1.0, 3.0])]
        >>> shortest_us(runs).tolist()
        [1.0, 2.0]
    """
    return np.min([each.end_us - each.begin_us for each in runs], axis=0)


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
    calls: Sequence[Call | None] = bind(program, device)
    order = [node for node, call in enumerate(calls) if call is not None]
    steps = steps_in_order(program, calls, order)
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
