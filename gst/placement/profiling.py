"""Task of placing a program on devices, by costs that are measured there or read from a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gst.lowering.costs import Costs, links_of, links_record, profiled_costs, shortest_us
from gst.lowering.plan import ExecutionError, RunsInTurns
from gst.machine.devices import Device, this_machine
from gst.machine.load import LoadGate, repeated_while_busy
from gst.placement.baselines.portfolio import single
from gst.placement.machines import STREAMS
from gst.placement.objectives import PlanRunner
from gst.placement.search.random_plans import random_plans
from gst.placement.task import Task, check_same
from gst.programs import Program
from gst.simulation.calibration import fit
from gst.simulation.simulator import UNCALIBRATED, Contention
from gst.util.progress import Progress, no_progress, notice
from gst.util.untrusted import read_object
from gst.util.writing import atomic_write

COSTS = "costs.json"
MOST_ALONE = 16  # devices that are measured alone each; of more the first of each kind and number of threads
NUM_CALIBRATION = 12  # plans from which contention is fitted
CALIBRATION_RUNS = 5  # of each, alternating
AT_ONCE = LoadGate(patience_s=0.0)
NO_RUNS = RunsInTurns([], 0.0)


def profiled_task(program: Program, runner: PlanRunner, seed: int, patience_s: float, progress: Progress) -> Task:
    """Measure the costs of a program as soon as the cores are quiet, or `patience_s` ends; see `measured_task`."""
    gate = AT_ONCE
    if patience_s > 0:
        gate = LoadGate(patience_s=patience_s, progress=progress)
        spent, _ = gate.wait()
        gate = replace(gate, patience_s=patience_s - spent)
    return measured_task(program, runner, seed, gate, progress)


def measured_task(
    program: Program, runner: PlanRunner, seed: int, gate: LoadGate = AT_ONCE, progress: Progress = no_progress
) -> Task:
    """Measure the costs of operations, and fit contention to a few plans that use several devices at once.

    A machine's speed drifts between the profile and the runs of these plans, which would count as contention. So runs
    on each device alone (`representatives`) alternate with the plans, and an operation costs its least time there. A
    single device, and devices that do not record when operations begin, are profiled alone, once.

    Args:
        runner: entered.
        seed: of the plans from which contention is fitted.
        gate: waits for quiet cores before more runs, if other processes were busy during all runs before. `load` of
            the costs is the share of the cores that they took while they took least.
    """
    progress("profiling", 0, 1)
    profiled = runner.costs()
    for words in dict.fromkeys(_cannot_run(program, profiled)):
        notice(words)
    delays = STREAMS if any(device.is_accelerator for device in profiled.devices) else UNCALIBRATED
    task = Task.of_program(program, profiled, delays)
    if len(task.devices) < 2:
        return task
    chosen, like = representatives(task.devices)
    alone = [single(task, device) for device in chosen]
    alone_keys = {plan.key for plan in alone}
    plans = list(islice((plan for _, plan in random_plans(task, seed) if plan.key not in alone_keys), NUM_CALIBRATION))

    def measure() -> RunsInTurns:
        progress("profiling", 0, 1)
        try:
            timelines = runner.timelines([*alone, *plans], CALIBRATION_RUNS)
        except ExecutionError:
            return NO_RUNS
        return timelines if timelines.runs else NO_RUNS

    attempts = [timelines for timelines in repeated_while_busy(measure, gate) if timelines.runs]
    if not attempts:
        return task
    timelines = reduce(RunsInTurns.with_more, attempts)
    alone_us = np.stack([shortest_us(of_device) for of_device in timelines.runs[: len(alone)]])
    costs = replace(task.costs, times_us=alone_us[like], load=timelines.load)
    contention = fit(costs, timelines.runs[len(alone) :], task.contention) if plans else task.contention
    return Task.of_program(program, costs, contention)


def _cannot_run(program: Program, costs: Costs) -> Iterator[str]:
    """Yield a sentence for each device that cannot run some operations."""
    for device, times_us in zip(costs.devices, costs.times_us, strict=True):
        nodes = np.flatnonzero(np.isinf(times_us))
        if len(nodes):
            yield (
                f"{device.torch_device} cannot run {len(nodes)} of {costs.computed.sum()} operations, "
                f"{program.operations[nodes[0]].target} first; they are placed elsewhere"
            )


def representatives(devices: Sequence[Device]) -> tuple[list[int], list[int]]:
    """Return positions of the devices to measure alone, and for each device the index of its representative there.

    Up to `MOST_ALONE` devices represent themselves; of more, the first of each kind and number of threads does.

    Examples:
        >>> cores = [Device(f"cpu:{core}", "cpu", (core,), 1 + core % 2, "host", "example") for core in range(20)]
        >>> representatives(cores)[0]
        [0, 1]
    """
    if len(devices) <= MOST_ALONE:
        return list(range(len(devices))), list(range(len(devices)))
    kinds = [(device.kind, device.threads) for device in devices]
    distinct = list(dict.fromkeys(kinds))
    return [kinds.index(kind) for kind in distinct], [distinct.index(kind) for kind in kinds]


def cached_task(
    program: Program, devices: Sequence[Device], out: Path, make: Callable[[], Task],
    machine: Mapping[str, Any] | None = None,
) -> Task:  # fmt: skip
    """Read the task with its costs from `out`, or measure it by `make` and write it there: baselines would plan
    differently with other costs.

    Args:
        machine: record of the host that measures; None = this machine.

    Raises:
        ValueError: `out` has costs of another program, machine or release, of other devices, or they are damaged.
    """
    path, machine = out / COSTS, machine or this_machine()
    if not path.exists():
        task = make()
        names = {
            "program": program.key, "devices": list(task.names), "contention": task.contention._asdict(),
            "machine": machine,
        }  # fmt: skip
        with atomic_write(path) as file:
            file.write(json.dumps(names | costs_record(task.costs), allow_nan=False))
    record = read_object(path)
    now = {"program": program.key, "devices": [device.name for device in devices], "machine": machine}
    check_same(path, record, now)
    try:
        return Task.of_program(program, costs_of(program, devices, record), Contention(**record["contention"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or of another release; give an empty directory") from error


def costs_record(costs: Costs) -> dict[str, Any]:
    """Return measured costs for JSON, which has no infinite times; `costs_of` reads them."""
    return {
        "times_us": [[None if math.isinf(each) else each for each in row] for row in costs.times_us.tolist()],
        "own_bytes": costs.own_bytes.tolist(),
        "load": costs.load,
        **links_record(costs),
    }


def costs_of(program: Program, devices: Sequence[Device], record: Mapping[str, Any]) -> Costs:
    """Read the costs of a program on devices from a record of `costs_record`."""
    times_us = np.array(record["times_us"], np.float64)  # null becomes NaN
    times_us[np.isnan(times_us)] = np.inf
    costs = profiled_costs(program, devices, times_us, links_of(record))
    own_bytes = np.array(record["own_bytes"], np.int64)
    return replace(costs, own_bytes=own_bytes, load=record.get("load"))
