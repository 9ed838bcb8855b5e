"""Convex groups of GraphNet samples, compiled for one thread and for two, and timed against their operations.

Groups go into a log, one line for a program, so that a stopped run goes on.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.strangers_program import module_of
from experiments.reproductions.graphnet.reader import read_sources
from experiments.reproductions.groups.segments import convex_segments
from experiments.reproductions.timm.step_time.estimate import operation_times_us
from gst.execution.groups import group_records
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import Device, machine_record
from gst.programs import Program, capture_module
from gst.util.progress import bar

MACHINE = "cpu-r9_7950x"  # at whose rates the work of operations is weighed, to cut programs
COUNTS = (8, 32)  # segments that a program is cut into
EACH = 2  # groups of each cut


def collect(data: Path, names: Sequence[str], devices: Sequence[Device], log: Log) -> None:
    """Compile and time groups of the samples that the log does not hold, and append a line for each sample.

    Args:
        data: of the samples, see `graphnet.reader.read_sources`.
        names: of samples; all if empty.
        devices: sets of cores; groups are compiled for the threads of each.
        log: of lines with `program`, `machine` and `groups`: `nodes` (of the captured program), `threads`, `reason`
            why it has no times (or empty), `compiled_us`, `eager_us` (of its operations one by one, alternately
            with the former), and `compile_s`.
    """
    done = {line["program"] for line in log.read()}
    for source in bar([each for each in read_sources(data) if not names or each.name in names], desc="programs"):
        if source.name not in done:
            program = capture_module(*module_of(source))
            log.append({"program": source.name, "machine": machine_record(), "groups": groups_of(program, devices)})


def groups_of(program: Program, devices: Sequence[Device]) -> list[dict[str, Any]]:
    """The lines of some groups of a program, those of one structure once."""
    generator = np.random.default_rng(zlib.crc32(program.key.encode()))
    work, rows = operation_times_us(program, MACHINE), {}
    names = tuple(device.name for device in devices)
    for count in COUNTS:
        cut = convex_segments(program, work, count)
        chosen = generator.permutation(int(cut.max(initial=-1)) + 1)[:EACH]
        fusion = np.where(np.isin(cut, chosen), cut, -1)
        for place, device in enumerate(devices):
            plan = Plan(names, np.full(program.num_nodes, place), None, fusion)
            for group, record in group_records(program, plan, devices):
                rows[record.key or f"{group.nodes} {device.threads}"] = {
                    "nodes": list(group.nodes), "threads": device.threads, "reason": record.reason,
                    "compiled_us": record.compiled_us, "eager_us": record.eager_us, "compile_s": record.compile_s,
                }  # fmt: skip
    return list(rows.values())
