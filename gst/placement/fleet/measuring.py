"""Measured plans of every kind of host of a fleet, each kind in a directory of its own: `gst measure --workers`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gst.data.measured_plans import LOG
from gst.devices import Log, Measurement, Plan
from gst.placement.fleet.cluster import kinds_with
from gst.placement.fleet.connection import joined
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.measuring import AT_ONCE, begun, not_measured, summary, write
from gst.placement.plan_files import load_plan
from gst.process.progress import Progress, no_progress
from gst.programs import Program, traced

Job = tuple["Future[list[Measurement]]", Log, Sequence[tuple[str, Plan]]]


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
            devices = kind.selected(device_names, with_sets=False)
            limits = (memory_limit, time_limit_s, repetitions)
            fleet = FleetWorkers(kind, program, devices, *limits, patience_s=patience_s)
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
    found = {kind.key: {"hosts": kind.num_hosts, **summary(out / kind.key)} for kind in kinds}
    return {"program": name, "key": program.key, "kinds": found}


def _wanted(
    out: Path, header: dict[str, Any], program: Program, fleet: FleetWorkers, plan_files: Sequence[Path],
    num_random: int, seed: int,
) -> list[tuple[str, Plan]]:  # fmt: skip
    """The plans of a kind that are not in its log yet, after it was begun if there was nothing.

    Raises:
        ValueError: it is of another program, other devices or limits.
    """
    devices = fleet.devices
    given = [("given", load_plan(path, program, devices)) for path in plan_files]
    header = {**header, "memory_limit": fleet.memory_limit, "machine": fleet.kind.machine}
    measured = begun(out, header, program, devices, lambda: fleet.costs(program).times_us)
    return not_measured(measured, program, given, num_random, seed)


def _write_as_they_come(jobs: Sequence[Job], program: Program, progress: Progress) -> None:
    total, done = sum(len(few) for _, _, few in jobs), 0
    known = {future: (log, few) for future, log, few in jobs}
    progress("measuring", done, total)
    for future in as_completed(known):
        log, few = known[future]
        write(log, program.key, few, future.result())
        done += len(few)
        progress("measuring", done, total)
