"""Kernel programs on streams: a plan -> a stream program, the place of each buffer in memory, and their proof.

Buffers share bytes where all calls that use the one are done before any that uses the other, whatever the timing. The
proof is written apart from the lowering and the layout, which it checks: it compares all accesses pair by pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from gst.kernels.program import KernelProgram
from gst.lowering.calls import Storages
from gst.lowering.common_order import Work
from gst.lowering.happens_before import Clocks, RaceError, happens_before
from gst.lowering.lower import lowered
from gst.lowering.plan import RUN, Ints, StreamProgram

ALIGNMENT = 512  # bytes, as PyTorch's allocator on CUDA


def storages_of(program: KernelProgram) -> Storages:
    """Return the storages that a run takes memory for, with the calls that write them."""
    taken = [*program.placed.tolist(), *sorted(program.made_by_calls)]
    number = {storage: position for position, storage in enumerate(taken)}
    holds = [
        (number[storage], call)
        for call, kernel in enumerate(program.kernels)
        for storage in dict.fromkeys(region.storage for region in kernel.writes)
        if storage in number
    ]
    pairs = np.array(holds, np.int64).reshape(-1, 2).T
    made_by = np.zeros(len(taken), np.int64)
    made_by[pairs[0, ::-1]] = pairs[1, ::-1]  # the first writer
    return Storages(program.storage_bytes[taken], made_by, pairs)


def stream_program(
    program: KernelProgram, stream: Int64[np.ndarray, " kernels"], rank: Int64[np.ndarray, " kernels"] | None = None,
    also: Int64[np.ndarray, "2 pairs"] | None = None,
) -> StreamProgram:  # fmt: skip
    """Put each call on a stream, with the waits that its dependencies need and others do not imply.

    Args:
        stream: of each call.
        rank: of two calls that can run, the one of least rank comes first; by the order of the program if None.
        also: further pairs (call, call that waits for it).
    """
    count = program.num_kernels
    rank = np.arange(count) if rank is None else np.argsort(np.argsort(rank, kind="stable"), kind="stable")
    size = int(stream.max(initial=0)) + 1
    edges = program.dependencies
    if also is not None and also.size:
        edges = np.unique(np.concatenate([edges, also], axis=1), axis=1)
    work = Work(
        edges, np.arange(count), stream.astype(np.int64), rank.astype(np.int64), np.full(count, -1),
        np.flatnonzero(program.returns), program.written_bytes, np.zeros(count, np.int64), storages_of(program),
    )  # fmt: skip
    names = [f"stream {number}" for number in range(size)]
    return lowered(work, [str(program.device)], names, np.zeros(size, np.int64))


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of buffers in one piece of memory.

    Args:
        start: first byte of each storage; -1 for those that are given or that calls allocate.
        size: of the piece, in bytes.
    """

    start: Int64[np.ndarray, " storages"]
    size: int


def run_steps(streams: StreamProgram) -> Ints:
    """Return the step that runs each call."""
    steps = np.flatnonzero(streams.kind == RUN)
    at = np.empty(len(steps), np.int64)
    at[streams.argument[steps]] = steps
    return at


def layout(program: KernelProgram, streams: StreamProgram) -> Layout:
    """Place the buffers of a program, the largest first, each at the lowest bytes that no buffer in use with it takes
    (greedy by size: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, section 4.2).
    """
    placed, size = program.placed, placed_bytes(program)
    users = [program.users.get(storage, []) for storage in placed.tolist()]
    stays = np.isin(placed, list(program.results))
    start = np.full(len(program.storage_bytes), -1)
    start[placed] = begin = shared_bytes(size, _never_together(streams, users, stays))
    return Layout(start, int((begin + size).max(initial=0)))


def placed_bytes(program: KernelProgram) -> Ints:
    """Return the bytes of the storages that a run has to place, as multiples of `ALIGNMENT`."""
    return -(-program.storage_bytes[program.placed] // ALIGNMENT) * ALIGNMENT


def shared_bytes(size: Ints, apart: Bool[np.ndarray, "placed placed"]) -> Ints:
    """Return the first byte of each buffer, in one piece of memory.

    Args:
        size: of each buffer.
        apart: True for pairs that may share bytes.

    Examples:
        >>> shared_bytes(np.array([512, 1024, 512]), np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)).tolist()
        [0, 0, 512]
    """
    begin, order = np.zeros(len(size), np.int64), np.argsort(-size, kind="stable")
    for position, each in enumerate(order.tolist()):
        others = order[:position]
        others = others[~apart[each, others]]
        others = others[np.argsort(begin[others], kind="stable")]
        ends = np.maximum.accumulate(np.append(0, begin[others] + size[others]))
        fits = np.flatnonzero(np.append(begin[others], np.iinfo(np.int64).max) - ends >= size[each])
        begin[each] = ends[fits[0]]
    return begin


def _never_together(
    streams: StreamProgram, users: list[list[int]], stays: Bool[np.ndarray, " placed"]
) -> Bool[np.ndarray, "placed placed"]:
    """Mark pairs of storages of which one is done with before the other is first used, in every run. Results last."""
    clocks, steps = happens_before(streams), run_steps(streams)
    lanes, count = len(streams.lanes), len(users)
    last = np.full((count, lanes), -1)  # position of the last user on each stream
    ended = np.full((count, lanes), np.iinfo(np.int64).max)  # steps of each stream before every user
    for each, calls in enumerate(users):
        at = steps[calls]
        np.maximum.at(last[each], clocks.lane[at], clocks.position[at])
        steps_before = np.stack([clocks.taken(at, lane) for lane in range(lanes)], axis=1)
        ended[each] = steps_before.min(0, initial=np.iinfo(np.int64).max)
    before = np.ones((count, count), bool)
    for lane in range(lanes):
        before &= last[:, None, lane] < ended[None, :, lane]
    before[stays] = False
    return before | before.T


# Proof ----------------------------------------------------------------------------------------------------------------


def check(program: KernelProgram, streams: StreamProgram, places: Layout) -> int:
    """Prove that calls which meet in a byte that one of them writes run in the order of the program.

    Buffers that share bytes are never in use together, and no stream waits for ever.

    Returns:
        The number of pairs of accesses that were compared.

    Raises:
        RaceError: one of these does not hold; the message names the two calls.
    """
    clocks, steps = happens_before(streams), run_steps(streams)
    if len(steps) != program.num_kernels:
        raise RaceError(f"{len(steps)} of {program.num_kernels} calls run")
    call, storage, start, stop, writes = _accesses(program)
    compared = 0
    for each in np.unique(storage).tolist():
        at = np.flatnonzero(storage == each)
        one, other = np.triu_indices(len(at), 1)
        one, other = at[one], at[other]
        meets = (start[one] < stop[other]) & (start[other] < stop[one]) & (writes[one] | writes[other])
        meets &= call[one] != call[other]
        compared += int(meets.sum())
        _require_order(program, clocks, steps, call[one[meets]], call[other[meets]], f"storage {each}")
    for first, second in _sharing(program, places):
        users = [np.unique(call[storage == each]) for each in (first, second)]
        if not _is_before(clocks, steps, *users):
            users.reverse()
            first, second = second, first
        result = first in program.results
        if result or not _is_before(clocks, steps, *users):
            what = f"storage {first} is a result" if result else "nothing keeps their calls apart"
            raise RaceError(f"storages {first} and {second} share bytes, and {what}")
        compared += len(users[0]) * len(users[1])
    return compared


def _accesses(program: KernelProgram) -> tuple[Ints, Ints, Ints, Ints, np.ndarray]:
    """Return call, storage, first byte, byte behind the last, and kind of each access."""
    accesses = [
        (call, *region, is_write)
        for call, kernel in enumerate(program.kernels)
        for regions, is_write in ((kernel.reads, False), (kernel.writes, True))
        for region in regions
    ]
    call, storage, start, stop, writes = np.array(accesses, np.int64).reshape(-1, 5).T
    return call, storage, start, stop, writes.astype(bool)


def _require_order(program: KernelProgram, clocks: Clocks, steps: Ints, one: Ints, other: Ints, where: str) -> None:
    first, second = np.minimum(one, other), np.maximum(one, other)
    wrong = np.flatnonzero(~clocks.before(steps[first], steps[second]))
    if wrong.size:
        a, b = int(first[wrong[0]]), int(second[wrong[0]])
        names = f"call {a} ({program.kernels[a].name}) and call {b} ({program.kernels[b].name})"
        raise RaceError(f"{names} meet in {where}, and nothing makes the second wait for the first")


def _sharing(program: KernelProgram, places: Layout) -> list[tuple[int, int]]:
    """Return pairs of storages that share bytes of the one piece of memory."""
    placed = program.placed
    begin, end = places.start[placed], places.start[placed] + program.storage_bytes[placed]
    if (begin < 0).any() or end.max(initial=0) > places.size:
        raise RaceError("a buffer has no place in the memory of the run")
    pairs = []
    for each in range(len(placed)):
        others = np.flatnonzero((begin[each + 1 :] < end[each]) & (begin[each] < end[each + 1 :])) + each + 1
        pairs += [(int(placed[each]), int(placed[other])) for other in others]
    return pairs


def _is_before(clocks: Clocks, steps: Ints, first: Ints, second: Ints) -> bool:
    """True if all of the first calls are done before any of the second begins."""
    one, other = np.repeat(first, len(second)), np.tile(second, len(first))
    return bool(clocks.before(steps[one], steps[other]).all())
