"""What `gst place` is asked for, checked, done and written down."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gst.devices import Device
from gst.devices.discover import parse_bytes, usable_devices
from gst.devices.isolated import IsolatedExecutor
from gst.placement.drawn import drawn
from gst.placement.fusion.costs import FusedRuntime
from gst.placement.machines import machine
from gst.placement.outcome import Found, Settings
from gst.placement.place import measured_task, place_measured
from gst.placement.place_on_costs import place_graph, place_simulated
from gst.placement.plan_files import save_plan
from gst.placement.runtime import Progress
from gst.placement.task import Task
from gst.programs import Program, traced
from gst.report import render

WRITTEN = ("searches.jsonl", "measurements.jsonl", "plan.json", "report.html")


@dataclass(frozen=True)
class Request:
    """The words of a command line, see `gst place --help`."""

    program: str | None
    graph: Path | None
    devices: list[str] | None
    machine: str | None
    runtime: str
    memory_limit: str | None
    budget: int
    evaluations: int
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    seed: int
    patience_s: float
    workers: int
    out: Path
    resume: bool
    command: str


def place_as_asked(request: Request, progress: Progress) -> dict[str, Any]:
    """Place, and write `plan.json` and `report.html`; without `resume` what was in `out` before goes.

    Raises:
        ValueError: the request contradicts itself, or as the functions of `gst.placement.place`.
    """
    started = time.perf_counter()
    _check(request)
    settings = Settings(
        request.budget, request.evaluations, request.methods, request.tasks, seed=request.seed,
        patience_s=request.patience_s, workers=request.workers,
    )  # fmt: skip
    if not request.resume:
        _clear(request.out)
    request.out.mkdir(parents=True, exist_ok=True)
    found = _found(request, settings, progress)
    save_plan(found.plan, found.task, request.out / "plan.json")
    result = {"command": request.command, **found.result}
    record = result | drawn(found.task, found.plan) | found.drawn | {"seconds": time.perf_counter() - started}
    (request.out / "report.html").write_text(render(record))
    return result


def _check(request: Request) -> None:
    if (request.program is None) == (request.graph is None):
        raise ValueError("give a program, or a cost graph by --graph FILE (gst place --help)")
    if request.graph is not None and (request.devices or request.machine or request.memory_limit):
        raise ValueError("a cost graph brings devices and limits; leave --devices, --machine and --memory-limit away")
    if request.machine is not None and request.devices:
        raise ValueError("--machine names a simulated machine, --devices those of this one; give one of them")


def _found(request: Request, settings: Settings, progress: Progress) -> Found:
    if request.graph is not None:
        return place_graph(request.graph, request.out, settings, progress)
    assert request.program is not None
    progress("capturing", 0, 1)
    program = traced(request.program)
    limit = parse_bytes(request.memory_limit) if request.memory_limit else None
    if request.machine is not None:
        chips = machine(request.machine)
        limited = replace(chips, chips=tuple(replace(chip, memory_bytes=limit) for chip in chips.chips))
        runtime = FusedRuntime(limited, program) if "fusion" in settings.tasks else None
        return place_simulated(limited.task(program), request.out, settings, progress, runtime)
    devices = usable_devices(request.devices, limit)
    if request.runtime == "simulated" and "fusion" in settings.tasks:
        raise ValueError("fusion is simulated on made-up machines alone; give --machine, or --runtime measured")
    if request.runtime == "measured":
        return place_measured(program, request.program, devices, request.out, settings, progress)
    return place_simulated(_profiled(request.program, program, devices, request.seed), request.out, settings, progress)


def _profiled(name: str, program: Program, devices: Sequence[Device], seed: int) -> Task:
    with IsolatedExecutor(name, devices) as isolated:
        return measured_task(program, isolated, seed)


def _clear(out: Path) -> None:
    """Remove what an earlier command wrote, and nothing else."""
    for name in WRITTEN:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "dataset", ignore_errors=True)
