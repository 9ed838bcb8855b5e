"""Recording of streams as one graph, on stand-ins of an accelerator's streams and graph."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.kernels.lower import run_steps, stream_program
from gst.kernels.run import Run
from gst.lowering.happens_before import happens_before
from gst.lowering.plan import WAIT
from tests.execution.recorded import Recorder
from tests.kernels.made import by_hand, fresh_inputs, random_program


class CountedStream:
    """A stream that keeps a count of what it was told, and the clocks of what it waits for."""

    made: list[CountedStream]

    def __init__(self, device: torch.device) -> None:
        self.made.append(self)
        self.waits = self.records = 0
        self.known = {id(self)}

    def record_event(self) -> set[int]:
        self.records += 1
        return set(self.known)

    def wait_event(self, event: set[int]) -> None:
        self.waits += 1
        self.known |= event


@settings(max_examples=6)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_a_replay_computes_anew_what_was_recorded(seed: int, num_streams: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 20)
    streams = stream_program(program, rng.integers(0, num_streams, 20), rng.permutation(20))
    CountedStream.made, recorder = [], Recorder()
    inputs = fresh_inputs(program)
    run = Run(program, streams, inputs)
    replay = run.recorded(recorder, CountedStream)
    for place, value in zip(inputs, fresh_inputs(program), strict=True):
        place.copy_(value)
    recorder.graphs[0].spoil()
    for place, value in zip(inputs, fresh_inputs(program), strict=True):
        place.copy_(value)
    for one, other in zip(replay(), by_hand(program), strict=True):
        assert torch.equal(one, other)
    lanes = CountedStream.made
    assert len(lanes) == len(streams.lanes)
    assert all(id(lanes[0]) in each.known for each in lanes), "every stream begins after the first"
    assert lanes[0].known == set(map(id, lanes)), "the first ends after every stream"
    joins = 2 * (len(lanes) - 1)
    assert sum(each.waits for each in lanes) == int((streams.kind == WAIT).sum()) + joins


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_memory_of_operators_is_released_when_its_stream_knows_that_nobody_reads_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 30)
    streams = stream_program(program, rng.integers(0, 3, 30), rng.permutation(30))
    run = Run(program, streams, fresh_inputs(program))
    clocks, steps = happens_before(streams), run_steps(streams)
    released = run._releases()
    for step, storages in released.items():
        for storage in storages:
            users = [
                int(steps[call])
                for call, kernel in enumerate(program.kernels)
                if storage in {region.storage for region in (*kernel.reads, *kernel.writes)}
            ]
            maker = next(call for call, kernel in enumerate(program.kernels) if storage in kernel.makes)
            assert clocks.lane[step] == clocks.lane[steps[maker]] and storage not in program.results
            assert clocks.before(np.array(users), np.full(len(users), step)).all()
