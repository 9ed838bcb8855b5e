"""The number of streams on which the kernels of a step are fastest, within a limit of memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from gst.execution.measure import is_faster, measure
from gst.kernels.lower import layout, stream_program
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run, kernel_times_us
from gst.kernels.schedule import list_schedule, reuse, upward_ranks
from gst.lowering.plan import Timeline
from gst.lowering.stream_program import StreamProgram
from gst.util.recording import is_here
from gst.util.untrusted import first_line

COUNTS = (2, 4, 8, 16)  # of streams that are tried
MEMORY = 1.25  # times the memory of the step on one stream, at most, with its state and batch
LIMITS = (np.inf, 1.0, 0.8)  # shares of the bytes for buffers that schedules keep to
WINDOWS = (1, 4, 8, 16)  # shares of the program, as divisors, that schedules look ahead
RUNS = 15  # of each number of streams, alternating
NARROW = 0.98  # of the simulated time with fewer streams: more that gain less are not measured


def lowered(program: KernelProgram, schedule: Timeline) -> StreamProgram:
    """Return the stream program of a schedule; buffers share bytes as its times let them."""
    pairs = reuse(program, schedule.begin_us, schedule.end_us)
    return stream_program(program, schedule.device, np.argsort(schedule.order), pairs)


def within_memory(
    program: KernelProgram, times_us: Float64[np.ndarray, " kernels"], num_streams: int, most_bytes: float
) -> tuple[Timeline, StreamProgram]:
    """Return the shortest list schedule whose buffers take no more than `most_bytes`; if none does, the one that takes
    least."""
    schedules = [
        list_schedule(program, times_us, num_streams, share * most_bytes, -(-program.num_kernels // divisor))
        for share in LIMITS
        for divisor in WINDOWS
    ]
    least: tuple[Timeline, StreamProgram] | None = None
    least_bytes = math.inf
    for schedule in sorted(schedules, key=lambda each: each.makespan_us):
        streams = lowered(program, schedule)
        size = layout(program, streams).size
        if size < least_bytes:
            least, least_bytes = (schedule, streams), size
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
        figures: `kernels`, `critical_path_us`, `sum_us`, `given_bytes` of inputs and constants, `best` number of
            streams, by number of streams `ms`, `simulated_ms` and the `bytes` of buffers, or the `reason` why it was
            not tried.
    """

    run: Run
    call: Callable[[], list[Any]]
    figures: dict[str, Any] = field(default_factory=dict)


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
    times_us = kernel_times_us(single)
    results = {1: OnStreams(single, record(single))}
    streams: dict[int, dict[str, Any]] = {1: {"simulated_ms": times_us.sum() / 1e3, "bytes": single.places.size}}
    given_bytes = sum(int(program.storage_bytes[storage]) for storage in program.beforehand)
    least_ms, most_bytes = streams[1]["simulated_ms"], MEMORY * (given_bytes + single.places.size) - given_bytes
    for count in counts:
        if time.perf_counter() - started > seconds:
            streams[count] = {"reason": "left out: no time to try it"}
            continue
        schedule, issued = within_memory(program, times_us, count, most_bytes)
        simulated_ms = schedule.makespan_us / 1e3
        streams[count] = {"simulated_ms": simulated_ms}
        if simulated_ms > NARROW * least_ms:
            streams[count]["reason"] = "left out: in simulation not faster than fewer streams"
            continue
        least_ms = simulated_ms
        try:
            run = Run(program, issued, given)
            results[count] = OnStreams(run, record(run))
            streams[count]["bytes"] = run.places.size
        except RuntimeError as error:  # memory is short
            streams[count]["reason"] = first_line(error)
    measured = measure({str(count): each.call for count, each in results.items()}, RUNS, 2)
    best = 1
    for count in results:
        streams[count]["ms"] = measured[str(count)].median_ms
        if is_faster(measured[str(count)], measured[str(best)]):
            best = count
    figures = {
        "kernels": program.num_kernels, "sum_us": float(times_us.sum()),
        "critical_path_us": float(upward_ranks(program, times_us).max(initial=0.0)), "given_bytes": given_bytes,
        "streams": streams, "best": best,
    }  # fmt: skip
    return OnStreams(results[best].run, results[best].call, figures)
