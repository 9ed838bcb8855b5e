"""Proof that every run of a kernel program on streams computes the same, whatever the timing.

Written apart from the lowering and the layout, which it checks: it compares all accesses pair by pair.
"""

from __future__ import annotations

import numpy as np

from gst.kernels.lower import Layout, run_steps
from gst.kernels.program import KernelProgram
from gst.lowering.happens_before import Clocks, RaceError, happens_before
from gst.lowering.stream_program import Ints, StreamProgram


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
