"""Kernels on streams as a task: simulated, searched and lowered like any other, and the choice of streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.execution.measure import measure
from gst.kernels.kept import kept_times_us
from gst.kernels.lower import layout
from gst.kernels.run import Run
from gst.placement import kernels
from gst.placement.baselines.list_schedules import etf, heft
from gst.placement.baselines.portfolio import portfolio
from gst.placement.kernels import critical_path_us, kernel_task, kernel_words, lowered, on_streams, within_memory
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from tests.kernels.made import by_hand, fresh_inputs, random_program


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_plans_take_between_the_critical_path_and_the_sum_and_compute_the_same(seed: int, streams: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 25)
    times_us = rng.uniform(1, 100, 25)
    task = kernel_task(program, times_us, streams)
    plans = portfolio(task)
    assert {"etf", "heft"} <= plans.keys()
    want = by_hand(program)
    for name, plan in plans.items():
        (simulated_ms,) = SimulatedObjective(task)([plan])
        least, most = critical_path_us(program, times_us) / 1e3, times_us.sum() / 1e3
        assert least - 1e-9 <= simulated_ms <= most + 1e-9 or not name.startswith(("etf", "heft", "single"))
        got = Run(program, lowered(program, plan), fresh_inputs(program))()
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_a_search_finds_plans_of_kernels() -> None:
    rng = np.random.default_rng(0)
    program = random_program(rng, 40, num_storages=24)
    task = kernel_task(program, rng.uniform(1, 100, 40), 4)
    budgeted = Budgeted(SimulatedObjective(task), 300)
    anneal(task, budgeted, 0)
    assert budgeted.best is not None
    assert budgeted.best_ms <= min(SimulatedObjective(task)(list(portfolio(task).values()))) + 1e-9
    Run(program, lowered(program, budgeted.best), fresh_inputs(program))


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
    monkeypatch.setattr(kernels, "measure", partial(measure, time_of=lambda call: call() and call.ms))
    rng = np.random.default_rng(3)
    program = random_program(rng, 40, num_storages=30)
    found = on_streams(program, fresh_inputs(program), record=slowed(times_ms), counts=(2, 4))
    figures = found.figures
    assert figures["best"] == best == len(found.run.streams.lanes)
    assert figures["kernels"] == 40 and figures["critical_path_us"] <= figures["sum_us"]
    for one, other in zip(found.call(), by_hand(program), strict=True):
        assert one.shape == other.shape
    assert figures["streams"][1]["bytes"] >= figures["live_bytes"]


def test_the_fastest_plan_within_the_memory_is_taken_or_else_the_one_that_takes_least() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        program = random_program(rng, 60, num_storages=40)
        task = kernel_task(program, rng.uniform(1, 100, 60), 4)
        plan, timeline, streams = within_memory(task, program, np.inf)
        fastest_ms = min(SimulatedObjective(task)([each for each in (etf(task), heft(task)) if each is not None]))
        assert timeline.makespan_us / 1e3 <= fastest_ms + 1e-9
        assert SimulatedObjective(task)([plan])[0] == pytest.approx(timeline.makespan_us / 1e3)
        whole = layout(program, streams).size
        _, later, fewer = within_memory(task, program, whole - 1)
        assert layout(program, fewer).size <= whole and later.makespan_us >= timeline.makespan_us
        least = layout(program, within_memory(task, program, 0)[2]).size
        assert least <= layout(program, fewer).size


def test_times_of_kernels_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = random_program(np.random.default_rng(3), 20)
    found = [on_streams(program, fresh_inputs(program), record=slowed({1: 1}), counts=()).figures for _ in range(2)]
    assert [each["times_are_kept"] for each in found] == [False, True] and found[0]["sum_us"] == found[1]["sum_us"]
    assert "earlier search" in kernel_words(found[1]) and "earlier search" not in kernel_words(found[0])
    (path,) = tmp_path.rglob("*/kernels/*/*.json")
    for damaged in ("", "[]", '{"times_us": [1.0]}', '{"times_us": "x"}', json.dumps({"times_us": [-1.0] * 20})):
        path.write_text(damaged)
        assert not kept_times_us(Run(program))[1] and kept_times_us(Run(program))[1]
    other = replace(program, key="1" * 16)
    assert not kept_times_us(Run(other))[1]


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
    assert found.figures == {"kernels": 20, "best": 1} and found.plan is None
    assert all(torch.equal(one, other) for one, other in zip(found.call(), by_hand(program), strict=True))
