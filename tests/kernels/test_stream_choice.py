"""The choice of the number of streams: by measured times, within a limit of memory, with kernel times that are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gst.execution.measure import measure
from gst.kernels import run as runs
from gst.kernels.lower import layout
from gst.kernels.run import Run, list_schedule, on_streams, within_memory
from tests.kernels.made import by_hand, fresh_inputs, random_program


def slowed(factors: dict[int, float]) -> Callable[[Run], Callable[[], list[Any]]]:
    """Stand for recordings: a run on so many streams takes so many milliseconds."""

    def record(run: Run) -> Callable[[], list[Any]]:
        def call() -> list[Any]:
            return run()

        call.ms = float(factors[len(run.streams.lanes)])  # type: ignore[attr-defined]
        return call

    return record


@pytest.mark.parametrize(("times_ms", "best"), [({1: 6, 2: 3, 4: 9}, 2), ({1: 3, 2: 3, 4: 3}, 1)])
def test_more_streams_win_only_if_they_are_faster(
    times_ms: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "measure", partial(measure, time_of=lambda call: call() and call.ms))
    rng = np.random.default_rng(3)
    program = random_program(rng, 40, num_storages=30)
    found = on_streams(program, fresh_inputs(program), record=slowed(times_ms), counts=(2, 4))
    figures = found.figures
    assert figures["best"] == best == len(found.run.streams.lanes)
    assert figures["kernels"] == 40 and figures["critical_path_us"] <= figures["sum_us"]
    for one, other in zip(found.call(), by_hand(program), strict=True):
        assert one.shape == other.shape


def test_the_fastest_schedule_within_the_memory_is_taken_or_else_the_one_that_takes_least() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        program, times_us = random_program(rng, 60, num_storages=40), rng.uniform(1, 100, 60)
        fastest, streams = within_memory(program, times_us, 4, np.inf)
        assert fastest.makespan_us <= list_schedule(program, times_us, 4).makespan_us
        size = layout(program, streams).size
        later, fewer = within_memory(program, times_us, 4, size - 1)
        assert layout(program, fewer).size <= size and later.makespan_us >= fastest.makespan_us
        least = layout(program, within_memory(program, times_us, 4, 0)[1]).size
        assert least <= layout(program, fewer).size


def test_without_time_one_stream_is_taken_and_the_others_are_named() -> None:
    program = random_program(np.random.default_rng(3), 20)
    found = on_streams(program, fresh_inputs(program), seconds=0.0, record=slowed({1: 1}))
    assert found.figures["best"] == 1
    assert {each.get("reason") for count, each in found.figures["streams"].items() if count > 1} == {
        "left out: no time to try it"
    }


def test_a_cpu_runs_kernels_in_order() -> None:
    program = random_program(np.random.default_rng(3), 20)
    found = on_streams(program, fresh_inputs(program))
    assert found.figures == {"kernels": 20, "best": 1}
    assert all(torch.equal(one, other) for one, other in zip(found.call(), by_hand(program), strict=True))
