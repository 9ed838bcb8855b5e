"""Cost and gain of fusing element-wise operations: structures, seconds of compiling, steps with and without.

    python -m experiments.bench fusion
    python -m experiments.bench fusion --programs rnnlm:layers=4 --device cpu:0-1 --cache runs/fusion

The groups of each program are `pointwise_chains` on one device. What was compiled and measured before on this machine
is taken from the cache, with its seconds; `--cache` names an empty one. Steps are timed in turns, on quiet cores if
they become quiet.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from gst.util.process import WAITING

os.environ.update(WAITING)  # before torch is loaded

import numpy as np

from gst.execution.groups import Fused, fused
from gst.execution.measure import measure
from gst.execution.native import NativeExecutor
from gst.lowering.calls import eager
from gst.lowering.fusion import pointwise_chains
from gst.lowering.plan import Plan
from gst.machine.devices import Device, discover, machine_record, select
from gst.machine.load import LoadGate
from gst.programs import Program, outputs_differ, traced


def groups_of(made: Fused) -> dict[str, Any]:
    """Counts, seconds and microseconds of all groups, and of each structure with how often it occurs."""
    records = [record for _, record in made.records]
    distinct = list({record.key: record for record in records}.values())
    seconds = [record.compile_s for record in distinct]
    paying = [record for record in records if record.pays]
    return {
        "groups": len(records),
        "operations_in_groups": sum(record.num_operations for record in records),
        "structures": len(distinct),
        "compiled_groups": made.num_groups,
        "failures": sorted({record.reason for record in distinct if record.reason}),
        "compile_s": {"sum": sum(seconds), "median": float(np.median(seconds)), "max": max(seconds)},
        "alone_us": {
            "one_by_one": sum(record.eager_us or 0.0 for record in paying),
            "compiled": sum(record.compiled_us or 0.0 for record in paying),
        },
        "by_structure": [asdict(each) | {"occurs": records.count(each)} for each in distinct],
    }


def step_of(program: Program, plans: dict[str, Plan], device: Device, repetitions: int) -> dict[str, Any]:
    """Milliseconds and peak bytes of a step under each plan, the outputs compared first."""
    want, peaks = eager(program), {}
    with NativeExecutor(program, [device]) as native:
        for label, plan in plans.items():
            if (difference := outputs_differ(native.run(plan), want)) is not None:
                raise ValueError(f"{program.name}, {label}: {difference}")
            peaks[label] = native.last_timeline.peak_bytes
        calls = {label: lambda plan=plan: native.run(plan) for label, plan in plans.items()}
        measured = measure(calls, repetitions, gate=LoadGate())
    times = {
        label: {key: getattr(each, key) for key in ("median_ms", "low_ms", "high_ms", "load", "quiet")}
        for label, each in measured.items()
    }
    return {"step": times, "peak_bytes": peaks}


def figures(name: str, device: Device, repetitions: int) -> dict[str, Any]:
    """All of one program."""
    program = traced(name)
    placement = np.zeros(program.num_nodes, np.int64)
    plan = Plan((device.name,), placement, fusion=pointwise_chains(program, placement))
    made = fused(program, plan, [device])
    plans = {"one_by_one": Plan((device.name,), placement), "fused": plan}
    sizes = {"nodes": program.num_nodes, "nodes_fused": made.program.num_nodes}
    return sizes | groups_of(made) | step_of(program, plans, device, repetitions)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Compile and time the programs; each is written to `options.json` as soon as it is there."""
    if options.cache is not None:
        os.environ["XDG_CACHE_HOME"] = str(options.cache.resolve())
    device = select([options.device], discover())[0]
    result: dict[str, Any] = {"machine": machine_record(), "device": device.name, "programs": {}}
    for name in options.programs:
        result["programs"][name] = found = figures(name, device, options.repetitions)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        step = found["step"]
        print(
            f"{name}: {found['structures']} structures, {found['compiled_groups']} of {found['groups']} groups pay, "
            f"compiled in {found['compile_s']['sum']:.0f} s; step {step['one_by_one']['median_ms']:.2f} -> "
            f"{step['fused']['median_ms']:.2f} ms"
        )
    return result
