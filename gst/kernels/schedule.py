"""List schedules of kernels on streams within a limit of memory, and waits that let buffers share bytes."""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush

import numpy as np
from jaxtyping import Float64, Int64

from gst.kernels.lower import placed_bytes, shared_bytes
from gst.kernels.program import KernelProgram
from gst.lowering.plan import Timeline


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
