"""Order of the steps of a stream program by clocks, and what it proves: no two steps race, no lane waits for ever.

The vector clock of a step counts, for every lane, the steps that happen before it (Fidge, 1988; Mattern, 1989). Events
are recorded once, so one walk over the program gives all clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Int64

from gst.lowering.plan import COPY, FREE, RECORD, RUN, WAIT, StreamProgram
from gst.util.compiled import compiled


class RaceError(RuntimeError):
    """Error of a stream program whose outcome depends on timing, or which never ends. The message names the two
    steps."""


class Clocks(NamedTuple):
    """Vector clocks of the steps of a program. They change where a lane waits, so that one row serves many steps.

    Args:
        lane: of each step.
        position: of each step on its lane.
        row: row of `clocks` of each step.
        clocks: (rows, lanes); number of steps of each other lane that have surely been taken.
        when: place of each step in an order of all steps that the events allow.
    """

    lane: np.ndarray
    position: np.ndarray
    row: np.ndarray
    clocks: np.ndarray
    when: np.ndarray

    def before(self, first: Int64[np.ndarray, " pairs"], second: Int64[np.ndarray, " pairs"]) -> np.ndarray:
        """Return for pairs of steps True if the first happens before the second in every run."""
        same = self.lane[first] == self.lane[second]
        count = np.where(same, self.position[second], self.clocks[self.row[second], self.lane[first]])
        return self.position[first] < count

    def taken(self, steps: Int64[np.ndarray, " steps"], lane: int) -> Int64[np.ndarray, " steps"]:
        """Return the number of steps of a lane that happen before each of `steps`."""
        return np.where(self.lane[steps] == lane, self.position[steps], self.clocks[self.row[steps], lane])


def happens_before(program: StreamProgram) -> Clocks:
    """Return the clocks of all steps.

    Raises:
        RaceError: an event is recorded twice or never, or lanes wait for each other.
    """
    records = np.flatnonzero(program.kind == RECORD)
    recorder = np.full(program.num_events, -1)
    recorder[program.argument[records]] = records
    if (twice := records[recorder[program.argument[records]] != records]).size:
        first, second = int(twice[0]), int(recorder[program.argument[twice[0]]])
        raise RaceError(f"{program.place_words(first)} and {program.place_words(second)} record the same event")
    lane = program.lane_of_step
    position = np.arange(program.num_steps) - program.bounds[lane]
    row, clocks, when, next_step = _walk(program.bounds, program.kind, program.argument, program.num_events)
    stuck = np.flatnonzero(next_step < program.bounds[1:])
    if stuck.size:
        waits = [int(next_step[each]) for each in stuck]
        awaited = int(recorder[program.argument[waits[0]]])
        if awaited < 0:
            raise RaceError(f"{program.place_words(waits[0])} waits for ever: no step records the event")
        raise RaceError(
            f"{program.place_words(waits[0])} waits for ever for {program.place_words(awaited)}, which stands behind "
            f"{program.place_words(int(next_step[lane[awaited]]))}"
        )
    return Clocks(lane, position, row, clocks, when)


@compiled
@no_type_check
def _walk(bounds, kind, argument, num_events):
    """Take steps until all are taken or every lane waits."""
    lanes, steps = len(bounds) - 1, len(kind)
    waits = 0
    for step in range(steps):
        waits += kind[step] == WAIT
    clocks = np.zeros((lanes + waits, lanes), np.int32)
    row, when = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    now = np.arange(lanes)
    rows, time = lanes, 0
    next_step = bounds[:-1].copy()
    event_lane = np.full(num_events, -1)
    event_row, event_position = np.zeros(num_events, np.int64), np.zeros(num_events, np.int64)
    advanced = True
    while advanced:
        advanced = False
        for lane in range(lanes):
            while next_step[lane] < bounds[lane + 1]:
                step = next_step[lane]
                if kind[step] == WAIT:
                    event = argument[step]
                    other = event_lane[event]
                    if other < 0:
                        break
                    for each in range(lanes):
                        clocks[rows, each] = max(clocks[now[lane], each], clocks[event_row[event], each])
                    clocks[rows, other] = max(clocks[rows, other], event_position[event] + 1)
                    now[lane] = rows
                    rows += 1
                elif kind[step] == RECORD:
                    event = argument[step]
                    event_lane[event] = lane
                    event_row[event] = now[lane]
                    event_position[event] = step - bounds[lane]
                row[step] = now[lane]
                when[step] = time
                time += 1
                next_step[lane] += 1
                advanced = True
    return row, clocks[:rows], when, next_step


# Accesses -----------------------------------------------------------------------------------------------------------


class Accesses(NamedTuple):
    """Steps that write, read and free each value in each memory; values are numbers in the order of `keys`.

    Args:
        keys: node times the number of memories, plus the memory, of every value; in increasing order.
        writer: step that writes each value, -1 if it is resident, -2 if none does.
        written, writers: value and step of every write.
        read, readers: value and step of every read.
        freed, frees: value and step of every free.
        resident: True for values that are there from the start.
    """

    keys: np.ndarray
    writer: np.ndarray
    written: np.ndarray
    writers: np.ndarray
    read: np.ndarray
    readers: np.ndarray
    freed: np.ndarray
    frees: np.ndarray
    resident: np.ndarray


def accesses_of(program: StreamProgram) -> Accesses:
    count = len(program.memories)
    memory = program.lane_memory[program.lane_of_step]
    runs, copies, frees = (np.flatnonzero(program.kind == kind) for kind in (RUN, COPY, FREE))
    reader, read = program.reads.of(program.argument[runs])
    writer, written = program.writes.of(program.argument[runs])
    read_keys = np.concatenate([read * count + memory[runs[reader]], program.argument[copies] * count + memory[copies]])
    written_keys = np.concatenate(
        [written * count + memory[runs[writer]], program.argument[copies] * count + program.target[copies]]
    )
    freed_keys = program.argument[frees] * count + memory[frees]
    resident_keys = program.residents[0] * count + program.residents[1]
    result_keys = program.results[0] * count + program.results[1]
    keys, inverse = np.unique(
        np.concatenate([read_keys, written_keys, freed_keys, resident_keys, result_keys]), return_inverse=True
    )
    ends = np.cumsum([len(read_keys), len(written_keys), len(freed_keys), len(resident_keys)])
    read, written, freed, residents, _ = np.split(inverse.reshape(-1), ends)
    readers, writers = np.concatenate([runs[reader], copies]), np.concatenate([runs[writer], copies])
    writer_of, resident = np.full(len(keys), -2), np.zeros(len(keys), bool)
    writer_of[written] = writers
    resident[residents] = True
    writer_of[residents] = -1
    return Accesses(keys, writer_of, written, writers, read, readers, freed, frees, resident)


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
        >>> from gst.lowering.plan import example
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
