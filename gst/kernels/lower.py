"""Kernel programs on streams: a plan -> a stream program, and the place of each buffer in one piece of memory.

Buffers share bytes where all calls that use the one are done before any that uses the other, whatever the timing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from gst.kernels.program import KernelProgram
from gst.lowering.calls import Storages
from gst.lowering.common_order import Work
from gst.lowering.happens_before import happens_before
from gst.lowering.lower import lowered
from gst.lowering.stream_program import RUN, Ints, StreamProgram

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
