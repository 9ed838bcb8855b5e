"""Checker of stream programs: that no two steps race, that no lane waits for ever, and the most memory a run can take.

A step happens before another if it stands before it on its lane, or before the record of an event that is waited for
before the other: the vector clock of a step says of every lane how many of its steps happen before (Fidge, 1988;
Mattern, 1989). Events are recorded once and are never reset, so which steps are taken does not depend on the order in
which lanes advance, and one walk over the program finds all clocks. What one run may do and another may not is decided
by this order alone: two steps without it take place in either order in some run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Int64

from gst.lowering.stream_program import COPY, FREE, RECORD, RUN, WAIT, Rows, StreamProgram
from gst.util.compiled import compiled


class RaceError(RuntimeError):
    """A stream program whose outcome depends on luck, or which never ends. The message names the two steps."""


@dataclass(frozen=True)
class Checked:
    """What the checker knows of a program that is free of races.

    Args:
        peak_bytes: for each memory the most bytes that values made by the run, and groups while they run, take there at
            any moment of any run that the events allow; see `peaks`.
        resident_bytes: for each memory what lies there from the beginning to the end: inputs and constants.
    """

    peak_bytes: dict[str, int]
    resident_bytes: dict[str, int]


def check(program: StreamProgram) -> Checked:
    """Prove that every run of a program computes the same, and how much memory a run can take.

    In every memory each value is written once and freed at most once; every read happens after the write and before the
    free; every result is there at the end; every event is recorded once, and no lanes wait for each other; and each
    buffer is given back by a step that is the same in all runs.

    Raises:
        RaceError: one of these does not hold.

    Examples:
        >>> from gst.lowering.stream_program import example
        >>> check(example()).peak_bytes
        {'host': 8, 'gpu': 16}
        >>> broken = example()
        >>> broken.argument[6] = 0  # `gpu:0` waits for x to be made, but not for its copy
        >>> try:
        ...     check(broken)
        ... except RaceError as error:
        ...     print(str(error).replace(", ", ",\\n"))
        value 1 in gpu: step 1 of gpu:0 (run 2) reads it,
        and nothing makes it wait for step 1 of copies of host (copy 1 to gpu),
        which writes it
    """
    clocks = happens_before(program)
    accesses = _accesses(program)
    _check_values(program, clocks, accesses)
    peak = peaks(program, clocks, accesses)
    resident = np.bincount(program.residents[1], program.resident_bytes.astype(np.float64), len(program.memories))
    return Checked(
        dict(zip(program.memories, peak.tolist(), strict=True)),
        dict(zip(program.memories, resident.astype(np.int64).tolist(), strict=True)),
    )


# Clocks ---------------------------------------------------------------------------------------------------------------


class Clocks(NamedTuple):
    """Vector clocks of the steps of a program. They change where a lane waits, so that one row serves many steps.

    Args:
        lane: of each step.
        position: of each step on its lane.
        row: row of `clocks` of each step.
        clocks: (rows, lanes); how many steps of each other lane have been taken for certain.
        when: place of each step in an order of all steps that the events allow.
    """

    lane: np.ndarray
    position: np.ndarray
    row: np.ndarray
    clocks: np.ndarray
    when: np.ndarray

    def before(self, first: Int64[np.ndarray, " pairs"], second: Int64[np.ndarray, " pairs"]) -> np.ndarray:
        """For pairs of steps whether the first happens before the second in every run."""
        same = self.lane[first] == self.lane[second]
        seen = np.where(same, self.position[second], self.clocks[self.row[second], self.lane[first]])
        return self.position[first] < seen

    def taken(self, steps: Int64[np.ndarray, " steps"], lane: int) -> Int64[np.ndarray, " steps"]:
        """How many steps of a lane happen before each of `steps`."""
        return np.where(self.lane[steps] == lane, self.position[steps], self.clocks[self.row[steps], lane])


def happens_before(program: StreamProgram) -> Clocks:
    """Clocks of all steps.

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
    """Take steps until all are taken or every lane waits: row and time of each step, clocks, and where lanes stand."""
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


# Values ---------------------------------------------------------------------------------------------------------------


class Accesses(NamedTuple):
    """Which step writes, reads and frees which value of which memory; values are numbers in the order of `keys`.

    Args:
        keys: node times the number of memories, plus the memory, of every value; in increasing order.
        writer: step that writes each value, -1 if it is resident, -2 if none does.
        written, writers: value and step of every write.
        read, readers: value and step of every read.
        freed, frees: value and step of every free.
        resident: whether each value is there from the start.
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


def _accesses(program: StreamProgram) -> Accesses:
    count = len(program.memories)
    memory = program.lane_memory[program.lane_of_step]
    runs, copies, frees = (np.flatnonzero(program.kind == kind) for kind in (RUN, COPY, FREE))
    reader, read = _of_groups(program.reads, program.argument[runs])
    writer, written = _of_groups(program.writes, program.argument[runs])
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


def _of_groups(lists: Rows, groups: Int64[np.ndarray, " runs"]) -> tuple[np.ndarray, np.ndarray]:
    """Which run, and which node, of the lists of the groups that are run."""
    sizes = np.diff(lists.bounds)[groups]
    run = np.repeat(np.arange(len(groups)), sizes)
    offset = np.arange(len(run)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return run, lists.items[lists.bounds[groups][run] + offset]


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
    kept = np.flatnonzero(accesses.resident[freed])
    if kept.size:
        step = int(accesses.frees[kept[0]])
        raise RaceError(f"{words(freed[kept[0]])}: {place(step)} frees it, which belongs to the caller")
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
    """For each memory the most bytes taken there at any moment of any run that the events allow, exactly.

    A moment is a set of steps that have begun or ended, with everything that happens before them. A step that makes
    values *requests* their buffers, and what its group takes while it runs, when it begins; the latter it *releases*
    when it ends. A free that is the last of the values of a buffer releases that.
    At a moment D, requests(D) - releases(D) bytes are taken.

    Let each request be served by bytes of releases that happen before it, each byte of a release serving once, as many
    bytes as possible: a transport of greatest volume. Then the peak is what is requested in all minus this volume.
    No moment has more: a request in D is served by releases that happen before it, so that they are in D too; hence
    requests(D) <= releases(D) + what is not served. One moment has as much: start from the requests that are not served
    in full, go from a request to all releases that happen before it, and from a release to all requests that it serves,
    until nothing new is reached. Every release so reached is used up (else more could be served) and serves requests
    so reached alone. So the moment before which exactly the reached requests and what happens before them have begun
    has requests - releases = what is not served. (This is Dilworth's theorem with weights: a chain of the poset "freed
    before the other is made" is bytes that are used again and again, the antichain is what lies there at once.)

    Raises:
        RaceError: which step takes or gives back a buffer differs from run to run.
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
    taken, given = np.flatnonzero(first >= 0), np.flatnonzero(last >= 0)
    runs = np.flatnonzero(program.kind == RUN)
    transient = program.transient_bytes[program.argument[runs]]
    run_memory = program.lane_memory[clocks.lane[runs]]
    result = np.zeros(count, np.int64)
    for memory in range(count):
        mine, theirs = taken[memory_of[taken] == memory], given[memory_of[given] == memory]
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
    """For each buffer the first or the last of its steps, in every run the same; -1 without any."""
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
    """All bytes requested minus those that can be served by earlier releases, see `peaks`."""
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
    unserved, reached, used = _transport(requests[wanting], releases[giving], usable, start, own)
    assert requests[wanting][reached].sum() - releases[giving][used].sum() == unserved, "no moment takes as much"
    return int(unserved)


@compiled
@no_type_check
def _transport(requests, releases, usable, start, own):
    """Serve requests by releases, as many bytes as possible.

    Args:
        requests: bytes of each, in an order that the events allow.
        releases: bytes of each, lane by lane.
        usable: (requests, lanes); the releases of a lane from `start` to here may serve the request.
        start: of each lane among the releases.
        own: lane of each request.

    Returns:
        Bytes not served, and which requests and releases are reached from requests not served in full.
    """
    num_requests, num_releases, lanes = len(requests), len(releases), usable.shape[1]
    unserved, left = requests.copy(), releases.copy()
    # Services: release, request, bytes; those of one release are a linked list.
    room = 4 * (num_requests + num_releases) + 16
    release_of, request_of, amount = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    following, head = np.empty(room, np.int64), np.full(num_releases, -1)
    services = 0
    # At first the latest release serves: the earlier ones are of use to more requests. `earlier` skips what is used up.
    earlier = np.arange(-1, num_releases)
    for request in range(num_requests):
        for turn in range(lanes):
            lane = (own[request] + turn) % lanes
            low = start[lane]
            at = usable[request, lane]  # one more than the release
            while unserved[request] > 0:
                root = at
                while root > low and left[root - 1] == 0:
                    root = earlier[root]
                while at > root:  # shorten the way for those who come later
                    shorter = earlier[at]
                    earlier[at] = root
                    at = shorter
                if at == low:
                    break
                release = at - 1
                moved = min(unserved[request], left[release])
                unserved[request] -= moved
                left[release] -= moved
                if services == room:
                    release_of, request_of, amount, following = _twice(release_of, request_of, amount, following)
                    room *= 2
                release_of[services], request_of[services], amount[services] = release, request, moved
                following[services] = head[release]
                head[release] = services
                services += 1
    reached, used = np.zeros(num_requests, np.bool_), np.zeros(num_releases, np.bool_)
    queue = np.empty(num_requests, np.int64)
    by_service, by_request = np.empty(num_requests, np.int64), np.empty(num_releases, np.int64)
    while True:
        # Search from all requests not served in full to releases that have bytes left.
        reached[:], used[:] = False, False
        seen = start[:-1].copy()
        size = 0
        for request in range(num_requests):
            if unserved[request] > 0:
                queue[size] = request
                reached[request], by_service[request] = True, -1
                size += 1
        at, ends = 0, 0
        while at < size:
            request = queue[at]
            at += 1
            for lane in range(lanes):
                while seen[lane] < usable[request, lane]:
                    release = seen[lane]
                    seen[lane] += 1
                    used[release], by_request[release] = True, request
                    ends += left[release] > 0
                    service = head[release]
                    while service >= 0:
                        other = request_of[service]
                        if amount[service] > 0 and not reached[other]:
                            reached[other], by_service[other] = True, service
                            queue[size] = other
                            size += 1
                        service = following[service]
        if ends == 0:
            break
        for end in range(num_releases):
            if not used[end] or left[end] == 0:
                continue
            moved, release = left[end], end
            while True:
                request = by_request[release]
                if by_service[request] < 0:
                    moved = min(moved, unserved[request])
                    break
                moved = min(moved, amount[by_service[request]])
                release = release_of[by_service[request]]
            if moved == 0:
                continue
            left[end] -= moved
            release = end
            while True:
                request = by_request[release]
                if services == room:
                    release_of, request_of, amount, following = _twice(release_of, request_of, amount, following)
                    room *= 2
                release_of[services], request_of[services], amount[services] = release, request, moved
                following[services] = head[release]
                head[release] = services
                services += 1
                if by_service[request] < 0:
                    unserved[request] -= moved
                    break
                amount[by_service[request]] -= moved
                release = release_of[by_service[request]]
    return unserved.sum(), reached, used


@compiled
@no_type_check
def _twice(release_of, request_of, amount, following):
    """The same arrays with room for as much again."""
    return (
        np.concatenate((release_of, release_of)),
        np.concatenate((request_of, request_of)),
        np.concatenate((amount, amount)),
        np.concatenate((following, following)),
    )
