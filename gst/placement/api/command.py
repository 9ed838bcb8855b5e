"""`gst place`: check its options, place, and write `plan.json` and `report.html`."""

from __future__ import annotations

import math
import shutil
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gst.execution.isolated import IsolatedExecutor
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import Device, parse_bytes, usable_devices
from gst.placement.api.drawing import contributions, explanation, loop_words, plan_drawing
from gst.placement.baselines.bounds import certificate_of
from gst.placement.cost_models import LEARNED
from gst.placement.fleet.cluster import kind_of_search, kinds_with
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.loop import RAN, Trial, fastest, ran
from gst.placement.machines import machine
from gst.placement.measured import FUSED_SEARCHES, GROUPS, SEARCH_RUNS, SEARCHES, place_measured
from gst.placement.planning import DEFAULT_SETTINGS, PlacementResult, Settings, place_simulated
from gst.placement.profiling import COSTS, cached_task, profiled_task
from gst.placement.task import save_plan
from gst.programs import Program, kind_for
from gst.programs.traces import pinned, traced
from gst.reporting.placement import render
from gst.util.cluster import joined
from gst.util.process import Stopped
from gst.util.progress import Progress
from gst.util.writing import atomic_write

LOGS = (SEARCHES, FUSED_SEARCHES, "measurements.jsonl")
WRITTEN = (COSTS, LEARNED, GROUPS, *LOGS, "plan.json", "report.html")


def place_by_options(options: Namespace, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Place as `gst place` is asked, write `plan.json` and `report.html`, and return the result for `--json`.

    Args:
        options: see `gst place --help`. `resume` goes on with the files in `out`; otherwise files of an earlier command
            are removed, measurements only if `anew`.

    Raises:
        ValueError: the options contradict each other, `out` holds measurements and neither `resume` nor `anew` is set,
            or as the functions of `gst.placement.measured`.
    """
    started = time.perf_counter()
    _check(options, settings)
    placement = _place(options, settings, progress)
    task, plan, out = placement.task, placement.plan, options.out
    out.mkdir(parents=True, exist_ok=True)
    result = {"command": options.command, **placement.result}
    certificate = certificate_of(task, plan, 1e3 * result["lower_bound"])
    result["certificate"] = certificate
    if plan.fusion is None:
        result["lower_bound"] = max(result["lower_bound"], certificate["lower_bound"])
    if options.explain:
        lines = [
            *contributions(result["plans"], result["methods"]),
            *loop_words(result),
            explanation(task, plan, result),
        ]
        result["explanation"] = "\n".join(lines)
    save_plan(plan, task, out / "plan.json", certificate)
    drawing = plan_drawing(task, plan) | placement.drawing
    with atomic_write(out / "report.html") as file:
        file.write(render(result | drawing | {"seconds": time.perf_counter() - started}))
    return result


def _check(options: Namespace, settings: Settings) -> None:
    if options.machine is not None and options.devices:
        raise ValueError("--machine names a simulated machine, --devices those of this one; give one of them")
    if options.workers and (options.machine or options.runtime == "simulated"):
        raise ValueError("--workers names hosts that measure; leave --machine and --runtime simulated away")
    measured = options.runtime == "measured" and not options.machine
    if settings.cost_model != DEFAULT_SETTINGS.cost_model and not (measured and settings.budget > 0):
        raise ValueError("--cost-model learns from what the loop measures; leave it away where nothing is")
    if options.warm_start is not None and not measured:
        raise ValueError("--warm-start is for plans that are measured; leave it, or --runtime simulated, away")
    if options.warm_start is not None and options.warm_start.resolve() == options.out.resolve():
        raise ValueError("--warm-start is the --out of another search; --resume goes on with this one")
    if "fusion" in settings.tasks and not measured:
        raise ValueError("fused groups are measured; leave fusion, or --machine and --runtime simulated, away")
    measurements = options.out / "measurements.jsonl"
    if measurements.exists() and not (options.resume or options.anew):
        raise ValueError(f"{measurements} is there already; add --resume to go on with it, or give another --out")


def _place(options: Namespace, settings: Settings, progress: Progress) -> PlacementResult:
    limit = parse_bytes(options.memory_limit) if options.memory_limit else None
    if options.machine is not None:
        chips = machine(options.machine)
        chips = replace(chips, chips=tuple(replace(chip, memory_bytes=limit) for chip in chips.chips))
        program = _captured(options, progress)
        return place_simulated(chips.task(program), options.out, settings, progress)
    if options.workers:
        return _place_by_fleet(options, limit, settings, progress)
    devices = usable_devices(_names(options), limit)
    if options.runtime == "measured":
        return _place_measured(options, devices, settings, progress)
    program = _captured(options, progress, devices)
    with IsolatedExecutor(pinned(options.program, program), devices) as isolated:
        profiled = partial(profiled_task, program, isolated, settings.seed, settings.patience_s, progress)
        task = cached_task(program, devices, options.out, profiled)
    return place_simulated(task, options.out, settings, progress)


def _place_measured(
    options: Namespace, devices: Sequence[Device], settings: Settings, progress: Progress
) -> PlacementResult:
    program, out = _captured(options, progress, devices), options.out
    source = pinned(options.program, program)
    seconds = math.inf if options.seconds is None else options.seconds
    try:
        return place_measured(program, source, devices, out, settings, progress, seconds=seconds)
    except Stopped as stop:
        best = keep_best(program, out / "measurements.jsonl", out / "plan.json")
        go_on = "the same command with --resume goes on"
        raise Stopped(stop.number, f"{best}; {go_on}" if best else go_on) from None


def keep_best(program: Program, log: Path, path: Path) -> str:
    """Write the fastest plan in the `log` of a search to `path`; return a sentence about it, empty if there is none."""
    trials = []
    for record in Log(log).read():
        plan = Plan.from_dict(record[RAN] if RAN in record else record["plan"])
        if plan.placement.size == program.num_nodes:
            trials.append(replace(Trial.from_dict(record), plan=plan))
    if not (plans := fastest(trials)):
        return ""
    best = plans[0]
    samples = [ms for each in ran(trials) if each.plan.key == best.key for ms in each.measurement.samples_ms]
    save_plan(best, program, path)
    return f"the best of {len(plans)} plans so far, {np.median(samples):.2f} ms, is in {path}"


def _place_by_fleet(options: Namespace, limit: int | None, settings: Settings, progress: Progress) -> PlacementResult:
    with joined(options.workers):
        progress("starting workers", 0, 1)
        names = _names(options)
        kind = kind_of_search(kinds_with(names), options.out / "measurements.jsonl" if options.resume else None)
        program = _captured(options, progress, kind.selected(names, with_sets=False))
        devices = [replace(each, memory_limit=limit) for each in kind.selected(names, with_sets=True)]
        fleet = FleetWorkers(kind, program, devices, repetitions=SEARCH_RUNS, patience_s=settings.patience_s)
        source = pinned(options.program, program)
        return place_measured(program, source, devices, options.out, settings, progress, fleet)


def _captured(options: Namespace, progress: Progress, devices: Sequence[Device] = ()) -> Program:
    progress("capturing", 0, 1)
    program = traced(options.program, kind=kind_for(each.kind for each in devices))
    _clear(options)
    return program


def _clear(options: Namespace) -> None:
    """Remove the files of an earlier command, and nothing else, unless this one goes on with them."""
    if options.resume:
        return
    has_dataset = any((options.out / name).exists() for name in LOGS)  # without a log it may be the user's
    for name in WRITTEN:
        (options.out / name).unlink(missing_ok=True)
    if has_dataset:
        shutil.rmtree(options.out / "dataset", ignore_errors=True)


def _names(options: Namespace) -> list[str] | None:
    return options.devices.split(",") if options.devices else None
