"""Timelines of runs, real or simulated, and their form as a Chrome trace (for ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from gst.devices.describe.discover import Device
from gst.files.writing import atomic_write
from gst.programs import Operation, Program
from gst.programs.features import is_elementwise

KINDS = ("matrix product", "convolution", "element-wise", "reduction", "view", "other")
"""What operations are told apart by."""

MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
REDUCTIONS = {"amax", "amin", "argmax", "cumsum", "max", "mean", "min", "sum", "var_mean", "_softmax", "_log_softmax",
              "native_layer_norm", "native_group_norm"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each operation of a plan ran, or is simulated to run, and on which device.

    Args:
        device: position of the device of each node among those of the executor or the simulator.
        begin_us: when each operation began, since the start of the run; 0 for inputs and constants.
        end_us: when it ended.
        live_bytes: bytes of intermediate values, outputs included, when it had ended; empty if they were not counted.
        own_bytes: the most that the operation itself took while it ran, its result included; empty likewise.
        peak_bytes: the most bytes at any moment, what operations take only while they run included; None likewise.
    """

    device: Int64[np.ndarray, " nodes"]
    begin_us: Float64[np.ndarray, " nodes"]
    end_us: Float64[np.ndarray, " nodes"]
    live_bytes: Int64[np.ndarray, " counted"] = field(default_factory=partial(np.zeros, 0, np.int64))
    own_bytes: Int64[np.ndarray, " counted"] = field(default_factory=partial(np.zeros, 0, np.int64))
    peak_bytes: int | None = None

    @property
    def makespan_us(self) -> float:
        """When the last operation ends."""
        return float(self.end_us.max(initial=0.0))


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
