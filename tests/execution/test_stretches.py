"""Laws of stretches: each step in one, in an order that is a run, copies apart from computations, as few rounds as can
be; and a program that waits for whole stretches computes the same."""

from dataclasses import replace

import numpy as np
import pytest

from gst.execution.lane_graphs import Stretches, inner_steps, stretches
from gst.execution.lanes import LaneExecutor
from gst.lowering.happens_before import check, happens_before
from gst.lowering.plan import COPY, RECORD, RUN, WAIT, StreamProgram, example
from gst.programs import Program, outputs_differ
from tests.execution.test_lanes import eager
from tests.lowering.test_stream_program import lanes_of, random_streams


def cut_of(program: Program, seed: int, memories: int = 3, lanes: int = 2) -> tuple[StreamProgram, Stretches]:
    streams = random_streams(program, np.random.default_rng(seed), memories, lanes)
    return streams, stretches(streams, np.array([memories - 1]))


def recorder_of(streams: StreamProgram) -> dict[int, int]:
    records = np.flatnonzero(streams.kind == RECORD)
    return dict(zip(streams.argument[records].tolist(), records.tolist(), strict=True))


def test_every_step_is_in_one_stretch_of_its_memory_and_copies_are_apart(program: Program) -> None:
    for seed in range(4):
        streams, cut = cut_of(program, seed)
        assert (np.sort(cut.steps.items) == np.arange(streams.num_steps)).all()
        assert all((cut.of_step[steps] == number).all() for number, steps in enumerate(cut.steps.lists()))
        assert (cut.memory[cut.of_step] == streams.lane_memory[streams.lane_of_step]).all()
        is_action = ~np.isin(streams.kind, (RECORD, WAIT))
        assert (cut.is_copy[cut.of_step] == (streams.kind == COPY))[is_action].all()
        key = np.stack([cut.round, cut.memory == 2, cut.memory])
        assert (np.lexsort(key[::-1]) == np.arange(len(cut.round))).all()  # the memory named last is last in its round


def test_no_stretch_waits_for_a_later_one_and_those_of_a_round_know_nothing_of_each_other(program: Program) -> None:
    for seed in range(4):
        streams, cut = cut_of(program, seed)
        recorder, needs = recorder_of(streams), cut.needs.lists()
        for lane in range(len(streams.lanes)):  # stretches of a lane are in its order
            assert (np.diff(cut.of_step[streams.bounds[lane] : streams.bounds[lane + 1]]) >= 0).all()
        for step in np.flatnonzero(streams.kind == WAIT).tolist():
            mine, other = int(cut.of_step[step]), int(cut.of_step[recorder[int(streams.argument[step])]])
            assert other == mine or (cut.round[other] < cut.round[mine] and other in needs[mine])


def test_stretches_in_their_order_are_a_run_that_gives_the_outputs_of_the_program(program: Program) -> None:
    for seed in range(2):
        streams, cut = cut_of(program, seed, 3, 2)
        executor = LaneExecutor(program, streams, lanes_of(3, 2), cut.steps.items)
        assert outputs_differ(executor.run(), eager(program)) is None


def test_lanes_that_wait_for_whole_stretches_alone_do_not_race(program: Program) -> None:
    """Events between stretches are replaced by one of each lane of a stretch, for which each lane of those that need it
    waits: the checker finds no race, and outputs are those of the program."""
    streams, cut = cut_of(program, 5, 2, 2)
    by_stretches = with_stretch_events(streams, cut)
    assert check(by_stretches).peak_bytes
    assert outputs_differ(LaneExecutor(program, by_stretches, lanes_of(2, 2)).run(), eager(program)) is None


def with_stretch_events(streams: StreamProgram, cut: Stretches) -> StreamProgram:
    lane_of, inner = streams.lane_of_step, {}
    kept = set(np.concatenate([inner_steps(streams, cut, each) for each in range(len(cut.round))]).tolist())
    kept |= set(np.flatnonzero(streams.kind == COPY).tolist())
    lanes_in = [sorted(set(lane_of[steps].tolist())) for steps in cut.steps.lists()]
    event = streams.num_events
    for stretch, lanes in enumerate(lanes_in):
        for lane in lanes:
            inner[stretch, lane] = event
            event += 1
    rows: list[list[tuple[int, int, int]]] = []
    for lane in range(len(streams.lanes)):
        mine: list[tuple[int, int, int]] = []
        for stretch in [each for each, lanes in enumerate(lanes_in) if lane in lanes]:
            for need in cut.needs.lists()[stretch]:
                mine += [(WAIT, inner[need, other], -1) for other in lanes_in[need] if other != lane]
            steps = [step for step in cut.steps.lists()[stretch] if lane_of[step] == lane and step in kept]
            mine += [(int(streams.kind[s]), int(streams.argument[s]), int(streams.target[s])) for s in steps]
            mine.append((RECORD, inner[stretch, lane], -1))
        rows.append(mine)
    number: dict[int, int] = {}
    flat = [
        (k, number.setdefault(a, len(number)) if k in (RECORD, WAIT) else a, t) for mine in rows for k, a, t in mine
    ]
    kind, argument, target = np.array(flat, np.int64).T
    bounds = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return replace(streams, bounds=bounds, kind=kind.copy(), argument=argument.copy(), target=target.copy())


def test_there_are_as_few_rounds_as_the_longest_chain_of_exchanges(program: Program) -> None:
    streams, cut = cut_of(program, 6)
    recorder = recorder_of(streams)
    longest = np.zeros(streams.num_steps, np.int64)  # copies in a row, one needing what was computed from another
    for step in np.argsort(happens_before(streams).when).tolist():
        lane_start = step in streams.bounds[:-1]
        before = [] if lane_start else [step - 1]
        before += [recorder[int(streams.argument[step])]] if streams.kind[step] == WAIT else []
        longest[step] = max([longest[each] for each in before], default=0)
        if streams.kind[step] == COPY:
            separate = [each for each in before if streams.kind[each] != COPY]
            longest[step] = max([longest[each] for each in separate], default=0) + 1
    assert len(set(cut.round[cut.is_copy].tolist())) <= longest.max()


def test_an_exchange_cuts_a_program() -> None:
    cut = stretches(example())
    assert cut.round.tolist() == [0, 1, 2, 2] and cut.is_copy.tolist() == [False, True, False, False]
    assert inner_steps(example(), cut, 3).tolist() == [7, 8]  # its wait is for the copy


@pytest.mark.parametrize("lanes", [1, 4])
def test_lanes_of_one_memory_are_one_stretch(program: Program, lanes: int) -> None:
    streams = random_streams(program, np.random.default_rng(7), 1, lanes)
    cut = stretches(streams)
    assert len(cut.round) == 1 and cut.needs.lists() == [[]]
    waits = (streams.kind == WAIT).sum()
    inner = inner_steps(streams, cut, 0)
    assert len(inner) == streams.num_steps and waits == (streams.kind[inner] == WAIT).sum()
    assert (streams.kind == RUN).sum() > 1
