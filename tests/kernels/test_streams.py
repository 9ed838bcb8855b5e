"""Kernel programs on streams compute the same in every order that the events allow, and every defect is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.execution.lanes import issue_order
from gst.kernels.lower import check, layout, run_steps, stream_program
from gst.kernels.run import Run
from gst.lowering.happens_before import RaceError, happens_before
from gst.lowering.happens_before import check as check_values
from gst.lowering.plan import WAIT, StreamProgram
from tests.kernels.made import by_hand, fresh_inputs, in_order, on_threads, random_program

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 40), st.integers(1, 5))
def test_every_order_on_every_stream_computes_the_same(seed: int, num_calls: int, num_streams: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, num_calls)
    want = by_hand(program)
    streams = stream_program(program, rng.integers(0, num_streams, num_calls), rng.permutation(num_calls))
    check_values(streams)
    for number in range(4):
        run = Run(program, streams, fresh_inputs(program))
        run._memory.copy_(torch.full((run.places.size,), 255, dtype=torch.uint8).untyped_storage())  # NaN
        got = on_threads(run) if number == 3 else in_order(run, issue_order(streams, rng))
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 40))
def test_dependencies_order_all_calls_that_meet(seed: int, num_calls: int) -> None:
    """The pairs that are left out follow from others, and each pair that is there meets."""
    program = random_program(np.random.default_rng(seed), num_calls)
    reach = np.eye(num_calls, dtype=bool)
    for first, second in program.dependencies.T[::-1].tolist():
        assert first < second
    for second in range(num_calls):
        for first in program.dependencies[0, program.dependencies[1] == second].tolist():
            reach[:, second] |= reach[:, first]
    meets = np.zeros_like(reach)
    for first, one in enumerate(program.kernels):
        for second, other in enumerate(program.kernels[first + 1 :], first + 1):
            pairs = [(a, b) for a in one.writes for b in (*other.reads, *other.writes)]
            pairs += [(a, b) for a in one.reads for b in other.writes]
            meets[first, second] = any(a.meets(b) for a, b in pairs)
    assert reach[meets].all()
    assert all(meets[first, second] for first, second in program.dependencies.T.tolist())


def without(streams: StreamProgram, step: int) -> StreamProgram:
    """Return the stream program without one of its steps."""
    keep = np.arange(streams.num_steps) != step
    bounds = streams.bounds - (streams.bounds > step)
    return replace(
        streams, bounds=bounds, **{name: getattr(streams, name)[keep] for name in ("kind", "argument", "target")}
    )


@settings(max_examples=15)
@given(SEEDS)
def test_a_wait_that_is_missing_is_found(seed: int) -> None:
    """Waits are the least that are needed: without any of them, calls that meet or share memory race."""
    rng = np.random.default_rng(seed)
    program = random_program(rng, 25)
    streams = stream_program(program, rng.integers(0, 3, 25), rng.permutation(25))
    places = layout(program, streams)
    check(program, streams, places)
    edges = program.dependencies
    for wait in np.flatnonzero(streams.kind == WAIT).tolist():
        mutant = without(streams, wait)
        clocks, at = happens_before(mutant), run_steps(mutant)
        if clocks.before(at[edges[0]], at[edges[1]]).all():
            continue  # a wait for the memory of a value, which kernels on streams do not need
        with pytest.raises(RaceError, match="nothing makes the second wait"):
            check(program, mutant, places)


def test_memory_that_is_used_too_early_is_found() -> None:
    """Two buffers that are moved onto each other are refused, unless every order computes the same all the same."""
    refused = allowed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        program = random_program(rng, 25)
        streams = stream_program(program, rng.integers(0, 3, 25), rng.permutation(25))
        places, want = layout(program, streams), by_hand(program)
        for a, b in [(a, b) for a in program.placed.tolist() for b in program.placed.tolist() if a < b]:
            start = places.start.copy()
            start[a] = start[b]
            moved = replace(places, start=start)
            try:
                check(program, streams, moved)
            except RaceError as error:
                assert "share bytes" in str(error)
                refused += 1
                continue
            allowed += 1
            run = Run(program, streams, fresh_inputs(program))
            run.places = moved
            run._calls = [run._bound(call) for call in range(program.num_kernels)]
            for one, other in zip(in_order(run, issue_order(streams, rng)), want, strict=True):
                assert torch.equal(one, other)
        if len(program.placed):
            start = places.start.copy()
            start[program.placed[0]] = places.size
            with pytest.raises(RaceError, match="has no place"):
                check(program, streams, replace(places, start=start))
    assert refused > 50 and allowed >= 5
