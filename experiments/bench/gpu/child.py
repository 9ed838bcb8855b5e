"""One workload on the accelerator of this machine: as written, by streams and compiled, in a process of its own.

python -m experiments.bench.gpu.child NAME SETTINGS.json    # out: lines of JSON, each with all that is known by then
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from experiments.bench.gpu.host_outputs import differs_from_host
from experiments.bench.gpu.plans import lanes_of, simulated_and_measured, task_of
from experiments.bench.gpu.record import clocks_of, print_rows
from gst.execution.costs import event_times_us, one_graph
from gst.execution.lane_graphs import LaneGraph
from gst.execution.lanes import LaneExecutor
from gst.execution.measure import measure
from gst.lowering.calls import eager, module_on
from gst.programs import Program, capture, differ_beyond_rounding, resolve
from gst.util.untrusted import first_line
from gst.whole_model.child_process import Run, as_written
from gst.whole_model.variants import compiled_by_threads

DEAREST = 10  # operations whose times are reported
WRITTEN, GRAPH = "as written", "as written, graph"
WAYS_SHARE, PLANS_SHARE = 0.15, 0.4  # of the seconds of a workload that timing the ways, and its plans, may take


def reports(name: str, settings: Mapping[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    """Measure one workload on an accelerator: the step as written, then by streams, with plans, and in each mode of
    `torch.compile`.

    Args:
        name: of the workload.
        settings: `repetitions` of each way, the numbers of `lanes`, the `modes` of `torch.compile`, how many `plans`
            are simulated and measured on the most lanes, 0 for none, and the `seconds` of all.
        device: the accelerator, or the CPU, which times little but checks the rest.

    Returns:
        nodes; tf32, whether convolutions round to it; wrong, what its operations one by one on the accelerator compute
        otherwise than the CPU, convolutions exact; ways, by name: the measurement of the step as written, in one graph
        of the accelerator, by lanes, of their graph, and compiled; one that is no graph or has other outputs than the
        operations one by one there says so in `reason`; operations_ms, the sum of all times by events, and the dearest
        of them; clocks of the accelerator; simulator (`plans.simulated_and_measured`), once plans were measured.
    """
    ends = time.monotonic() + settings["seconds"]
    step = resolve(name)
    program = capture(step, kind="cuda")
    ways = Ways(program, device, settings["repetitions"], settings["seconds"] * WAYS_SHARE)
    written = as_written(step, device)
    ways.add(WRITTEN, lambda: written)
    ways.add(GRAPH, partial(one_graph, written, device))
    row: dict[str, Any] = {"nodes": program.num_nodes, "tf32": torch.backends.cudnn.allow_tf32}
    row["wrong"] = differs_from_host(program, device) or ""
    ways.time([WRITTEN, GRAPH])
    yield row | ways.record()
    if settings["lanes"]:
        times = event_times_us(program, device)
        row |= {"operations_ms": float(times.sum()) / 1e3, "dearest": dearest(program, times)}
    for count in settings["lanes"]:
        executor = lanes_of(task_of(program, device, count, times), program)
        ways.add(f"{count} lanes", lambda made=executor: made.run)
        ways.add(f"{count} lanes, graph", partial(recorded_run, executor))
    if settings["lanes"]:
        ways.time(list(ways.rows), anew=True)
        yield row | ways.record()
    if settings["plans"]:
        most, seconds = max(settings["lanes"]), settings["seconds"] * PLANS_SHARE
        seconds = min(seconds, ends - time.monotonic())
        row["simulator"] = simulated_and_measured(
            program, task_of(program, device, most, times), settings["plans"], seconds
        )
        yield row | ways.record()
    for mode in settings["modes"]:
        way = f"compiled, {mode}"
        ways.add(way, partial(whole, program, device, mode))
        ways.time([WRITTEN, GRAPH, way])
        yield row | ways.record()


def whole(program: Program, device: torch.device, mode: str) -> Run:
    """Return a function that runs all operations of a program on a device, compiled together in its first run.

    Args:
        program: operations that name a device get this one.
        device: for inputs and constants.
        mode: of `torch.compile`: 'default', 'reduce-overhead' or 'max-autotune'.
    """
    function = torch.compile(module_on(program, device), mode=mode)
    inputs = [value.detach().to(device) for value in program.inputs]
    on_cpu = device.type == "cpu"
    for value in () if on_cpu else inputs:  # else modes that record graphs copy all of them in every run
        torch._dynamo.mark_static_address(value)

    def run() -> list[Any]:
        with torch.no_grad(), compiled_by_threads() if on_cpu else nullcontext():
            return list(function(*inputs))

    return run


class Ways:
    """Runs one workload in several variants, compares each with op-by-op execution there, and times them alternately.

    Args:
        program: the workload.
        device: where.
        repetitions: of each way.
        seconds: after which no other round of timing begins.

    Attributes:
        runs: what runs each way that is right.
        rows: for each way median_ms, low_ms and high_ms, None if it is not timed, and the reason. One that was timed
            later has beside_ms, the medians of those that took turns with it.
    """

    def __init__(self, program: Program, device: torch.device, repetitions: int, seconds: float) -> None:
        self.runs: dict[str, Run] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self._clocks: Mapping[str, Any] = {}
        self._inputs, self._there = program.inputs, partial(eager, program, device=device)
        self._want = self._there(self._inputs)
        self._measure = partial(measure, repetitions=repetitions, seconds=seconds)
        self._device = device

    def add(self, way: str, make: Callable[[], Run]) -> None:
        """Make a way and run it once; one that cannot be made, or is wrong, has a reason."""
        try:
            run = make()
            reason = differ_beyond_rounding(run(), self._want, self._there, self._inputs) or ""
        except Exception as error:  # whatever operators, graphs and compilers raise
            reason = first_line(error)
        else:
            self.runs[way] = run
        self.rows[way] = {"median_ms": None, "reason": reason}

    def time(self, names: Sequence[str], anew: bool = False) -> None:
        """Time those of some ways that are right; what was timed before keeps its figures, if not `anew`."""
        right = {way: self.runs[way] for way in names if way in self.runs and not self.rows[way]["reason"]}
        measurements, self._clocks = self._measure(right), clocks_of(self._device)
        medians = {way: each.median_ms for way, each in measurements.items()}
        is_timed = {way for way in right if self.rows[way]["median_ms"] is not None and not anew}
        for way, each in measurements.items():
            if way not in is_timed:
                self.rows[way] = {
                    "median_ms": each.median_ms, "low_ms": each.low_ms, "high_ms": each.high_ms, "reason": each.reason,
                }  # fmt: skip
                if is_timed:
                    self.rows[way]["beside_ms"] = {other: medians[other] for other in medians if other != way}

    def record(self) -> dict[str, Any]:
        """The ways and the clocks, as they are now."""
        return {"ways": {way: dict(each) for way, each in self.rows.items()}, "clocks": dict(self._clocks)}


def recorded_run(executor: LaneExecutor) -> Run:
    """Return the executor that replays streams as recorded graphs of the accelerator.

    Raises:
        ValueError: they cannot be recorded.
    """
    graph = LaneGraph(executor)
    if graph.reason:
        raise ValueError(graph.reason)
    return graph.run


def dearest(program: Program, times_us: np.ndarray) -> list[list[Any]]:
    """The operations that take longest, and their microseconds."""
    nodes = np.argsort(-times_us)[:DEAREST]
    return [[str(program.operations[node].target), round(float(times_us[node]), 2)] for node in nodes]


if __name__ == "__main__":
    print_rows(lambda device: reports(sys.argv[1], json.loads(sys.argv[2]), device))
