"""Costs of a program on devices, as they were measured or are read from a file, and the task of placing it by them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path

import numpy as np

from gst.execution.costs import Costs, links_of, links_record, profiled_costs, shortest_us
from gst.execution.pair_records import pairs_of, pairs_record
from gst.lowering.plan import ExecutionError, RunsInTurns
from gst.machine.devices import Device
from gst.machine.load import LoadGate, repeated_while_busy
from gst.placement.baselines.portfolio import single
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.machines import STREAMS
from gst.placement.objectives import PlanRunner
from gst.placement.planning import Settings
from gst.placement.search.population import random_plans
from gst.placement.task import Task, check_same
from gst.programs import Program
from gst.simulation.calibration import fit
from gst.simulation.share_fit import fit_sharing
from gst.simulation.simulator import UNCALIBRATED, Contention
from gst.util.progress import Progress, no_progress, notice
from gst.util.untrusted import read_object
from gst.util.writing import atomic_write

COSTS = "costs.json"
MOST_ALONE = 16  # devices that are measured alone each; of more the first of each kind and number of threads
NUM_CALIBRATION = 12  # plans that contention is learned from
CALIBRATION_RUNS = 5  # of each, in turns
AT_ONCE = LoadGate(patience_s=0.0)
NO_RUNS = RunsInTurns([], 0.0)


def profiled_task(program: Program, runner: PlanRunner, settings: Settings, progress: Progress = no_progress) -> Task:
    """The task of placing a program with costs measured as soon as the cores are quiet, or patience ends; where other
    processes come back meanwhile, what is left of the patience is for them. Hosts of a fleet wait by themselves."""
    gate = AT_ONCE
    if settings.patience_s > 0 and not isinstance(runner, FleetWorkers):
        gate = LoadGate(patience_s=settings.patience_s, progress=progress)
        spent, _ = gate.wait()
        gate = replace(gate, patience_s=settings.patience_s - spent)
    return measured_task(program, runner, settings.seed, gate, progress)


def measured_task(
    program: Program, runner: PlanRunner, seed: int, gate: LoadGate = AT_ONCE, progress: Progress = no_progress
) -> Task:
    """Costs as profiled, and contention as learned from a few plans that keep several devices busy, and on lanes of an
    accelerator from pairs of operations that ran at once.

    A machine's speed drifts between the profile and the runs of these plans, which would be taken for contention. So
    each device alone (`representatives`) takes turns with the plans, and costs are what operations take there at least.
    A single device, and devices of whose runs nobody writes down when operations begin, are profiled alone, once.

    Args:
        program: which the runner runs.
        runner: entered.
        seed: of the plans that contention is learned from.
        gate: asked for quiet cores before more runs are made, where other processes were busy during all before, as
            long as its patience lasts. `load` of the costs is the share that they took while they took least.
        progress: told of each profile.
    """
    progress("profiling", 0, 1)
    profiled = runner.costs()
    for words in dict.fromkeys(_cannot_run(program, profiled)):
        notice(words)
    delays = STREAMS if any(device.is_accelerator for device in profiled.devices) else UNCALIBRATED
    task = Task.of_program(program, profiled, fit_sharing(profiled.pairs, delays))
    count = len(task.devices)
    if count < 2:
        return task
    chosen, like = representatives(task.devices)
    alone = [single(task, device) for device in chosen]
    alone_keys = {plan.key for plan in alone}
    plans = list(islice((plan for _, plan in random_plans(task, seed) if plan.key not in alone_keys), NUM_CALIBRATION))

    def measure() -> RunsInTurns:
        progress("profiling", 0, 1)
        try:
            made = runner.timelines([*alone, *plans], CALIBRATION_RUNS)
        except ExecutionError:
            return NO_RUNS
        return made if made.runs else NO_RUNS

    attempts = [made for made in repeated_while_busy(measure, gate) if made.runs]
    if not attempts:
        return task
    made = reduce(RunsInTurns.with_more, attempts)
    alone_us = np.stack([shortest_us(of_device) for of_device in made.runs[: len(alone)]])
    costs = replace(task.costs, times_us=alone_us[like], load=made.load)
    contention = task.contention  # with the shares of lanes that were fitted above
    return Task.of_program(program, costs, fit(costs, made.runs[len(alone) :], contention) if plans else contention)


def _cannot_run(program: Program, costs: Costs) -> Iterator[str]:
    """A sentence for each device that cannot run some operations; the same for lanes of one accelerator."""
    for device, times_us in zip(costs.devices, costs.times_us, strict=True):
        nodes = np.flatnonzero(np.isinf(times_us))
        if len(nodes):
            yield (
                f"{device.torch_device} cannot run {len(nodes)} of {costs.computed.sum()} operations, "
                f"{program.operations[nodes[0]].target} first; they are placed elsewhere"
            )


def representatives(devices: Sequence[Device]) -> tuple[list[int], list[int]]:
    """Positions of the devices that are measured alone, and for each device which of these it is like: each device
    itself, or, of more than `MOST_ALONE` devices, the first of its kind and number of threads.

    Examples:
        >>> cores = [Device(f"cpu:{core}", "cpu", (core,), 1 + core % 2, "host", "example") for core in range(20)]
        >>> representatives(cores[:2]), representatives(cores)[0]
        (([0, 1], [0, 1]), [0, 1])
    """
    if len(devices) <= MOST_ALONE:
        return list(range(len(devices))), list(range(len(devices)))
    kinds = [(device.kind, device.threads) for device in devices]
    distinct = list(dict.fromkeys(kinds))
    return [kinds.index(kind) for kind in distinct], [distinct.index(kind) for kind in kinds]


def cached_task(program: Program, devices: Sequence[Device], out: Path, make: Callable[[], Task]) -> Task:
    """The task with costs that `make` measures, or that `out` holds from before: a search that goes on needs the costs
    it began with, as baselines would make other plans of others.

    Raises:
        ValueError: `out` has costs of another program, other devices or another release, or they are damaged.
    """
    path = out / COSTS
    if not path.exists():
        task = make()
        record = {
            "program": program.key,
            "devices": list(task.names),
            "times_us": [[None if math.isinf(each) else each for each in row] for row in task.times_us.tolist()],
            "own_bytes": task.costs.own_bytes.tolist(),
            "contention": task.contention.to_dict(),
            "load": task.costs.load,
            **pairs_record(task.costs.pairs),
            **links_record(task.costs),
        }
        with atomic_write(path) as file:
            file.write(json.dumps(record, allow_nan=False))
    record = read_object(path)
    check_same(path, record, {"program": program.key, "devices": [device.name for device in devices]})
    try:
        times_us = np.array(record["times_us"], np.float64)  # null becomes NaN
        times_us[np.isnan(times_us)] = np.inf
        costs = profiled_costs(program, devices, times_us, links_of(record))
        own_bytes = np.array(record["own_bytes"], np.int64)
        costs = replace(costs, own_bytes=own_bytes, pairs=pairs_of(record), load=record.get("load"))
        return Task.of_program(program, costs, Contention(**record["contention"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or of another release; give an empty directory") from error
