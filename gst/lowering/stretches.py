"""Stretches of a stream program: what one memory does between two exchanges with others, so that it is one graph there.

Copies and computations alternate. A stretch is all that the lanes of one memory compute between two rounds of copies,
or all copies that leave one memory in a round. Stretches in their order are a run of the program: a lane waits only for
what is in its own stretch or in one of an earlier round. There are as few rounds as the program allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Int64

from gst.lowering.race_check import happens_before
from gst.lowering.stream_program import COPY, RECORD, WAIT, Ints, Rows, StreamProgram, rows
from gst.util.compiled import compiled


@dataclass(frozen=True, eq=False)
class Stretches:
    """Every step of a stream program in one stretch; stretches are numbered in an order in which they can run.

    Args:
        of_step: stretch of each step.
        round: of each stretch; even for computations, odd for copies.
        memory: of each stretch: where it computes, or from where it copies.
        steps: of each stretch, in an order in which one thread can issue them.
        needs: earlier stretches for each, which must be done before it begins.
    """

    of_step: Int64[np.ndarray, " steps"]
    round: Int64[np.ndarray, " stretches"]
    memory: Int64[np.ndarray, " stretches"]
    steps: Rows
    needs: Rows

    @property
    def is_copy(self) -> Bool[np.ndarray, " stretches"]:
        """Whether a stretch copies from its memory to others."""
        return self.round % 2 == 1


def stretches(streams: StreamProgram, last: Ints | None = None) -> Stretches:
    """Cut a stream program. Waits belong to the step that they hold up, records to the step that they tell of.

    Args:
        streams: what is cut.
        last: memories that come last in each round, such as that of the host, whose thread hands the others their work.

    Raises:
        RaceError: lanes wait for each other, or an event is recorded twice or never.

    Examples:
        >>> from gst.lowering.stream_program import example
        >>> cut = stretches(example())  # x is made on the host, copied, and y made of it
        >>> cut.of_step.tolist(), cut.round.tolist(), cut.memory.tolist(), cut.needs.lists()
        ([0, 0, 1, 1, 1, 2, 3, 3, 3], [0, 1, 2, 2], [0, 0, 0, 1], [[], [0], [1], [1]])
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
    return Stretches(
        of_step, kinds[0], kinds[2], rows(of_step[order], order, count), rows(needs[0], needs[1], count)
    )  # fmt: skip


def _parity(streams: StreamProgram) -> Ints:
    """1 for copies, their waits and their records; 0 for all other steps."""
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
    """The first round of its parity for each step in which all that it needs is done: what stands before it on its
    lane, and the record that it waits for. Within a round only steps of one memory and parity know of each other.

    Args:
        order: of the steps, in which they can happen.
        before: step before each on its lane, -1 for none.
        awaited: record for which each step waits, -1 for none.
        parity: of each step.
        memory: of each step.
    """
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
    """Steps of a stretch without waits for other stretches, and without records for which only others wait.

    Examples:
        >>> from gst.lowering.stream_program import example
        >>> inner_steps(example(), stretches(example()), 0).tolist()  # the record is for the lane of copies
        [0]
    """
    steps = cut.steps.items[cut.steps.bounds[stretch] : cut.steps.bounds[stretch + 1]]
    kind, event = streams.kind[steps], streams.argument[steps]
    inner = np.intersect1d(event[kind == RECORD], event[kind == WAIT])
    return steps[((kind != RECORD) & (kind != WAIT)) | np.isin(event, inner)]
