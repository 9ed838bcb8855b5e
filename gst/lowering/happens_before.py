"""Order of the steps of a stream program: clocks, accesses to values, and stretches that can be recorded as one graph.

The vector clock of a step counts, for every lane, the steps that happen before it (Fidge, 1988; Mattern, 1989). Events
are recorded once, so one walk over the program gives all clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from gst.lowering.stream_program import COPY, FREE, RECORD, RUN, WAIT, Ints, Rows, StreamProgram, rows
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


# Stretches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches of a stream program, in an order in which they can run: the work of one memory between two rounds of
    copies, or all copies that leave it in a round. There are as few rounds as the program allows.

    Args:
        of_step: stretch of each step.
        round: of each stretch; even for computations, odd for copies.
        memory: of each stretch: where it computes, or from where it copies.
        steps: of each stretch, in an order in which one thread can issue them.
        needs: earlier stretches that must be done before each one begins.
    """

    of_step: Int64[np.ndarray, " steps"]
    round: Int64[np.ndarray, " stretches"]
    memory: Int64[np.ndarray, " stretches"]
    steps: Rows
    needs: Rows

    @property
    def is_copy(self) -> Bool[np.ndarray, " stretches"]:
        return self.round % 2 == 1


def stretches(streams: StreamProgram, last: Ints | None = None) -> Stretches:
    """Cut a stream program into stretches. Waits belong to the step that they delay, records to the step before them.

    Args:
        streams: the stream program.
        last: memories that come last in each round, such as that of the host, whose thread launches the others' work.

    Raises:
        RaceError: lanes wait for each other, or an event is recorded twice or never.

    Examples:
        >>> from gst.lowering.stream_program import example
        >>> stretches(example()).of_step.tolist()  # x is made on the host, copied, and y made of it
        [0, 0, 1, 1, 1, 2, 3, 3, 3]
    """
    lane, order = streams.lane_of_step, np.argsort(happens_before(streams).when, kind="stable")
    memory = streams.lane_memory[lane]
    records = np.flatnonzero(streams.kind == RECORD)
    recorder = np.full(streams.num_events, -1)
    recorder[streams.argument[records]] = records
    awaited = np.full(streams.num_steps, -1)
    is_wait = streams.kind == WAIT
    awaited[is_wait] = recorder[streams.argument[is_wait]]
    before = np.arange(streams.num_steps) - 1
    before[streams.bounds[:-1][np.diff(streams.bounds) > 0]] = -1
    turn = _rounds(order, before, awaited, _parity(streams), memory)
    goes_last = np.zeros(len(streams.memories), np.int64)
    if last is not None:
        goes_last[last] = 1
    key = np.stack([turn, goes_last[memory], memory])
    kinds, of_step = np.unique(key, axis=1, return_inverse=True)
    of_step = of_step.reshape(-1).astype(np.int64)
    count = kinds.shape[1]
    pairs = np.stack([np.tile(of_step, 2), of_step[np.concatenate([before, awaited])]])
    pairs = pairs[:, (np.concatenate([before, awaited]) >= 0) & (pairs[0] != pairs[1])]
    needs = np.unique(pairs, axis=1) if pairs.size else pairs
    return Stretches(of_step, kinds[0], kinds[2], rows(of_step[order], order, count), rows(needs[0], needs[1], count))


def _parity(streams: StreamProgram) -> Ints:
    """Return 1 for copies, their waits and their records; 0 for all other steps."""
    index, lane = np.arange(streams.num_steps), streams.lane_of_step
    is_action = (streams.kind != WAIT) & (streams.kind != RECORD)
    copies = (streams.kind == COPY).astype(np.int64)
    first, last = streams.bounds[:-1][lane], streams.bounds[1:][lane]
    previous = np.maximum.accumulate(np.where(is_action, index, -1))
    following = np.minimum.accumulate(np.where(is_action, index, streams.num_steps)[::-1])[::-1]
    padded = np.append(copies, 0)
    behind = np.where(previous >= first, padded[previous], 0)
    ahead = np.where(following < last, padded[following], 0)
    return np.where(streams.kind == RECORD, behind, np.where(streams.kind == WAIT, ahead, copies))


@compiled
@no_type_check
def _rounds(order, before, awaited, parity, memory):
    """Return the first round of its parity for each step in which its needs are done: the step before it on its lane,
    and the record that it waits for; -1 for none. `order` is one in which the steps can happen."""
    turn = np.zeros(len(order), np.int64)
    for step in order:
        least = parity[step]
        if before[step] >= 0:
            least = max(least, turn[before[step]])
        if awaited[step] >= 0:
            record = awaited[step]
            least = max(least, turn[record] + (memory[record] != memory[step]))
        turn[step] = least + (least - parity[step]) % 2
    return turn


def inner_steps(streams: StreamProgram, cut: Stretches, stretch: int) -> Ints:
    """Return the steps of a stretch without waits for other stretches, and without records for which only others
    wait."""
    _, steps = cut.steps.of(np.array([stretch]))
    kind, event = streams.kind[steps], streams.argument[steps]
    inner = np.intersect1d(event[kind == RECORD], event[kind == WAIT])
    return steps[((kind != RECORD) & (kind != WAIT)) | np.isin(event, inner)]
