"""Checker of stream programs: no two steps race, no lane waits for ever, and a bound of the memory that a run takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from jaxtyping import Int64

from gst.lowering.happens_before import Accesses, Clocks, RaceError, accesses_of, happens_before
from gst.lowering.stream_program import RUN, StreamProgram
from gst.util.compiled import compiled


@dataclass(frozen=True)
class Checked:
    """Memory of a program that is free of races.

    Args:
        peak_bytes: for each memory a bound of the bytes that values and running groups take at any moment of any run,
            see `peaks`.
        resident_bytes: bytes of inputs and constants in each memory.
    """

    peak_bytes: dict[str, int]
    resident_bytes: dict[str, int]


def check(program: StreamProgram) -> Checked:
    """Prove that every run of a program computes the same, and bound the memory that a run can take.

    In every memory each value is written once and freed at most once; reads happen after the write and before the free;
    results are there at the end; events are recorded once; no lanes wait for each other; and each buffer is given back
    by one step.

    Raises:
        RaceError: one of these does not hold.

    Examples:
        >>> from gst.lowering.stream_program import example
        >>> check(example()).peak_bytes
        {'host': 8, 'gpu': 16}
    """
    clocks = happens_before(program)
    accesses = accesses_of(program)
    _check_values(program, clocks, accesses)
    peak = peaks(program, clocks, accesses)
    resident = np.bincount(program.residents[1], program.resident_bytes.astype(np.float64), len(program.memories))
    return Checked(
        dict(zip(program.memories, peak.tolist(), strict=True)),
        dict(zip(program.memories, resident.astype(np.int64).tolist(), strict=True)),
    )


def _check_values(program: StreamProgram, clocks: Clocks, accesses: Accesses) -> None:
    writer, read, freed = accesses.writer, accesses.read, accesses.freed

    def words(value: int) -> str:
        node, memory = divmod(int(accesses.keys[value]), len(program.memories))
        return f"value {node} in {program.memories[memory]}"

    place = program.place_words
    again = np.flatnonzero(writer[accesses.written] != accesses.writers)
    if again.size:
        value, step = accesses.written[again[0]], int(accesses.writers[again[0]])
        by = "is there from the start" if writer[value] == -1 else f"is written by {place(int(writer[value]))}"
        raise RaceError(f"{words(value)}: {place(step)} writes it, and it {by}")
    for values, steps, verb in ((read, accesses.readers, "reads"), (freed, accesses.frees, "frees")):
        never = np.flatnonzero(writer[values] == -2)
        if never.size:
            raise RaceError(
                f"{words(values[never[0]])}: {place(int(steps[never[0]]))} {verb} it, and no step writes it"
            )
        made = np.flatnonzero(writer[values] >= 0)
        early = made[~clocks.before(writer[values[made]], steps[made])]
        if early.size:
            value, step = values[early[0]], int(steps[early[0]])
            raise RaceError(
                f"{words(value)}: {place(step)} {verb} it, and nothing makes it wait for {place(int(writer[value]))}, "
                "which writes it"
            )
    free_of = np.full(len(writer), -1)
    free_of[freed] = accesses.frees
    again = np.flatnonzero(free_of[freed] != accesses.frees)
    if again.size:
        value, step = freed[again[0]], int(accesses.frees[again[0]])
        raise RaceError(f"{words(value)}: {place(step)} and {place(int(free_of[value]))} free it")
    inputs = np.flatnonzero(accesses.resident[freed])
    if inputs.size:
        step = int(accesses.frees[inputs[0]])
        raise RaceError(f"{words(freed[inputs[0]])}: {place(step)} frees it, which belongs to the caller")
    with_free = np.flatnonzero(free_of[read] >= 0)
    late = with_free[~clocks.before(accesses.readers[with_free], free_of[read[with_free]])]
    if late.size:
        value, step = read[late[0]], int(accesses.readers[late[0]])
        raise RaceError(
            f"{words(value)}: {place(step)} reads it, and nothing makes {place(int(free_of[value]))}, which frees it, "
            "wait for that"
        )
    results = np.searchsorted(accesses.keys, program.results[0] * len(program.memories) + program.results[1])
    for value in results[(writer[results] == -2) | (free_of[results] >= 0)].tolist():
        done = "no step writes it" if writer[value] == -2 else f"{place(int(free_of[value]))} frees it"
        raise RaceError(f"{words(value)} is a result, and {done}")


# Memory ---------------------------------------------------------------------------------------------------------------


def peaks(program: StreamProgram, clocks: Clocks, accesses: Accesses) -> Int64[np.ndarray, " memories"]:
    """Return for each memory a bound of the bytes taken there at any moment of any run that the events allow.

    It is exact where all steps that use a memory are in one order.

    A step *requests* the buffers that it makes, and the bytes that its group takes while it runs; these it *releases*
    when it ends. The last free of a buffer releases that. Each request is served by bytes of releases that happen
    before it, each byte once. The volume of requests that no release serves bounds the bytes of every moment: requests
    at one moment cannot serve each other (the easy half of Dilworth's theorem with weights).

    Raises:
        RaceError: the step that takes or gives back a buffer differs from run to run.
    """
    count = len(program.memories)
    home = np.searchsorted(accesses.keys, program.made[0] * count + program.made[1])
    is_made = np.isin(program.made[0] * count + program.made[1], accesses.keys)
    owner, buffer = np.repeat(np.arange(len(home)), np.diff(program.holds.bounds)), program.holds.items
    exists = is_made[owner]
    owner, buffer = owner[exists], buffer[exists]
    value = home[owner]
    is_written = accesses.writer[value] >= 0
    value, buffer, owner = value[is_written], buffer[is_written], owner[is_written]
    free_of = np.full(len(accesses.keys), -1)
    free_of[accesses.freed] = accesses.frees
    first = _extreme(program, clocks, buffer, accesses.writer[value], "takes", last=False)
    lives = np.zeros(len(program.buffer_bytes), bool)
    lives[buffer[free_of[value] < 0]] = True
    freed = ~lives[buffer]
    last = _extreme(program, clocks, buffer[freed], free_of[value[freed]], "gives back", last=True)
    memory_of = np.zeros(len(program.buffer_bytes), np.int64)
    memory_of[buffer] = program.made[1][owner]
    taken, returned = np.flatnonzero(first >= 0), np.flatnonzero(last >= 0)
    runs = np.flatnonzero(program.kind == RUN)
    transient = program.transient_bytes[program.argument[runs]]
    run_memory = program.lane_memory[clocks.lane[runs]]
    result = np.zeros(count, np.int64)
    for memory in range(count):
        mine, theirs = taken[memory_of[taken] == memory], returned[memory_of[returned] == memory]
        here = run_memory == memory
        requests = np.zeros(program.num_steps, np.int64)
        np.add.at(requests, first[mine], program.buffer_bytes[mine])
        np.add.at(requests, runs[here], transient[here])
        releases = np.zeros(program.num_steps, np.int64)
        np.add.at(releases, last[theirs], program.buffer_bytes[theirs])
        np.add.at(releases, runs[here], transient[here])
        result[memory] = _peak(clocks, requests, releases)
    return result


def _extreme(
    program: StreamProgram,
    clocks: Clocks,
    buffer: Int64[np.ndarray, " holds"],
    step: Int64[np.ndarray, " holds"],
    verb: str,
    last: bool,
) -> Int64[np.ndarray, " buffers"]:
    """Return for each buffer the first or the last of its steps, equal in every run; -1 without any."""
    result = np.full(len(program.buffer_bytes), -1)
    order = np.argsort(clocks.when[step], kind="stable")
    if not last:
        order = order[::-1]
    result[buffer[order]] = step[order]
    others = np.flatnonzero(result[buffer] != step)
    pairs = (step[others], result[buffer[others]])
    ordered = clocks.before(*pairs) if last else clocks.before(*pairs[::-1])
    if not ordered.all():
        one, other = int(pairs[0][~ordered][0]), int(pairs[1][~ordered][0])
        raise RaceError(
            f"{program.place_words(one)} and {program.place_words(other)} are in no order, and which of them {verb} "
            "the memory that their values share differs from run to run"
        )
    return result


def _peak(clocks: Clocks, requests: Int64[np.ndarray, " steps"], releases: Int64[np.ndarray, " steps"]) -> int:
    """Return the bytes of requests that no earlier release serves, see `peaks`."""
    wanting = np.flatnonzero(requests)
    wanting = wanting[np.argsort(clocks.when[wanting], kind="stable")]
    giving = np.flatnonzero(releases)  # steps of one lane are neighbours, in its order
    lanes = np.unique(clocks.lane[giving])
    start = np.searchsorted(clocks.lane[giving], np.append(lanes, clocks.clocks.shape[1]))
    usable = np.zeros((len(wanting), len(lanes)), np.int64)
    for column, lane in enumerate(lanes.tolist()):
        positions = clocks.position[giving[start[column] : start[column + 1]]]
        usable[:, column] = start[column] + np.searchsorted(positions, clocks.taken(wanting, lane))
    own = np.searchsorted(lanes, clocks.lane[wanting])
    own[own == len(lanes)] = 0
    return int(_unserved(requests[wanting], releases[giving], usable, start, own))


@compiled
@no_type_check
def _unserved(requests, releases, usable, start, own):
    """Return the bytes of requests that earlier releases do not serve. The latest release serves first: the earlier
    ones are of use to more requests.

    Args:
        requests, releases: bytes of each, in an order that the events allow, and lane by lane.
        usable: (requests, lanes); the releases of a lane from `start` to here may serve the request.
        own: lane of each request.
    """
    left, total, lanes = releases.copy(), 0, usable.shape[1]
    earlier = np.arange(-1, len(releases))  # skips releases that are used up
    for request in range(len(requests)):
        missing = requests[request]
        for turn in range(lanes):
            lane = (own[request] + turn) % lanes
            low = start[lane]
            at = usable[request, lane]  # one more than the release
            while missing > 0:
                root = at
                while root > low and left[root - 1] == 0:
                    root = earlier[root]
                while at > root:  # shorten the way for those who come later
                    shorter = earlier[at]
                    earlier[at] = root
                    at = shorter
                if at == low:
                    break
                moved = min(missing, left[at - 1])
                missing -= moved
                left[at - 1] -= moved
        total += missing
    return total
