"""Kinds of operations, and runs of a program as a Chrome trace (for ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gst.lowering.plan import Timeline
from gst.machine.devices import Device
from gst.programs import Operation, Program
from gst.programs.features import is_elementwise
from gst.util.writing import atomic_write

KINDS = ("matrix product", "convolution", "element-wise", "reduction", "view", "other")
"""What operations are told apart by."""

MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
REDUCTIONS = {"amax", "amin", "argmax", "cumsum", "max", "mean", "min", "sum", "var_mean", "_softmax", "_log_softmax",
              "native_layer_norm", "native_group_norm"}  # fmt: skip


def kind_of(operation: Operation) -> str:
    """One of `KINDS`; a derivative is of the kind of what it is the derivative of, as far as its name tells."""
    packet = getattr(operation.target, "overloadpacket", operation.target)
    name = getattr(packet, "__name__", "").removesuffix("_data").removesuffix("_backward")
    if operation.is_view:
        return "view"
    if name in MATRIX_PRODUCTS:
        return "matrix product"
    if name == "convolution":
        return "convolution"
    if is_elementwise(operation):
        return "element-wise"
    return "reduction" if name in REDUCTIONS else "other"


def chrome_trace(program: Program, devices: Sequence[Device], runs: Mapping[str, Timeline]) -> dict[str, Any]:
    """Runs of one program in the Trace Event Format: each run a process, each device a row, each operation an event.

    Args:
        program: what ran.
        devices: of the executor or the simulator, in their order.
        runs: 'executed' and 'simulated', say, drawn in this order below each other, all from time 0.

    Returns:
        For `json.dumps`; times are microseconds. Inputs and constants, which take no time, are left out; operations
        that ran fused have the times of their group and lie on each other.

    Raises:
        ValueError: a run is of another program: it has another number of nodes.
    """
    events: list[dict[str, Any]] = []
    for process, (label, run) in enumerate(runs.items()):
        if len(run.device) != program.num_nodes:
            raise ValueError(f"run {label!r} has {len(run.device)} nodes, {program.name!r} has {program.num_nodes}")
        makespan_ms = run.makespan_us / 1e3
        events.append(_name("process_name", process, 0, f"{label}, {makespan_ms:.2f} ms"))
        events += [_name("thread_name", process, row, device.name) for row, device in enumerate(devices)]
        for node, operation in enumerate(program.operations):
            if operation.kind == "operation":
                begin, end = float(run.begin_us[node]), float(run.end_us[node])
                events.append({
                    "ph": "X", "name": operation.name, "cat": kind_of(operation), "pid": process,
                    "tid": int(run.device[node]), "ts": begin, "dur": end - begin,
                    "args": {
                        "node": node, "reads": [program.operations[each].name for each in operation.producers],
                        "shapes": [list(shape) for shape in operation.shapes],
                    },
                })  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": events}


def save_trace(trace: Mapping[str, Any], path: Path) -> None:
    """Write it at once or not at all; the folder is made."""
    with atomic_write(path) as file:
        json.dump(trace, file)


def _name(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}
