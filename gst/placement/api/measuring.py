"""`gst measure`: measure plans of a program, a few at a time, on this host or on each kind of host of a fleet."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Log, Measurement
from gst.graphs.store import prepare
from gst.lowering.calls import Costs
from gst.lowering.plan import Plan
from gst.machine.devices import Device, discover, select, this_machine
from gst.machine.load import LoadGate, repeated_while_busy
from gst.placement.fleet.cluster import kinds_with
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.loop import AT_ONCE
from gst.placement.measured_plans import LOG, MeasuredPlans, Profiled, read_measured, write_header
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task, check_same, load_plan
from gst.programs import Program, kind_for
from gst.programs.traces import pinned, traced
from gst.util.cluster import joined
from gst.util.progress import Progress, no_progress


@dataclass(frozen=True)
class MeasuringSettings:
    """Settings of `gst measure`.

    Args:
        program: name of the program, see `gst.programs.resolve`.
        out: directory of `graph.npz`, `measurements.jsonl` and the store `dataset/`; of a fleet, one for each kind of
            host.
        device_names: devices to use; all if None.
        plan_files: plans to measure before random ones.
        num_random: number of plans of `random_plans`.
        repetitions: timed runs of each plan.
        memory_limit, time_limit_s: of each run, see `IsolatedExecutor`.
        patience_s: seconds to wait for quiet cores before the profile and before each four plans.
        resume: go on with the files in `out`.
    """

    program: str
    out: Path
    device_names: Sequence[str] | None = None
    plan_files: Sequence[Path] = ()
    num_random: int = 0
    repetitions: int = 5
    seed: int = 0
    memory_limit: int | None = None
    time_limit_s: float = 60.0
    patience_s: float = 20.0
    resume: bool = False

    def header(self, program: Program, machine: dict[str, Any]) -> dict[str, Any]:
        """Return the first record of a log."""
        return {
            "name": self.program, "program": program.key, "seed": self.seed, "memory_limit": self.memory_limit,
            "time_limit_s": self.time_limit_s, "machine": machine,
        }  # fmt: skip

    def check_new(self, logs: Iterable[Path]) -> None:
        """Raises:
        ValueError: one of the logs has entries, and `resume` is not set.
        """
        if begun := [path for path in logs if not self.resume and Log(path).read()]:
            raise ValueError(f"{begun[0]} is there already; add --resume to go on with it, or give another --out")


def measure_program(settings: MeasuringSettings, progress: Progress = no_progress) -> dict[str, Any]:
    """Measure plans of a program in a child process, make a dataset of those that ran, and return its `summary`.

    Raises:
        ValueError: `out` holds measurements and `resume` is not set, or they are of another program, other devices or
            another machine; a plan is for another program or other devices; no plan ran.
    """
    log = settings.out / LOG
    settings.check_new([log])
    found = discover()
    chosen = found if settings.device_names is None else select(settings.device_names, found)
    devices = tuple(replace(each, memory_limit=settings.memory_limit) for each in chosen)
    progress("capturing", 0, 1)
    program = traced(settings.program, kind=kind_for(each.kind for each in devices))
    from_files = [load_plan(path, program, devices) for path in settings.plan_files]
    with IsolatedExecutor(pinned(settings.program, program), devices, settings.time_limit_s) as isolated:
        gate = LoadGate(patience_s=settings.patience_s, progress=progress)

        def profile() -> Costs:
            progress("profiling", 0, 1)
            spent = gate.wait()[0] if settings.patience_s > 0 else 0.0
            attempts = repeated_while_busy(isolated.costs, replace(gate, patience_s=settings.patience_s - spent))
            return min(attempts, key=lambda costs: costs.load or 0.0)

        left = _plans_left(settings, settings.out, program, devices, this_machine(), from_files, profile)
        for start in range(0, len(left), AT_ONCE):
            progress("measuring", start, len(left))
            few = left[start : start + AT_ONCE]
            measurements = measure_plans(isolated, [plan for _, plan in few], settings.repetitions, gate=gate)
            _write(Log(log), program.key, few, measurements)
        progress("measuring", len(left), len(left))
    return summary(settings.out)


def measure_on_fleet(settings: MeasuringSettings, address: str, progress: Progress = no_progress) -> dict[str, Any]:
    """Measure the same plans on every kind of host that has the devices; hosts of a kind share the work.

    Args:
        settings: devices are those of the hosts; the files of each kind are in `out/KIND`.
        address: of the cluster, see `gst.util.cluster.joined`.

    Returns:
        program, key, and for each of `kinds` the number of hosts and its `summary`.

    Raises:
        ValueError: as `measure_program`, or the cluster is not there, has no such devices, or lost its last host.
    """
    out = settings.out
    settings.check_new(out.glob(f"*/{LOG}"))
    with joined(address), ExitStack() as stack:
        progress("starting workers", 0, 1)
        kinds = kinds_with(settings.device_names)
        progress("capturing", 0, 1)
        every = [each for kind in kinds for each in kind.selected(settings.device_names, with_sets=False)]
        program = traced(settings.program, kind=kind_for(each.kind for each in every))
        fleets = []
        for kind in kinds:
            chosen = kind.selected(settings.device_names, with_sets=False)
            on_hosts = [replace(each, memory_limit=settings.memory_limit) for each in chosen]
            limits = (settings.time_limit_s, settings.repetitions)
            fleet = FleetWorkers(kind, program, on_hosts, *limits, patience_s=settings.patience_s)
            fleets.append(stack.enter_context(fleet))
        left = []
        for number, fleet in enumerate(fleets):
            progress("profiling", number, len(fleets))
            from_files = [load_plan(path, program, fleet.devices) for path in settings.plan_files]
            described = (settings, out / fleet.kind.key, program, fleet.devices, fleet.kind.machine)
            left.append(_plans_left(*described, from_files, fleet.costs))
        by_future = {}
        for fleet, plans in zip(fleets, left, strict=True):
            for start in range(0, len(plans), AT_ONCE):
                few = plans[start : start + AT_ONCE]
                by_future[fleet.submit([plan for _, plan in few])] = Log(out / fleet.kind.key / LOG), few
        done, total = 0, sum(map(len, left))
        progress("measuring", done, total)
        for future in as_completed(by_future):
            log, few = by_future[future]
            _write(log, program.key, few, future.result())
            done += len(few)
            progress("measuring", done, total)
    by_kind = {fleet.kind.key: {"hosts": fleet.kind.num_hosts, **summary(out / fleet.kind.key)} for fleet in fleets}
    return {"program": settings.program, "key": program.key, "kinds": by_kind}


def _plans_left(
    settings: MeasuringSettings, out: Path, program: Program, devices: tuple[Device, ...], machine: dict[str, Any],
    from_files: Sequence[Plan], profile: Callable[[], Costs],
) -> list[tuple[str, Plan]]:  # fmt: skip
    """Return plans from files and random ones, with their kinds, that the log in `out` lacks; begin a log if needed."""
    header = settings.header(program, machine)
    if not Log(out / LOG).read():
        costs = profile()
        profiled = Profiled(program.graph, program.output_bytes, devices, _finite(costs.times_us, devices))
        write_header(out, {**header, "profile_load": costs.load}, profiled)
    measured = read_measured(out)
    then = {**measured.header, "devices": [device.name for device in measured.profiled.devices]}
    now = {**header, "devices": [device.name for device in devices]}
    check_same(out / LOG, then, {what: now[what] for what in ("program", "devices", "memory_limit", "machine")})
    task = Task.of_profile(program, measured.profiled.devices, measured.profiled.times_us)
    random = islice(random_plans(task, settings.seed), settings.num_random)
    plans = {plan.key: (kind, plan) for kind, plan in [*(("given", plan) for plan in from_files), *random]}
    is_measured = {plan.key for plan in measured.plans}
    return [entry for key, entry in plans.items() if key not in is_measured]


def _finite(
    times_us: Float64[np.ndarray, "devices nodes"], devices: Sequence[Device]
) -> Float64[np.ndarray, "devices nodes"]:
    """Return the times, if every device can run every operation: measured plans place operations anywhere."""
    if (stuck := np.argwhere(np.isinf(times_us))).size:
        device, node = stuck[0].tolist()
        raise ValueError(f"operation {node} cannot run on {devices[device].name}; leave that device out (--devices)")
    return times_us


def _write(log: Log, program_key: str, few: Sequence[tuple[str, Plan]], measurements: Sequence[Measurement]) -> None:
    for (kind, plan), measurement in zip(few, measurements, strict=True):
        log.append({"program": program_key, "kind": kind, "plan": plan.to_dict(), "measurement": measurement.to_dict()})


def summary(out: Path) -> dict[str, Any]:
    """Make a dataset of all measurements in `out`.

    Returns:
        program, key, devices, plans (numbers: measured, ran, and of each reason of failure), the fastest and the
        slowest median in ms, profile_load (share of the cores that other processes took during the profile), quiet
        (share of plans on quiet cores), dataset (its directory), machine.
    """
    measured = read_measured(out)
    ran = [each.median_ms for each in measured.measurements if each.outcome == "ok"]
    failed = Counter(each.reason for each in measured.measurements if each.outcome == "failed")
    dataset = prepare(MeasuredPlans([glob.escape(str(out))]), out / "dataset")
    return {
        "program": measured.header["name"], "key": measured.header["program"],
        "devices": [device.name for device in measured.profiled.devices],
        "plans": {"measured": len(measured.plans), "ran": len(ran), "failed": dict(failed.most_common())},
        "fastest_ms": min(ran), "slowest_ms": max(ran), "profile_load": measured.header.get("profile_load"),
        "quiet": sum(each.quiet for each in measured.measurements) / len(measured.measurements),
        "dataset": str(dataset), "machine": measured.header["machine"],
    }  # fmt: skip
