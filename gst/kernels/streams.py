"""The number of streams on which the kernels of a step are fastest: list schedules in limited memory, compared."""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

from gst.execution.measure import is_faster, measure
from gst.kernels.lower import layout, placed_bytes, shared_bytes, stream_program
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run, kernel_times_us
from gst.lowering.plan import Timeline
from gst.lowering.stream_program import StreamProgram
from gst.util.recording import is_here
from gst.util.untrusted import first_line


def upward_ranks(program: KernelProgram, times_us: Float64[np.ndarray, " kernels"]) -> Float64[np.ndarray, " kernels"]:
    """Return the time of the longest chain of calls from the beginning of each to the end of the step."""
    ranks = times_us.astype(np.float64)
    producers, consumers = program.dependencies
    for edge in np.argsort(-producers, kind="stable").tolist():
        producer = producers[edge]
        ranks[producer] = max(ranks[producer], times_us[producer] + ranks[consumers[edge]])
    return ranks


def list_schedule(
    program: KernelProgram, times_us: Float64[np.ndarray, " kernels"], num_streams: int, most_bytes: float = np.inf,
    window: int | None = None,
) -> Timeline:  # fmt: skip
    """Schedule calls by upward rank; a call whose buffers would take more than `most_bytes` waits for others to end.

    Where only such calls are left, the first of them in the order of the program runs all the same, so the limit may be
    exceeded.

    Args:
        times_us: of each call alone.
        most_bytes: of buffers in use at once.
        window: no call begins before all are done that come as many calls or more before it in the program: programs
            hold the least memory in their own order. No limit if None.
    """
    count = program.num_kernels
    ahead = count if window is None else window
    buffers = _Buffers(program)
    consumers: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for producer, consumer in program.dependencies.T.tolist():
        consumers[producer].append(consumer)
        waiting[consumer] += 1
    by_rank = np.lexsort((np.arange(count), -upward_ranks(program, times_us)))
    place = np.argsort(by_rank).tolist()
    ready = sorted(place[call] for call in range(count) if not waiting[call])
    begin, end, stream = np.zeros(count), np.zeros(count), np.zeros(count, np.int64)
    running: list[tuple[float, int]] = []
    idle, done, first, now = list(range(num_streams)), [False] * count, 0, 0.0
    while ready or running:
        calls = (int(by_rank[each]) for each in ready) if idle else iter(())
        chosen = next((call for call in calls if call < first + ahead and buffers.fit(call, most_bytes)), None)
        if chosen is None and not running:
            chosen = min(int(by_rank[each]) for each in ready)
        if chosen is not None:
            ready.remove(place[chosen])
            buffers.take(chosen)
            stream[chosen], begin[chosen], end[chosen] = idle.pop(0), now, now + times_us[chosen]
            heappush(running, (float(end[chosen]), chosen))
            continue
        now, call = heappop(running)
        idle.append(int(stream[call]))
        buffers.release(call)
        done[call] = True
        while first < count and done[first]:
            first += 1
        for each in consumers[call]:
            waiting[each] -= 1
            if not waiting[each]:
                insort(ready, place[each])
    return Timeline(stream, begin, end)


class _Buffers:
    """Bytes of the buffers in use while calls begin and end; results stay."""

    def __init__(self, program: KernelProgram) -> None:
        used = {storage: calls for storage, calls in program.users.items() if storage not in program.beforehand}
        self._bytes = {storage: int(program.storage_bytes[storage]) for storage in used}
        self._left = {storage: len(calls) + (storage in program.results) for storage, calls in used.items()}
        self._of: list[list[int]] = [[] for _ in range(program.num_kernels)]
        for storage, calls in used.items():
            for call in calls:
                self._of[call].append(storage)
        self._taken: set[int] = set()
        self._total = 0

    def fit(self, call: int, most_bytes: float) -> bool:
        more = sum(self._bytes[each] for each in self._of[call] if each not in self._taken)
        return not more or self._total + more <= most_bytes

    def take(self, call: int) -> None:
        for each in self._of[call]:
            if each not in self._taken:
                self._taken.add(each)
                self._total += self._bytes[each]

    def release(self, call: int) -> None:
        for each in self._of[call]:
            self._left[each] -= 1
            if not self._left[each]:
                self._total -= self._bytes[each]


def reuse(
    program: KernelProgram, begin_us: Float64[np.ndarray, " kernels"], end_us: Float64[np.ndarray, " kernels"]
) -> Int64[np.ndarray, "2 pairs"]:
    """Return pairs (call, call that waits for it) under which buffers share bytes as a schedule lets them.

    A buffer takes bytes that another has left before, by the times of the schedule: with these waits that holds in
    every run, and the run that keeps those times does not wait longer.
    """
    placed, size = program.placed, placed_bytes(program)
    users = [np.array(program.users.get(storage, []), np.int64) for storage in placed.tolist()]
    begin = np.array([begin_us[calls].min(initial=np.inf) for calls in users])
    end = np.array([end_us[calls].max(initial=-np.inf) for calls in users])
    end[np.isin(placed, list(program.results))] = np.inf
    before = end[:, None] <= begin[None, :]
    start = shared_bytes(size, before | before.T)
    meets = (start[:, None] < (start + size)[None, :]) & (start[None, :] < (start + size)[:, None])
    pairs = {
        (one, other)
        for early, late in np.argwhere(meets & before).tolist()
        for one in users[early].tolist()
        for other in users[late].tolist()
    }
    return np.array(sorted(pairs), np.int64).reshape(-1, 2).T


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
