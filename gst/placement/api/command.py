"""`gst place`: options checked, the placement they ask for made, `plan.json` and `report.html` written."""

from __future__ import annotations

import math
import shutil
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.reproductions.public_problems.cost_graphs import CostGraph, read_cost_graph
from experiments.reproductions.public_problems.formats import read_public_graph
from gst.execution.isolated import IsolatedExecutor
from gst.execution.trace import save_trace
from gst.machine.devices import Device, parse_bytes, usable_devices
from gst.placement.again import SIGNATURES, keep_best, old_plan, save_signatures
from gst.placement.api.drawing import contributions, explanation, plan_drawing
from gst.placement.api.plan_trace import trace_of_task
from gst.placement.certificate import Certificate, certify, certify_published
from gst.placement.fleet.cluster import joined, kind_of_search, kinds_with
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.fusion.costs import FusedObjective
from gst.placement.loop import GROUPINGS, SEARCH_RUNS, SEARCHES, groups_of, place_measured, searches_of
from gst.placement.machines import machine
from gst.placement.planning import PlacementResult, Settings, place_graph, place_simulated
from gst.placement.profiling import COSTS, cached_task, profiled_task
from gst.placement.streams import checked_streams
from gst.placement.task import Task, save_plan
from gst.programs import Program, kind_for, traced
from gst.reporting.placement import render
from gst.util.interrupts import Stopped
from gst.util.progress import Progress
from gst.util.writing import atomic_write

LOGS = (SEARCHES, *map(searches_of, GROUPINGS), "measurements.jsonl")
WRITTEN = (COSTS, *map(groups_of, GROUPINGS), *LOGS, "plan.json", SIGNATURES, "program.txt", "report.html")


def place_by_options(options: Namespace, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Do what `gst place` is asked and write `plan.json` and `report.html`; the result for `--json`.

    Args:
        options: see `gst place --help`; `resume` goes on with what is in `out`, otherwise what an earlier command wrote
            there goes, measurements only if `anew`.

    Raises:
        ValueError: the options contradict each other, `out` holds measurements and neither `resume` nor `anew` is set,
            or as the functions of `gst.placement.loop`.
    """
    started = time.perf_counter()
    _check(options, settings)
    placement = _place(options, settings, progress)
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"command": options.command, **placement.result}
    streams = None
    if placement.task.program is not None:
        streams, result["streams"] = checked_streams(placement.task, placement.plan, options.verify)
        if options.show_streams:
            names = [operation.name for operation in placement.task.program.operations]
            with atomic_write(options.out / "program.txt") as file:
                file.write(streams.text(names.__getitem__) + "\n")
    save_plan(placement.plan, placement.task, options.out / "plan.json", streams)  # can be used before it is certified
    if placement.task.program is not None:
        save_signatures(placement.task.program, options.out / SIGNATURES)
    if options.trace is not None:
        save_trace(trace_of_task(placement.task, placement.plan), options.trace)
    if options.explain:
        words = [*contributions(result["plans"]), explanation(placement.task, placement.plan, result)]
        result["explanation"] = "\n".join(words)
    certificate = _certificate(options, placement, result, progress)
    result["certificate"] = certificate.to_dict()
    if placement.plan.fusion is None:
        result["lower_bound"] = max(result["lower_bound"], certificate.bound)
    save_plan(placement.plan, placement.task, options.out / "plan.json", streams, result["certificate"])
    drawing = plan_drawing(placement.task, placement.plan) | placement.drawing
    with atomic_write(options.out / "report.html") as file:
        file.write(render(result | drawing | {"seconds": time.perf_counter() - started}))
    return result


def _certificate(
    options: Namespace, placement: PlacementResult, result: dict[str, Any], progress: Progress
) -> Certificate:
    progress("proving a lower bound", 0, 1)
    if result["runtime"] == "published":
        return certify_published(_cost_graph(options.graph), placement.plan, options.proof, options.seed)
    peak = None
    if "streams" in result:
        checked = result["streams"]
        peak = {name: size + checked["resident_bytes"][name] for name, size in checked["peak_bytes"].items()}
    return certify(placement.task, placement.plan, options.proof, peak, options.seed, 1e3 * result["lower_bound"])


def _check(options: Namespace, settings: Settings) -> None:
    if not 0 <= options.proof < float("inf"):
        raise ValueError(f"--proof is {options.proof}, want 0 or more seconds")
    if (options.program is None) == (options.graph is None):
        raise ValueError("give a program, or a cost graph by --graph FILE (gst place --help)")
    if options.graph is not None and (options.devices or options.memory_limit):
        raise ValueError(
            "a cost graph brings devices and limits; leave --devices and --memory-limit away, or add --machine NAME:N"
        )
    if options.machine is not None and options.devices:
        raise ValueError("--machine names a simulated machine, --devices those of this one; give one of them")
    if isinstance(options.workers, str) and (options.graph or options.machine or options.runtime == "simulated"):
        raise ValueError("--workers names hosts that measure; leave --graph, --machine and --runtime simulated away")
    measured = options.runtime == "measured" and not (options.graph or options.machine)
    if settings.cost_model != "sums" and not (measured and settings.budget > 0 and "guided_search" in settings.methods):
        raise ValueError(
            "--cost-model learns from what the method 'guided_search' measures; leave it away where nothing is"
        )
    if options.machine is None and options.runtime == "simulated" and "fusion" in settings.tasks:
        raise ValueError("fusion is simulated on made-up machines alone; give --machine, or --runtime measured")
    measurements = options.out / "measurements.jsonl"
    if options.again and (not measured or options.resume or isinstance(options.workers, str)):
        raise ValueError("--again begins with the measured plan in --out; leave --resume, --machine, --workers away")
    if measurements.exists() and not (options.resume or options.anew or options.again):
        raise ValueError(f"{measurements} is there already; add --resume to go on with it, or give another --out")


def _place(options: Namespace, settings: Settings, progress: Progress) -> PlacementResult:
    if options.graph is not None:
        graph = _cost_graph(options.graph)
        _clear(options)
        return place_graph(graph, options.out, settings, progress)
    assert options.program is not None
    limit = parse_bytes(options.memory_limit) if options.memory_limit else None
    if options.machine is not None:
        chips = machine(options.machine)
        program = _captured(options, progress)
        limited = replace(chips, chips=tuple(replace(chip, memory_bytes=limit) for chip in chips.chips))
        runtime = FusedObjective(limited, program) if "fusion" in settings.tasks else None
        return place_simulated(limited.task(program), options.out, settings, progress, runtime)
    if isinstance(options.workers, str):
        return _place_by_fleet(options, options.workers, limit, settings, progress)
    devices = usable_devices(_names(options), limit)
    if options.runtime == "measured":
        return _place_measured(options, devices, settings, progress)
    program = _captured(options, progress, devices)

    def profiled() -> Task:
        with IsolatedExecutor(options.program or "", devices) as isolated:
            return profiled_task(program, isolated, settings, progress)

    return place_simulated(cached_task(program, devices, options.out, profiled), options.out, settings, progress)


def _place_measured(
    options: Namespace, devices: Sequence[Device], settings: Settings, progress: Progress
) -> PlacementResult:
    """Raises:
    Stopped: the command was asked to end; the fastest plan measured so far is in `plan.json`.
    """
    progress("capturing", 0, 1)
    program = traced(options.program, kind=kind_for(each.kind for each in devices))
    old = old_plan(options.out, program, [each.name for each in devices]) if options.again else None
    _clear(options)
    seconds = math.inf if options.seconds is None else options.seconds
    try:
        return place_measured(
            program, options.program, devices, options.out, settings, progress, old_plan=old, seconds=seconds
        )
    except Stopped as stop:
        kept = keep_best(program, options.out / "measurements.jsonl", options.out / "plan.json")
        go_on = f"the same command with --resume {'in place of --again ' if options.again else ''}goes on"
        raise Stopped(stop.number, f"{kept}; {go_on}" if kept else go_on) from None


def _cost_graph(path: Path) -> CostGraph:
    try:
        return read_cost_graph(path)
    except ValueError as error:
        try:
            other = read_public_graph(path).format
        except ValueError:
            raise error from None
        raise ValueError(f"{path} is of the format {other}, which needs a machine; add --machine gpus:4, say") from None


def _place_by_fleet(
    options: Namespace, address: str, limit: int | None, settings: Settings, progress: Progress
) -> PlacementResult:
    assert options.program is not None
    with joined(address):
        progress("starting workers", 0, 1)
        names = _names(options)
        kind = kind_of_search(kinds_with(names), options.out / "measurements.jsonl" if options.resume else None)
        program = _captured(options, progress, kind.selected(names, with_sets=False))
        devices = [replace(each, memory_limit=limit) for each in kind.selected(names, with_sets=True)]
        fleet = FleetWorkers(kind, program, devices, repetitions=SEARCH_RUNS, patience_s=settings.patience_s)
        return place_measured(program, options.program, devices, options.out, settings, progress, fleet)


def _captured(options: Namespace, progress: Progress, devices: Sequence[Device] = ()) -> Program:
    assert options.program is not None
    progress("capturing", 0, 1)
    program = traced(options.program, kind=kind_for(each.kind for each in devices))
    _clear(options)
    return program


def _clear(options: Namespace) -> None:
    """Remove what an earlier command wrote, and nothing else, unless this one goes on with it."""
    if options.resume:
        return
    begun_with = ("plan.json", SIGNATURES) if options.again else ()  # until there is a new plan
    has_dataset = any((options.out / name).exists() for name in LOGS)  # what lies beside no log may be the user's
    for name in set(WRITTEN).difference(begun_with):
        (options.out / name).unlink(missing_ok=True)
    if has_dataset:
        shutil.rmtree(options.out / "dataset", ignore_errors=True)


def _names(options: Namespace) -> list[str] | None:
    return options.devices.split(",") if options.devices else None
