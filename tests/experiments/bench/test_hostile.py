"""Stream programs under bad luck: outputs are those of the program, and mistakes are not overlooked."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gst.lowering.calls import eager
from gst.lowering.happens_before import RaceError
from gst.lowering.lower import stream_program
from gst.lowering.plan import ExecutionError
from gst.lowering.race_check import check
from gst.lowering.stream_program import WAIT
from gst.programs import WORKLOADS, Program, outputs_differ
from tests.choices import with_rest
from tests.lowering.hostile import hostile_run, verify
from tests.lowering.test_stream_program import allocated, lanes_of, random_plan, random_streams
from tests.programs.small import SMALL, small_program


@pytest.mark.parametrize("name", with_rest(["gpt", "transformer_xl", "wavenet"], ["wavenet"]))
def test_outputs_are_those_of_the_program_whatever_the_luck(name: str) -> None:
    program = small_program(name)
    streams = random_streams(program, np.random.default_rng(0), 2, 2)
    assert outputs_differ(hostile_run(program, streams, 0).outputs, eager(program)) is None


def test_on_one_lane_the_peak_is_what_a_run_takes(program: Program) -> None:
    """Buffers as fake tensors tell are those that a run allocates, byte for byte."""
    devices = lanes_of(1, 1)
    plan = replace(random_plan(program, devices, np.random.default_rng(7)), fusion=None)
    streams = stream_program(program, plan, devices, allocated(program))
    assert hostile_run(program, streams, 0).most_bytes == check(streams).peak_bytes


def test_a_step_can_be_iterated_from_where_its_parameters_are() -> None:
    """New parameters are made where the next step reads them, and inputs of a caller are not changed."""
    program, step = small_program("rnnlm"), WORKLOADS["rnnlm"](**SMALL["rnnlm"])
    streams = random_streams(program, np.random.default_rng(3))
    count = len(step.inputs[0])
    assert set(map(tuple, streams.residents.T.tolist())) >= {
        (int(program.parameter_home[node]), memory)
        for node, memory in streams.results.T.tolist()
        if program.parameter_home[node] in streams.residents[0]
    }
    before = [value.clone() for value in program.inputs]
    inputs, want = list(program.inputs), list(program.inputs)
    for _ in range(3):
        got, expected = hostile_run(program, streams, 1, inputs).outputs, eager(program, want)
        assert outputs_differ(got, expected) is None
        inputs[:count], want[:count] = got[1 : count + 1], expected[1 : count + 1]
    assert all(torch.equal(a, b) for a, b in zip(before, program.inputs, strict=True))


def test_a_race_is_an_error_or_nan_sooner_or_later(program: Program) -> None:
    """Without any waits at all some run touches what is not there."""
    streams = random_streams(program, np.random.default_rng(4), 2, 1)
    keep = np.flatnonzero(streams.kind != WAIT)
    bounds = np.searchsorted(keep, streams.bounds)
    careless = replace(
        streams, bounds=bounds, kind=streams.kind[keep], argument=streams.argument[keep], target=streams.target[keep]
    )
    with pytest.raises(RaceError):
        verify(program, careless)
    with pytest.raises(ExecutionError, match="is not in gpu"):
        for seed in range(20):
            hostile_run(program, careless, seed)
