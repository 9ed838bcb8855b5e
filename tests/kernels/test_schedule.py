"""Laws of list schedules of kernels within a limit of memory, and of the waits that let buffers share bytes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.execution.lanes import issue_order
from gst.kernels.lower import check, layout, placed_bytes, stream_program
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run, list_schedule, lowered, reuse, upward_ranks
from tests.kernels.made import by_hand, fresh_inputs, in_order, random_program

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 40), st.integers(1, 5), st.sampled_from([np.inf, 400.0, 0.0]), st.integers(1, 40))
def test_a_schedule_keeps_dependencies_and_a_plan_of_it_computes_the_same(
    seed: int, num_calls: int, num_streams: int, most_bytes: float, window: int
) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, num_calls, num_storages=16)
    times_us = rng.uniform(1, 100, num_calls)
    found = list_schedule(program, times_us, num_streams, most_bytes, window)
    np.testing.assert_allclose(found.end_us - found.begin_us, times_us)
    producers, consumers = program.dependencies
    assert (found.end_us[producers] <= found.begin_us[consumers]).all()
    for stream in range(num_streams):
        mine = np.flatnonzero(found.device == stream)
        mine = mine[np.argsort(found.begin_us[mine])]
        assert (found.end_us[mine[:-1]] <= found.begin_us[mine[1:]]).all()
    assert upward_ranks(program, times_us).max() <= found.makespan_us * (1 + 1e-9) <= times_us.sum() * (1 + 1e-6)
    streams, want = lowered(program, found), by_hand(program)
    for _ in range(2):
        got = in_order(Run(program, streams, fresh_inputs(program)), issue_order(streams, rng))
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def live_bytes(program: KernelProgram) -> int:
    """The most bytes of buffers that are in use at once in the order of the program, in which none takes less."""
    size = dict(zip(program.placed.tolist(), placed_bytes(program).tolist(), strict=True))
    spans = {each: (min(calls), max(calls)) for each, calls in program.users.items() if each in size}
    return max(
        sum(size[each] for each, (first, last) in spans.items()
            if first <= call and (call <= last or each in program.results))
        for call in range(program.num_kernels)
    )  # fmt: skip


def test_waits_for_bytes_save_memory_and_cost_no_time_that_the_schedule_has_not() -> None:
    """On average over programs; never is more memory taken than without the waits, by more than a hundredth."""
    plain, shared, one, live = [], [], [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        program = random_program(rng, 60, num_storages=40)
        found = list_schedule(program, rng.uniform(1, 100, 60), 3)
        streams = lowered(program, found)
        alone = layout(program, stream_program(program, np.zeros(60, np.int64)))
        one.append(alone.size)
        live.append(live_bytes(program))
        rank = np.argsort(np.argsort(found.begin_us))
        plain.append(layout(program, stream_program(program, found.device, rank)).size)
        shared.append(layout(program, streams).size)
        check(program, streams, layout(program, streams))
        pairs = reuse(program, found.begin_us, found.end_us)
        assert (found.end_us[pairs[0]] <= found.begin_us[pairs[1]]).all()
    assert np.mean(shared) < np.mean(plain) and (np.array(shared) <= 1.01 * np.array(plain)).all()
    assert np.mean(shared) < 1.25 * np.mean(one)
    assert (np.array(one) >= np.array(live)).all() and np.mean(np.array(one) / np.array(live)) < 1.1
