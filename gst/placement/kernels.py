"""Kernels of a compiled step as a task, and the number of streams on which they are fastest.

The devices of the task are streams of one accelerator; its operations are kernels with their measured times. Baselines,
searches, policies and the simulator take it as they take any other task.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from gst.execution.costs import Costs
from gst.execution.lanes import is_here
from gst.execution.measure import measure
from gst.graphs.graph import Graph
from gst.kernels.kept import kept_times_us
from gst.kernels.lower import layout, storages_of, stream_program
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run
from gst.kernels.schedule import list_schedule, reuse, upward_ranks
from gst.lowering.plan import Plan, Timeline, priority_of, ranks
from gst.lowering.stream_program import StreamProgram
from gst.machine.devices import Device
from gst.placement.baselines.list_schedules import etf, heft
from gst.placement.machines import STREAMS
from gst.placement.task import Task
from gst.programs.features import FEATURE_NAMES, NUM_OPCODES
from gst.whole_model.choosing import is_faster

COUNTS = (2, 4, 8, 16)  # of streams that are tried
MEMORY = 1.25  # times the memory of the step on one stream, at most, with its state and batch
LIMITS = (np.inf, 1.0, 0.8)  # shares of the bytes for buffers that schedules keep to
WINDOWS = (1, 4, 8, 16)  # shares of the program, as divisors, that schedules look ahead
RUNS = 15  # of each number of streams, alternating
NARROW = 0.98  # of the simulated time with fewer streams: more that gain less are not measured


def kernel_task(program: KernelProgram, times_us: Float64[np.ndarray, " kernels"], num_streams: int) -> Task:
    """Return the task of putting kernels on streams of their device.

    Args:
        times_us: of each kernel alone, see `gst.kernels.run.kernel_times_us`.
    """
    name, count = str(program.device), program.num_kernels
    name = name if ":" in name else f"{name}:0"
    names = [name, *(f"{name}/stream:{number}" for number in range(1, num_streams))]
    devices = tuple(Device(each, program.device.type, (), 1, name, "a stream") for each in names)
    graph = Graph(_features(program), program.dependencies, _opcodes(program), name=program.name)
    costs = Costs(
        devices, program.dependencies, np.ones(count, bool), program.returns, np.tile(times_us, (num_streams, 1)),
        program.written_bytes, np.tile(program.written_bytes, (num_streams, 1)), storages_of(program),
        np.zeros((num_streams,) * 2), np.full((num_streams,) * 2, np.inf),
    )  # fmt: skip
    return Task(
        program.name, graph, costs, np.arange(count), np.zeros(count, np.int64), STREAMS, assigned_key=program.key
    )


def _features(program: KernelProgram) -> Float32[np.ndarray, "kernels features"]:
    """Return the features of a program's operations (`FEATURE_NAMES`) that kernels have too; others are 0."""
    features = np.zeros((program.num_kernels, len(FEATURE_NAMES)), np.float32)
    column = {name: number for number, name in enumerate(FEATURE_NAMES)}
    edges, count = program.dependencies, program.num_kernels
    features[:, column["log_output_bytes"]] = np.log1p(program.written_bytes)
    features[:, column["log_input_bytes"]] = np.log1p(program.read_bytes)
    features[:, column["is_operation"]] = 1
    features[:, column["is_elementwise"]] = [kernel.kind == "generated" for kernel in program.kernels]
    features[:, column["log_in_degree"]] = np.log1p(np.bincount(edges[1], minlength=count))
    features[:, column["log_out_degree"]] = np.log1p(np.bincount(edges[0], minlength=count))
    return features


def _opcodes(program: KernelProgram) -> Int64[np.ndarray, " kernels"]:
    numbers = {name: number for number, name in enumerate(sorted({each.name for each in program.kernels}))}
    return np.array([numbers[each.name] % NUM_OPCODES for each in program.kernels], np.int64)


def critical_path_us(program: KernelProgram, times_us: Float64[np.ndarray, " kernels"]) -> float:
    """Return the time of the longest chain of kernels: no number of streams is faster, if none slows another.

    Examples:
        >>> from gst.kernels.recording import kernel_program
        >>> from gst.programs import as_module, capture_module
        >>> import torch
        >>> step = capture_module(torch.nn.ReLU(), (torch.ones(4),))
        >>> critical_path_us(kernel_program(as_module(step), step.inputs), np.array([2.5]))
        2.5
    """
    return float(upward_ranks(program, times_us).max(initial=0.0))


def lowered(program: KernelProgram, plan: Plan, timeline: Timeline | None = None) -> StreamProgram:
    """Return the stream program of a plan of `kernel_task`.

    Args:
        timeline: of the plan, simulated; buffers share bytes as its times let them (`gst.kernels.schedule.reuse`).
    """
    if timeline is None:
        return stream_program(program, plan.placement, ranks(plan))
    rank = np.argsort(timeline.order)
    return stream_program(program, plan.placement, rank, reuse(program, timeline.begin_us, timeline.end_us))


def within_memory(task: Task, program: KernelProgram, most_bytes: float) -> tuple[Plan, Timeline, StreamProgram]:
    """Return the plan of least simulated time, of list schedules, whose buffers take no more than `most_bytes`; if none
    does, the one that takes least.

    Args:
        task: of the program, see `kernel_task`.
    """
    times_us, count = task.times_us[0], len(task.devices)
    plans = [plan for plan in (etf(task), heft(task)) if plan is not None]
    for share in LIMITS:
        for divisor in WINDOWS:
            found = list_schedule(program, times_us, count, share * most_bytes, -(-program.num_kernels // divisor))
            plans.append(task.plan(found.stream, priority_of(np.lexsort((found.end_us, found.begin_us)))))
    runs = [(task.simulator.run(plan), plan) for plan in {plan.key: plan for plan in plans}.values()]
    least: tuple[Plan, Timeline, StreamProgram] | None = None
    least_bytes = math.inf
    for timeline, plan in sorted(runs, key=lambda run: run[0].makespan_us):
        streams = lowered(program, plan, timeline)
        size = layout(program, streams).size
        if size < least_bytes:
            least, least_bytes = (plan, timeline, streams), size
        if size <= most_bytes:
            break
    assert least is not None
    return least


@dataclass(frozen=True, eq=False)
class OnStreams:
    """A step on the number of streams that is fastest.

    Args:
        run: the run of it, with its memory.
        call: runs it, and returns the flat outputs, which the next call overwrites.
        task, plan: of its streams; None on one stream of a CPU.
        figures: `kernels`, `critical_path_us`, `sum_us`, `times_are_kept` (they were measured in an earlier search),
            and by number of streams `ms`, `simulated_ms`, `bytes`, or
            `reason` why it was not tried; `best` is the number that was chosen.
    """

    run: Run
    call: Callable[[], list[Any]]
    task: Task | None = None
    plan: Plan | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def kernel_words(figures: Mapping[str, Any]) -> str:
    """Say what kernels on streams take, by number of streams, with the memory that more streams cost.

    Examples:
        >>> streams = {1: {"ms": 2.0, "bytes": 100}, 2: {"ms": 1.5, "bytes": 120}, 4: {"reason": "left out"}}
        >>> print(kernel_words({"kernels": 9, "critical_path_us": 900.0, "best": 2, "streams": streams}))
        9 kernels on streams, no less than 0.90 ms on any number of them:
          1: 2.00 ms
          2: 1.50 ms, 1.20 times the memory of buffers (taken)
          4: left out
    """
    if "streams" not in figures:
        return f"{figures['kernels']} kernels, in order"
    least_ms = figures["critical_path_us"] / 1e3
    kept = " (kernel times of an earlier search)" if figures.get("times_are_kept") else ""
    lines = [f"{figures['kernels']} kernels on streams, no less than {least_ms:.2f} ms on any number of them{kept}:"]
    one = next(iter(figures["streams"].values()))
    for count, each in figures["streams"].items():
        if "ms" not in each:
            lines.append(f"  {count}: {each['reason']}")
            continue
        memory = f", {each['bytes'] / max(one['bytes'], 1):.2f} times the memory of buffers" if each is not one else ""
        lines.append(f"  {count}: {each['ms']:.2f} ms{memory}{' (taken)' if int(count) == figures['best'] else ''}")
    return "\n".join(lines)


class StreamSearch:
    """Puts kernels on streams by `on_streams`, and keeps what it found.

    Attributes:
        found: the last result; None before a call.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self.found: OnStreams | None = None

    def __call__(self, program: KernelProgram, given: Sequence[Tensor]) -> Callable[[], list[Any]]:
        self.found = on_streams(program, given, self.seconds)
        return self.found.call


def on_streams(
    program: KernelProgram, given: Sequence[Tensor] | None = None, seconds: float = math.inf,
    record: Callable[[Run], Callable[[], list[Any]]] | None = None, counts: Sequence[int] = COUNTS,
) -> OnStreams:  # fmt: skip
    """Find the fastest number of streams: list schedules by measured kernel times, recorded and timed alternately.

    More streams win only if they are faster beyond noise. On a CPU all kernels run on one, in order: they use its cores
    themselves.

    Args:
        given: memory of the flat inputs, see `gst.kernels.run.Run`.
        seconds: no further number of streams is tried after them.
        record: records a run; `Run.recorded` if None.
        counts: numbers of streams beyond one.
    """
    started, single = time.perf_counter(), Run(program, given=given)
    if record is None and not is_here(program.device):
        return OnStreams(single, single, figures={"kernels": program.num_kernels, "best": 1})
    record = record or Run.recorded
    times_us, is_kept = kept_times_us(single)
    found = {1: OnStreams(single, record(single), kernel_task(program, times_us, 1))}
    streams: dict[int, dict[str, Any]] = {1: {"simulated_ms": times_us.sum() / 1e3, "bytes": single.places.size}}
    least_ms, most_bytes = streams[1]["simulated_ms"], _most_bytes(program, single.places.size)
    for count in counts:
        if time.perf_counter() - started > seconds:
            streams[count] = {"reason": "left out: no time to try it"}
            continue
        task = kernel_task(program, times_us, count)
        plan, timeline, issued = within_memory(task, program, most_bytes)
        simulated_ms = timeline.makespan_us / 1e3
        streams[count] = {"simulated_ms": simulated_ms}
        if simulated_ms > NARROW * least_ms:
            streams[count]["reason"] = "left out: in simulation not faster than fewer streams"
            continue
        least_ms = simulated_ms
        try:
            run = Run(program, issued, given)
            found[count] = OnStreams(run, record(run), task, plan)
            streams[count]["bytes"] = run.places.size
        except RuntimeError as error:  # memory is short
            streams[count]["reason"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    measured = measure({str(count): each.call for count, each in found.items()}, RUNS, 2)
    best = 1
    for count in found:
        streams[count]["ms"] = measured[str(count)].median_ms
        if is_faster(measured[str(count)], measured[str(best)]):
            best = count
    figures = {
        "kernels": program.num_kernels, "sum_us": float(times_us.sum()), "times_are_kept": is_kept,
        "critical_path_us": critical_path_us(program, times_us), "live_bytes": single.places.live_bytes,
        "streams": streams, "best": best,
    }  # fmt: skip
    chosen = found[best]
    return OnStreams(chosen.run, chosen.call, chosen.task, chosen.plan, figures)


def _most_bytes(program: KernelProgram, one_bytes: int) -> float:
    """Return the bytes that buffers may take on several streams, if they take `one_bytes` on one."""
    given = sum(int(program.storage_bytes[storage]) for storage in program.beforehand)
    return MEMORY * (one_bytes + given) - given
