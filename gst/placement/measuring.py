"""Measured plans in a directory, a few at a time, so that a killed command goes on: what `gst measure` does."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from gst.data.measured_plans import LOG, MeasuredPlans, MeasuredSet, Profiled, read_measured, write_header
from gst.devices import Device, LoadGate, Log, Measurement, Plan, discover, select
from gst.devices.describe.machine import this_machine
from gst.devices.execute.isolated import IsolatedExecutor, measure_plans
from gst.graphs.store import prepare
from gst.placement.plan_files import load_plan
from gst.placement.random_plans import random_plans
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress
from gst.programs import Program, traced

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
    devices = tuple(found if device_names is None else select(device_names, found))
    progress("capturing", 0, 1)
    program = traced(name)
    given = [("given", load_plan(path, program, devices)) for path in plan_files]
    limits = {"memory_limit": memory_limit, "time_limit_s": time_limit_s}
    with IsolatedExecutor(name, devices, memory_limit, time_limit_s) as isolated:
        if isolated.program_key != program.key:
            raise ValueError(f"program {name!r} is another one each time it is traced; draw its constants from a seed")
        header = {"name": name, "program": program.key, "seed": seed, **limits, "machine": this_machine()}
        gate = LoadGate(patience_s=patience_s, progress=progress)

        def profile() -> Float64[np.ndarray, "devices nodes"]:
            if patience_s > 0:
                gate.wait()
            progress("profiling", 0, 1)
            return isolated.profile()

        measured = begun(out, header, program, devices, profile)
        left = not_measured(measured, program, given, num_random, seed)
        for start in range(0, len(left), AT_ONCE):
            progress("measuring", start, len(left))
            _measure(Log(out / LOG), isolated, left[start : start + AT_ONCE], repetitions, gate)
        progress("measuring", len(left), len(left))
    return summary(out)


def begun(
    out: Path, header: dict[str, Any], program: Program, devices: tuple[Device, ...],
    profile: Callable[[], Float64[np.ndarray, "devices nodes"]],
) -> MeasuredSet:  # fmt: skip
    """What is in `out`, after it was begun with a profile if there was nothing.

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


def not_measured(
    measured: MeasuredSet, program: Program, given: Sequence[tuple[str, Plan]], num_random: int, seed: int
) -> list[tuple[str, Plan]]:
    """The plans `given` and random ones, each with its kind, that are not among those measured."""
    task = Task.of_profile(program, measured.profiled.devices, measured.profiled.times_us)
    known = {plan.key for plan in measured.plans}
    wanted = {plan.key: (kind, plan) for kind, plan in [*given, *islice(random_plans(task, seed), num_random)]}
    return [entry for key, entry in wanted.items() if key not in known]


def write(log: Log, program_key: str, few: Sequence[tuple[str, Plan]], seen: Sequence[Measurement]) -> None:
    """A row for each plan."""
    for (kind, plan), measurement in zip(few, seen, strict=True):
        log.append({"program": program_key, "kind": kind, "plan": plan.to_dict(), "measurement": measurement.to_dict()})


def _measure(
    log: Log, isolated: IsolatedExecutor, few: Sequence[tuple[str, Plan]], repetitions: int, gate: LoadGate
) -> None:
    seen = measure_plans(isolated, [plan for _, plan in few], repetitions, gate=gate)
    write(log, isolated.program_key, few, seen)


def summary(out: Path) -> dict[str, Any]:
    """What `measure_program` returns, of all that was measured into `out`; makes the dataset there."""
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
