"""What `gst place` is asked for, checked, done and written down."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gst.data.cost_graphs import read_cost_graph
from gst.devices.describe.discover import parse_bytes
from gst.devices.execute.executor import usable_devices
from gst.devices.execute.isolated import IsolatedExecutor
from gst.files.writing import atomic_write
from gst.placement.drawn import drawn
from gst.placement.fleet.cluster import kind_of_search, kinds_with
from gst.placement.fleet.connection import joined
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.fusion.costs import FusedRuntime
from gst.placement.machines import machine
from gst.placement.outcome import PlacementResult, Settings
from gst.placement.place import COSTS, GROUPS, SEARCH_RUNS, kept_task, measured_task, place_measured
from gst.placement.place_on_costs import place_graph, place_simulated
from gst.placement.plan_files import save_plan
from gst.placement.planning import RENAMED
from gst.placement.task import Task
from gst.process.progress import Progress
from gst.programs import Program, traced
from gst.reporting.report import render

LOGS = ("searches.jsonl", "searches_fused.jsonl", "measurements.jsonl")
WRITTEN = (COSTS, GROUPS, *LOGS, "plan.json", "report.html")


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
    workers: int | str
    cost_model: str
    compile_step: bool
    out: Path
    resume: bool
    anew: bool
    command: str


def place_as_asked(request: Request, progress: Progress) -> dict[str, Any]:
    """Place, and write `plan.json` and `report.html`; without `resume` what was in `out` before goes.

    Raises:
        ValueError: the request contradicts itself, or `out` holds measurements and neither `resume` nor `anew` is set,
            or as the functions of `gst.placement.place`.
    """
    started = time.perf_counter()
    request = replace(request, methods=tuple(RENAMED.get(name, name) for name in request.methods))
    _check(request)
    settings = Settings(
        request.budget, request.evaluations, request.methods, request.tasks, seed=request.seed,
        patience_s=request.patience_s, workers=request.workers if isinstance(request.workers, int) else 1,
        cost_model=request.cost_model, compile_step=request.compile_step,
    )  # fmt: skip
    found = _found(request, settings, progress)
    request.out.mkdir(parents=True, exist_ok=True)
    save_plan(found.plan, found.task, request.out / "plan.json")
    result = {"command": request.command, **found.result}
    record = result | drawn(found.task, found.plan) | found.drawn | {"seconds": time.perf_counter() - started}
    with atomic_write(request.out / "report.html") as file:
        file.write(render(record))
    return result


def _check(request: Request) -> None:
    if (request.program is None) == (request.graph is None):
        raise ValueError("give a program, or a cost graph by --graph FILE (gst place --help)")
    if request.graph is not None and (request.devices or request.machine or request.memory_limit):
        raise ValueError("a cost graph brings devices and limits; leave --devices, --machine and --memory-limit away")
    if request.machine is not None and request.devices:
        raise ValueError("--machine names a simulated machine, --devices those of this one; give one of them")
    if isinstance(request.workers, str) and (request.graph or request.machine or request.runtime == "simulated"):
        raise ValueError("--workers names hosts that measure; leave --graph, --machine and --runtime simulated away")
    measured = request.runtime == "measured" and not (request.graph or request.machine)
    if request.cost_model != "sums" and not (measured and request.budget > 0 and "guided_search" in request.methods):
        raise ValueError(
            "--cost-model learns from what the method 'guided_search' measures; leave it away where nothing is"
        )
    if request.machine is None and request.runtime == "simulated" and "fusion" in request.tasks:
        raise ValueError("fusion is simulated on made-up machines alone; give --machine, or --runtime measured")
    measurements = request.out / "measurements.jsonl"
    if measurements.exists() and not (request.resume or request.anew):
        raise ValueError(f"{measurements} is there already; add --resume to go on with it, or give another --out")


def _found(request: Request, settings: Settings, progress: Progress) -> PlacementResult:
    if request.graph is not None:
        graph = read_cost_graph(request.graph)
        _clear(request)
        return place_graph(graph, request.out, settings, progress)
    assert request.program is not None
    limit = parse_bytes(request.memory_limit) if request.memory_limit else None
    if request.machine is not None:
        chips = machine(request.machine)
        program = _captured(request, progress)
        limited = replace(chips, chips=tuple(replace(chip, memory_bytes=limit) for chip in chips.chips))
        runtime = FusedRuntime(limited, program) if "fusion" in settings.tasks else None
        return place_simulated(limited.task(program), request.out, settings, progress, runtime)
    if isinstance(request.workers, str):
        return _found_by_fleet(request, request.workers, limit, settings, progress)
    devices = usable_devices(request.devices, limit)
    program = _captured(request, progress)
    if request.runtime == "measured":
        return place_measured(program, request.program, devices, request.out, settings, progress)

    def profiled() -> Task:
        with IsolatedExecutor(request.program or "", devices) as isolated:
            return measured_task(program, isolated, request.seed)

    return place_simulated(kept_task(program, devices, request.out, profiled), request.out, settings, progress)


def _found_by_fleet(
    request: Request, address: str, limit: int | None, settings: Settings, progress: Progress
) -> PlacementResult:  # fmt: skip
    assert request.program is not None
    with joined(address):
        program = _captured(request, progress)
        progress("starting workers", 0, 1)
        kind = kind_of_search(kinds_with(request.devices), request.out / "measurements.jsonl")
        devices = [replace(each, memory_limit=limit) for each in kind.selected(request.devices, with_sets=True)]
        fleet = FleetWorkers(
            kind, program, devices, limit, repetitions=SEARCH_RUNS, patience_s=settings.patience_s
        )  # fmt: skip
        return place_measured(program, request.program, devices, request.out, settings, progress, fleet)


def _captured(request: Request, progress: Progress) -> Program:
    assert request.program is not None
    progress("capturing", 0, 1)
    program = traced(request.program)
    _clear(request)
    return program


def _clear(request: Request) -> None:
    """Remove what an earlier command wrote, and nothing else, unless this one goes on with it."""
    if request.resume:
        return
    for name in WRITTEN:
        (request.out / name).unlink(missing_ok=True)
    shutil.rmtree(request.out / "dataset", ignore_errors=True)
