"""The number of streams on which the kernels of a step are fastest, within a limit of memory."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

from gst.execution.measure import is_faster, measure
from gst.kernels.lower import layout, stream_program
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run, kernel_times_us
from gst.kernels.schedule import critical_path, list_schedule, reuse
from gst.lowering.plan import Timeline
from gst.lowering.stream_program import StreamProgram
from gst.machine.devices import machine_folder
from gst.util.recording import is_here
from gst.util.untrusted import first_line, read_object
from gst.util.writing import atomic_write

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


def _bars_of(schedule: Timeline, path: Int64[np.ndarray, " path"]) -> dict[str, Any]:
    """Return the bars of a schedule for `gst.reporting.timeline`: stream, begin and end in ms, kind of each call."""
    is_other = np.ones(len(schedule.device), np.int64)
    is_other[path] = 0
    columns = schedule.device, np.round(schedule.begin_us / 1e3, 6), np.round(schedule.end_us / 1e3, 6), is_other
    bars = [list(bar) for bar in zip(*(column.tolist() for column in columns), strict=True)]
    return {"kinds": ["on the critical path", "other kernels"], "bars": bars}


@dataclass(frozen=True, eq=False)
class OnStreams:
    """A step on the number of streams that is fastest.

    Args:
        run: the run of it, with its memory.
        call: runs it, and returns the flat outputs, which the next call overwrites.
        figures: `kernels`, `critical_path_us`, `sum_us`, `times_are_kept` (they were measured in an earlier search),
            `given_bytes` of inputs and constants, `best` number of streams, by number of streams `ms`,
            `simulated_ms` and the `bytes` of buffers, or the `reason` why it was not tried; and `timeline`, the
            schedule taken, by the times of kernels alone.
    """

    run: Run
    call: Callable[[], list[Any]]
    figures: dict[str, Any] = field(default_factory=dict)


def kernel_words(figures: Mapping[str, Any]) -> str:
    """Say what kernels on streams take, by number of streams, with the memory that more streams cost.

    Examples:
        >>> streams = {1: {"ms": 2.0, "bytes": 100}, 2: {"ms": 1.5, "bytes": 120}, 4: {"reason": "left out"}}
        >>> figures = {"kernels": 9, "critical_path_us": 900, "given_bytes": 100, "best": 2, "streams": streams}
        >>> print(kernel_words(figures))
        9 kernels on streams, no less than 0.90 ms on any number of them:
          1: 2.00 ms
          2: 1.50 ms, 1.10 times the memory (taken)
          4: left out
    """
    if "streams" not in figures:
        return f"{figures['kernels']} kernels, in order"
    least_ms = figures["critical_path_us"] / 1e3
    source = " (kernel times of an earlier search)" if figures.get("times_are_kept") else ""
    lines = [f"{figures['kernels']} kernels on streams, no less than {least_ms:.2f} ms on any number of them{source}:"]
    whole = [figures["given_bytes"] + each.get("bytes", 0) for each in figures["streams"].values()]
    for size, (count, each) in zip(whole, figures["streams"].items(), strict=True):
        if "ms" not in each:
            lines.append(f"  {count}: {each['reason']}")
            continue
        memory = f", {size / max(whole[0], 1):.2f} times the memory" if int(count) > 1 else ""
        lines.append(f"  {count}: {each['ms']:.2f} ms{memory}{' (taken)' if int(count) == figures['best'] else ''}")
    return "\n".join(lines)


class StreamSearch:
    """Puts kernels on streams by `on_streams`, and keeps the result.

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
    times_us, is_stored = stored_times_us(single)
    results = {1: OnStreams(single, record(single))}
    ends_us = times_us.cumsum()
    schedules = {1: Timeline(np.zeros(program.num_kernels, np.int64), ends_us - times_us, ends_us)}
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
            results[count], schedules[count] = OnStreams(run, record(run)), schedule
            streams[count]["bytes"] = run.places.size
        except RuntimeError as error:  # memory is short
            streams[count]["reason"] = first_line(error)
    measured = measure({str(count): each.call for count, each in results.items()}, RUNS, 2)
    best = 1
    for count in results:
        streams[count]["ms"] = measured[str(count)].median_ms
        if is_faster(measured[str(count)], measured[str(best)]):
            best = count
    path = critical_path(program, times_us)
    figures = {
        "kernels": program.num_kernels, "sum_us": float(times_us.sum()), "times_are_kept": is_stored,
        "critical_path_us": float(times_us[path].sum()), "given_bytes": given_bytes,
        "live_bytes": single.places.live_bytes, "streams": streams, "best": best,
        "timeline": _bars_of(schedules[best], path),
    }  # fmt: skip
    return OnStreams(results[best].run, results[best].call, figures)


def stored_times_us(run: Run) -> tuple[Float64[np.ndarray, " kernels"], bool]:
    """Return the microseconds of each call alone, and True if this machine measured them before; else measure them."""
    path = machine_folder("kernels") / f"{run.program.key}.json"
    if (times_us := _read_times(path, run.program.num_kernels)) is not None:
        return times_us, True
    times_us = kernel_times_us(run)
    with atomic_write(path) as file:
        json.dump({"times_us": times_us.tolist()}, file)
    return times_us, False


def _read_times(path: Path, count: int) -> Float64[np.ndarray, " kernels"] | None:
    """Read times; None without a file, and of one that holds anything else."""
    try:
        times_us = np.array(read_object(path)["times_us"], np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_sound = times_us.shape == (count,) and np.isfinite(times_us).all() and (times_us > 0).all()
    return times_us if is_sound else None
