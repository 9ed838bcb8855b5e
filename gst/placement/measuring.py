"""`gst measure`: plans of a program measured a few at a time into a directory, so that a killed command goes on; on
this host, or on those of a fleet, each kind of host in a directory of its own."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from gst.data.measured_plans import LOG, MeasuredPlans, MeasuredSet, Profiled, read_measured, write_header
from gst.devices import Device, LoadGate, Log, Measurement, Plan, discover, select
from gst.devices.describe.machine import least_memory_limit, this_machine
from gst.devices.execute.isolated import IsolatedExecutor, measure_plans
from gst.graphs.store import prepare
from gst.placement.fleet.cluster import kinds_with
from gst.placement.fleet.connection import joined
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.plan_files import load_plan
from gst.placement.random_plans import random_plans
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress
from gst.programs import Program, traced

Job = tuple["Future[list[Measurement]]", Log, Sequence[tuple[str, Plan]]]
AT_ONCE = 4  # plans that are timed in turns; the log holds all of them before the next four begin


def measure_program(
    name: str,
    out: Path,
    device_names: Sequence[str] | None = None,
    plan_files: Sequence[Path] = (),
    num_random: int = 0,
    repetitions: int = 5,
    seed: int = 0,
    memory_limit: int | None = None,
    time_limit_s: float = 60.0,
    patience_s: float = 20.0,
    resume: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure plans of a program in a child process and make a dataset of those that ran.

    Writes to `out` `graph.npz`, `measurements.jsonl` as measurements are made, and `dataset/`, a store.

    Args:
        name: of the program, see `gst.programs.resolve`.
        device_names: which of the devices found to use; all if None.
        plan_files: plans to measure, before random ones.
        num_random: how many plans of `random_plans` to measure.
        memory_limit, time_limit_s: of each run, see `IsolatedExecutor`.
        patience_s: how long to wait for quiet cores before the profile and before each four plans, see `LoadGate`.
        resume: go on with what is in `out`, if anything is.

    Returns:
        program, key, devices, plans (numbers: measured, ran, and of each reason of failure), the fastest and the
        slowest median in ms, dataset (its directory), machine.

    Raises:
        ValueError: measurements are there and `resume` is not given, or they are of another program, other devices, or
            another machine; a plan is for another program or other devices; no plan ran.
    """
    if Log(out / LOG).read() and not resume:
        raise ValueError(f"{out / LOG} is there already; add --resume to go on with it, or give another --out")
    found = discover()
    chosen = found if device_names is None else select(device_names, found)
    devices = tuple(replace(each, memory_limit=memory_limit) for each in chosen)
    progress("capturing", 0, 1)
    program = traced(name)
    from_files = [("given", load_plan(path, program, devices)) for path in plan_files]
    limits = {"memory_limit": memory_limit, "time_limit_s": time_limit_s}
    with IsolatedExecutor(name, devices, time_limit_s) as isolated:
        if isolated.program_key != program.key:
            raise ValueError(f"program {name!r} is another one each time it is traced; draw its constants from a seed")
        header = {"name": name, "program": program.key, "seed": seed, **limits, "machine": this_machine()}
        gate = LoadGate(patience_s=patience_s, progress=progress)

        def profile() -> Float64[np.ndarray, "devices nodes"]:
            if patience_s > 0:
                gate.wait()
            progress("profiling", 0, 1)
            return isolated.costs().times_us

        measured = open_measurements(out, header, program, devices, profile)
        left = plans_to_measure(measured, program, from_files, num_random, seed)
        for start in range(0, len(left), AT_ONCE):
            progress("measuring", start, len(left))
            few = left[start : start + AT_ONCE]
            measurements = measure_plans(isolated, [plan for _, plan in few], repetitions, gate=gate)
            _write(Log(out / LOG), program.key, few, measurements)
        progress("measuring", len(left), len(left))
    return summary(out)


def open_measurements(
    out: Path, header: dict[str, Any], program: Program, devices: tuple[Device, ...],
    profile: Callable[[], Float64[np.ndarray, "devices nodes"]],
) -> MeasuredSet:  # fmt: skip
    """The measurements in `out`; a new set, with a profile, if there are none.

    Raises:
        ValueError: it is of another program, other devices, another memory limit or machine.
    """
    if not Log(out / LOG).read():
        write_header(out, header, Profiled(program.graph, program.output_bytes, devices, profile()))
    measured = read_measured(out)
    here = {**header, "devices": [device.name for device in devices]}
    there = {**measured.header, "devices": [device.name for device in measured.profiled.devices]}
    for what in ("program", "devices", "memory_limit", "machine"):
        if here[what] != there[what]:
            raise ValueError(
                f"{out / LOG} was measured with {what} {there[what]}, now it is {here[what]}; give another --out"
            )
    return measured


def plans_to_measure(
    measured: MeasuredSet, program: Program, from_files: Sequence[tuple[str, Plan]], num_random: int, seed: int
) -> list[tuple[str, Plan]]:
    """Plans from files and random ones, each with its kind, that are not among those measured."""
    task = Task.of_profile(program, measured.profiled.devices, measured.profiled.times_us)
    known = {plan.key for plan in measured.plans}
    wanted = {plan.key: (kind, plan) for kind, plan in [*from_files, *islice(random_plans(task, seed), num_random)]}
    return [entry for key, entry in wanted.items() if key not in known]


def _write(log: Log, program_key: str, few: Sequence[tuple[str, Plan]], measurements: Sequence[Measurement]) -> None:
    """Append a row for each plan."""
    for (kind, plan), measurement in zip(few, measurements, strict=True):
        log.append({"program": program_key, "kind": kind, "plan": plan.to_dict(), "measurement": measurement.to_dict()})


def summary(out: Path) -> dict[str, Any]:
    """Make a dataset of all that was measured into `out`; what `measure_program` returns."""
    measured = read_measured(out)
    ran = [each.median_ms for each in measured.measurements if each.outcome == "ok"]
    failed = Counter(each.reason for each in measured.measurements if each.outcome == "failed")
    dataset = prepare(MeasuredPlans([glob.escape(str(out))]), out / "dataset")
    return {
        "program": measured.header["name"],
        "key": measured.header["program"],
        "devices": [device.name for device in measured.profiled.devices],
        "plans": {"measured": len(measured.plans), "ran": len(ran), "failed": dict(failed.most_common())},
        "fastest_ms": min(ran),
        "slowest_ms": max(ran),
        "quiet": sum(each.quiet for each in measured.measurements) / len(measured.measurements),
        "dataset": str(dataset),
        "machine": measured.header["machine"],
    }


def measure_on_fleet(
    address: str,
    name: str,
    out: Path,
    device_names: Sequence[str] | None = None,
    plan_files: Sequence[Path] = (),
    num_random: int = 0,
    repetitions: int = 5,
    seed: int = 0,
    memory_limit: int | None = None,
    time_limit_s: float = 60.0,
    patience_s: float = 20.0,
    resume: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure the same plans of a program on every kind of host that has the devices; hosts of a kind share the work.

    Writes to `out/KIND`, for each kind, what `measure_program` writes. A row is on disk as soon as it is known; the
    `machine` of its measurement says its `kind` and its `host`.

    Args:
        address: of the cluster, see `gst.placement.fleet.connection.joined`.
        name, device_names, ...: see `measure_program`; devices are those of the hosts.

    Returns:
        program, key, and for each of `kinds`: hosts, and what `measure_program` returns.

    Raises:
        ValueError: as `measure_program`, or the cluster cannot be had, has no such devices, or lost its last host.
    """
    if any(Log(path).read() for path in out.glob(f"*/{LOG}")) and not resume:
        raise ValueError(f"{out} holds measurements already; add --resume to go on with them, or give another --out")
    with joined(address), ExitStack() as stack:
        progress("capturing", 0, 1)
        program = traced(name)
        progress("starting workers", 0, 1)
        kinds = kinds_with(device_names)
        fleets = {}
        for kind in kinds:
            chosen = kind.selected(device_names, with_sets=False)
            devices = [replace(each, memory_limit=memory_limit) for each in chosen]
            fleet = FleetWorkers(kind, program, devices, time_limit_s, repetitions, patience_s=patience_s)
            fleets[kind.key] = stack.enter_context(fleet)
        header = {"name": name, "program": program.key, "seed": seed, "time_limit_s": time_limit_s}
        wanted = {}
        for number, (key, fleet) in enumerate(fleets.items()):
            progress("profiling", number, len(fleets))
            wanted[key] = _wanted(out / key, header, program, fleet, plan_files, num_random, seed)
        jobs: list[Job] = []
        for key, fleet in fleets.items():
            for start in range(0, len(wanted[key]), AT_ONCE):
                few = wanted[key][start : start + AT_ONCE]
                jobs.append((fleet.submit([plan for _, plan in few]), Log(out / key / LOG), few))
        _write_as_they_come(jobs, program, progress)
    by_kind = {kind.key: {"hosts": kind.num_hosts, **summary(out / kind.key)} for kind in kinds}
    return {"program": name, "key": program.key, "kinds": by_kind}


def _wanted(
    out: Path, header: dict[str, Any], program: Program, fleet: FleetWorkers, plan_files: Sequence[Path],
    num_random: int, seed: int,
) -> list[tuple[str, Plan]]:  # fmt: skip
    """The plans of a kind that are not in its log yet, after it was begun if there was nothing.

    Raises:
        ValueError: it is of another program, other devices or limits.
    """
    devices = fleet.devices
    from_files = [("given", load_plan(path, program, devices)) for path in plan_files]
    header = {**header, "memory_limit": least_memory_limit(devices), "machine": fleet.kind.machine}
    measured = open_measurements(out, header, program, devices, lambda: fleet.costs().times_us)
    return plans_to_measure(measured, program, from_files, num_random, seed)


def _write_as_they_come(jobs: Sequence[Job], program: Program, progress: Progress) -> None:
    total, done = sum(len(few) for _, _, few in jobs), 0
    known = {future: (log, few) for future, log, few in jobs}
    progress("measuring", done, total)
    for future in as_completed(known):
        log, few = known[future]
        _write(log, program.key, few, future.result())
        done += len(few)
        progress("measuring", done, total)
