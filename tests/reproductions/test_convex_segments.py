"""Convex segments of programs: legal, of bounded work, and run as one with the same outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.reproductions.groups.segments import convex_segments, segments, share_in_parallel
from gst.execution.isolated import IsolatedExecutor
from gst.machine.devices import Device, discover, select, usable_cores
from gst.placement.fusion import contracted
from gst.placement.profiling import measured_task
from gst.placement.task import Task
from gst.programs import Step, capture
from gst.util.compiled import compiler
from tests.lowering.test_fusion import STEPS, is_legal, partition, random_program
from tests.placement.test_cannot_run import NO_RELU, NO_SUM, task_of


@settings(max_examples=25)
@given(STEPS, st.data(), st.integers(1, 6))
def test_segments_are_legal_of_bounded_work_and_cannot_be_joined(steps: list, data: st.DataObject, count: int) -> None:
    program = random_program(steps)
    nowhere = np.zeros(program.num_nodes, np.int64)
    computed = np.array([each.kind == "operation" for each in program.operations])
    drawn_us = data.draw(st.lists(st.integers(1, 9), min_size=program.num_nodes, max_size=program.num_nodes))
    time_us = np.where(computed, drawn_us, 0).astype(np.float64)
    segments = convex_segments(program, time_us, count)
    assert is_legal(program, segments, nowhere)
    most = time_us.sum() / count
    assert all(sum(time_us[node] for node in group) <= most for group in partition(segments))
    for producer, node in program.graph.edges.T.tolist():
        if min(segments[producer], segments[node]) >= 0 and segments[producer] != segments[node]:
            joined = np.where(segments == segments[node], segments[producer], segments)
            too_much = time_us[joined == segments[producer]].sum() > most
            has_views = any(
                program.operations[each].is_view for each in range(program.num_nodes)
            )  # left out at borders
            assert too_much or has_views or not is_legal(program, joined, nowhere)


def test_one_segment_is_all_that_may_be_one() -> None:
    program = random_program([("add", 0, 1), ("neg", 2, 0), ("cumsum", 3, 0), ("add", 4, 2)])
    time_us = np.ones(program.num_nodes)
    segments = convex_segments(program, time_us, 1)
    assert len(set(segments[[each.kind == "operation" for each in program.operations]].tolist())) == 1
    with pytest.raises(ValueError, match="num_segments is 0; want 1 or more"):
        convex_segments(program, time_us, 0)


@pytest.mark.e2e
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.skipif(len(usable_cores()) < 2, reason="this machine has one core")
def test_segments_run_as_one_with_the_same_outputs(tmp_path: Path) -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.relu(x @ x) * x + 1.0
        return [torch.abs(y) * y - x, y @ x]

    program = capture(Step("segments", step, (torch.linspace(-1, 1, 256 * 256).reshape(256, 256),)))
    program.save(tmp_path / "program")
    generator = np.random.default_rng(0)
    with IsolatedExecutor(tmp_path / "program", select(["cpu:0", "cpu:1"], discover())) as isolated:
        task = measured_task(program, isolated, 0)
        groups = convex_segments(program, np.ones(program.num_nodes), 2)  # `segments` goes by measured times
        assert segments(task).shape == groups.shape and groups.max() >= 0
        fused = contracted(task, groups, np.full((2, groups.max() + 1), 0.5))  # as if each were faster
        for _ in range(5):
            isolated.check(fused.unfold(fused.task.plan(generator.integers(0, 2, fused.task.num_nodes))))


def test_the_share_in_parallel_is_that_of_the_independent_work() -> None:
    """Nothing can run at the same time as a chain; two equal products can run at once."""
    devices = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "test") for core in range(2)]
    for function, want in ((lambda x: [x @ x @ x @ x], 1.0), (lambda x: [x @ x, (x + 1) @ x], 0.5)):
        program = capture(Step("products", function, (torch.ones(4, 4),)))
        heavy = [1e4 if "mm" in each.name else 0.0 for each in program.operations]
        task = Task.of_profile(program, devices, np.tile(heavy, (len(devices), 1)))
        assert share_in_parallel(task, np.full(program.num_nodes, -1)) == pytest.approx(want, rel=0.02)


def test_segments_weigh_operations_where_they_can_run() -> None:
    everywhere, somewhere, nowhere = task_of(), task_of(NO_RELU), task_of(NO_RELU, NO_SUM)
    want = segments(everywhere)
    assert (segments(somewhere) == want).all() and (segments(nowhere) == want).all(), "all operations take 10 us"
    alone = np.full(everywhere.num_nodes, -1)
    for task in (somewhere, nowhere):
        assert 0 < share_in_parallel(task, alone) < 100
    together = np.where(nowhere.costs.computed, 0, -1)
    assert np.isnan(share_in_parallel(nowhere, together)), "one operation that runs nowhere"
