"""Runs of a kernel program, one call after the other or recorded as one graph, and the fastest number of streams.

All buffers lie in one piece of memory (`Layout`), and all arguments of generated kernels are made once.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from gst.execution.costs import Graphs, call_us, graph_maker, span_us, timing_on
from gst.execution.lanes import issue_order, synchronise
from gst.execution.measure import is_faster, measure
from gst.kernels.lower import Layout, check, layout, placed_bytes, run_steps, shared_bytes, stream_program
from gst.kernels.program import KernelProgram, View, filled, views_in
from gst.lowering.happens_before import happens_before
from gst.lowering.plan import RECORD, RUN, WAIT, StreamProgram, Timeline
from gst.programs.operation import tensors_of
from gst.util.recording import WARM_RUNS, Graph, is_here, new_graph, no_garbage, recorded
from gst.util.untrusted import first_line


class Run:
    """A kernel program under a plan, with memory of its own.

    Args:
        program: the calls.
        streams: the plan, lowered; all calls on one stream if None.
        given: memory of the flat inputs, read and written in place; the recorded inputs if None. Their layout has to be
            that of the recorded ones.

    Attributes:
        inputs: tensors where the inputs are read.

    Raises:
        RaceError: the plan is not proven.
        ValueError: a given input has another layout than the recorded one.
    """

    def __init__(
        self, program: KernelProgram, streams: StreamProgram | None = None, given: Sequence[Tensor] | None = None
    ) -> None:
        self.program = program
        self.streams = streams or stream_program(program, np.zeros(program.num_kernels, np.int64))
        self.places: Layout = layout(program, self.streams)
        check(program, self.streams, self.places)
        self._memory = torch.empty(self.places.size, dtype=torch.uint8, device=program.device).untyped_storage()
        self._given = {storage: (value, 0) for storage, value in program.given.items()}
        for view, tensor in zip(program.inputs, given or (), strict=given is not None):
            if not view.is_like(tensor):
                raise ValueError(
                    f"an input is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}; "
                    f"the step was recorded with {view.dtype} {view.shape} and {view.stride}"
                )
            start = (tensor.storage_offset() - view.offset) * tensor.itemsize
            self._given[view.storage] = tensor.untyped_storage(), int(start)
        self._made: dict[int, Tensor] = {}
        self.inputs = [self._tensor(view) for view in program.inputs]
        self._calls = [self._bound(call) for call in range(program.num_kernels)]
        steps = issue_order(self.streams)
        self._in_order = [self._calls[call] for call in self.streams.argument[steps[self.streams.kind[steps] == RUN]]]
        is_fixed = program.made_by_calls.isdisjoint(program.results)
        self._outputs = self.outputs() if is_fixed else []

    def outputs(self) -> list[Any]:
        """Return the flat outputs, in memory that the next run overwrites."""
        return filled(list(self.program.outputs), self._tensor)

    def __call__(self) -> list[Any]:
        """Run the calls one after the other on the current stream, and return the outputs."""
        with torch.no_grad():
            for call in self._in_order:
                call()
        return self._outputs or self.outputs()

    def issue(self, lanes: Sequence[Stream]) -> None:
        """Launch all calls on streams, which begin after the first stream and end before it continues.

        Memory that an operator allocates is released once its own stream has waited for all who read it, so that the
        allocator of that stream may use it again.
        """
        streams, first = self.streams, lanes[0]
        fork = first.record_event()
        for lane in lanes[1:]:
            lane.wait_event(fork)
        events: dict[int, Any] = {}
        releases = self._releases()
        kinds, arguments, of_step = streams.kind.tolist(), streams.argument.tolist(), streams.lane_of_step.tolist()
        with torch.no_grad():
            for step in issue_order(streams).tolist():
                lane = lanes[of_step[step]]
                if kinds[step] == RUN:
                    for storage in releases.get(step, ()):
                        self._made.pop(storage, None)
                    with lane if isinstance(lane, torch.Stream) else nullcontext():
                        self._calls[arguments[step]]()
                elif kinds[step] == RECORD:
                    events[arguments[step]] = lane.record_event()
                elif kinds[step] == WAIT:
                    lane.wait_event(events[arguments[step]])
        for lane in lanes[1:]:
            first.wait_event(lane.record_event())

    def recorded(
        self, make: Callable[[torch.device, Any], Graph] = new_graph,
        stream: Callable[[torch.device], Stream] = torch.Stream,
    ) -> Callable[[], list[Any]]:  # fmt: skip
        """Record the streams as one graph of the accelerator, and return a function that replays it.

        Raises:
            RuntimeError: an operator does what a graph cannot.
        """
        device = self.program.device
        lanes = [stream(device) for _ in self.streams.lanes]
        for _ in range(WARM_RUNS):  # libraries choose their kernels
            self()
        self._made.clear()
        graph = make(device, None)
        synchronise([device])
        with no_garbage(), lanes[0] if isinstance(lanes[0], torch.Stream) else nullcontext(), recorded(graph):
            self.issue(lanes)
        synchronise([device])
        outputs = self.outputs()

        def replay() -> list[Any]:
            graph.replay()
            return outputs

        return replay

    def _bound(self, number: int) -> Callable[[], None]:
        """Return a function without arguments that makes one call."""
        kernel, own = self.program.kernels[number], self.program.made_by_calls
        call, makes = kernel.call, kernel.makes
        args, kwargs = filled(
            (kernel.args, kernel.kwargs), lambda view: view if view.storage in own else self._tensor(view)
        )
        is_fixed = not views_in((args, kwargs))
        fresh: list[int] = []  # tensors of the result that no argument holds, known from the first call

        def anew() -> None:
            values = (args, kwargs) if is_fixed else filled((args, kwargs), self._tensor)
            result = call(*values[0], **values[1])
            if makes:
                made = tensors_of(result)
                if not fresh:
                    given = {each.untyped_storage().data_ptr() for each in tensors_of(values)}
                    fresh[:] = [n for n, each in enumerate(made) if each.untyped_storage().data_ptr() not in given]
                self._made.update(zip(makes, (made[number] for number in fresh), strict=True))

        return partial(call, *args, **kwargs) if is_fixed and not makes else anew

    def _tensor(self, view: View) -> Tensor:
        if (made := self._made.get(view.storage)) is not None:
            return view.of_storage_of(made)
        if (given := self._given.get(view.storage)) is not None:
            return view.on(given[0], self.program.device, given[1])
        return view.on(self._memory, self.program.device, int(self.places.start[view.storage]))

    def _releases(self) -> dict[int, list[int]]:
        """Return for steps the storages, allocated by operators, whose stream knows there that nobody reads them."""
        program, clocks = self.program, happens_before(self.streams)
        at = run_steps(self.streams)
        steps = np.sort(at)
        users: dict[int, list[int]] = {storage: [] for storage in program.made_by_calls - program.results}
        for call, kernel in enumerate(program.kernels):
            for region in (*kernel.reads, *kernel.writes):
                if region.storage in users:
                    users[region.storage].append(int(at[call]))
        maker = {storage: int(at[call]) for call, kernel in enumerate(program.kernels) for storage in kernel.makes}
        result: dict[int, list[int]] = {}
        for storage, used in users.items():
            own = steps[(clocks.lane[steps] == clocks.lane[maker[storage]]) & (steps > maker[storage])]
            before = np.stack([clocks.before(np.full(len(own), each), own) for each in used]).all(0)
            if before.any():
                result.setdefault(int(own[np.argmax(before)]), []).append(storage)
        return result


class Stream(Protocol):
    """Stream of an accelerator."""

    def record_event(self) -> Any: ...

    def wait_event(self, event: Any) -> Any: ...


def kernel_times_us(run: Run, repetitions: int = 5) -> np.ndarray:
    """Return the least microseconds of each call alone, in runs one after the other; those of one signature share them.

    On a CPU a clock times the calls; on an accelerator events around a graph of each call do
    (`gst.execution.costs`).
    """
    program, device = run.program, run.program.device
    least: dict[Any, float] = {}
    times = np.full(program.num_kernels, np.inf)
    if is_here(device):
        run()
        made = dict(run._made)
        maker = graph_maker(device)
        with timing_on(device):
            graphs = None if maker is None else Graphs(device, maker)
            for number, kernel in enumerate(program.kernels):
                if kernel.signature not in least:
                    least[kernel.signature] = call_us(run._calls[number], device, repetitions, 10, graphs)
                    run._made.update(made)  # those of the recording go with its graph
                times[number] = least[kernel.signature]
        return times
    with torch.no_grad():
        for _ in range(repetitions + 1):
            now = [span_us(call, device) for call in run._calls]
            np.minimum(times, now, out=times)
    for kernel, took_us in zip(program.kernels, times.tolist(), strict=True):
        least[kernel.signature] = min(least.get(kernel.signature, np.inf), took_us)
    return np.array([least[kernel.signature] for kernel in program.kernels])


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
