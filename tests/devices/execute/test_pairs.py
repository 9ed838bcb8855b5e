"""Pairs of operations at once on two lanes: a CPU stands for the accelerator, whose graphs are made again in place."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gst.devices import Device
from gst.devices.execute.event_times import event_times_us
from gst.devices.execute.pair_records import Pairs
from gst.devices.execute.pairs import LEAST_US, measured_pairs, pairs_of_lanes, sampled_pairs
from gst.devices.execute.recording import Graph
from gst.devices.simulate.share_fit import fit_sharing, pair_shares, pair_us
from gst.devices.simulate.simulator import Contention
from gst.placement.pipeline import cached_task
from gst.placement.task import Task
from gst.programs import Program, Step, capture
from tests.programs.small import small_program

from ..conftest import pair
from .recorded import Recorder
from .test_lanes import NO_ACCELERATOR

CPU = torch.device("cpu")


def products() -> Program:
    """Products of several sizes, and sums."""

    def function(*values: torch.Tensor) -> list[torch.Tensor]:
        return [each @ each for each in values] + [each + 1 for each in values]

    return capture(Step("products", function, tuple(torch.ones(size, size) for size in (96, 128, 192, 256))))


def timed(program: Program, recorder: Recorder, count: int = 10, repetitions: int = 3) -> Pairs:
    return measured_pairs(program, CPU, event_times_us(program, CPU, 3, 3), repetitions, count, recorder)


def test_operations_that_take_turns_take_the_sum_of_their_times() -> None:
    """One thread makes the calls of both lanes, so each pair takes what both take alone; the model finds that."""
    recorder = Recorder()
    pairs = timed(products(), recorder, repetitions=15)  # of which the median counts, on a machine that is busy
    assert len(pairs.pairs) == 10 and len(recorder.graphs) == 30 and pairs.threads is None
    ratios = [each.both_us / sum(each.alone_us) for each in pairs.pairs]
    assert 0.8 < np.median(ratios) < 1.25
    predicted = pair_us(np.array([each.alone_us for each in pairs.pairs]), pair_shares(pairs, fit_sharing(pairs)))
    measured = np.array([each.both_us for each in pairs.pairs])
    assert np.median(np.abs(predicted / measured - 1)) < 0.25


def test_each_of_a_pair_is_called_about_as_long_as_the_other() -> None:
    recorder = Recorder()
    timed(products(), recorder, 4)
    for one, other, both in zip(recorder.graphs[::3], recorder.graphs[1::3], recorder.graphs[2::3], strict=True):
        called = [function for function, *_ in one.calls + other.calls]
        assert [function for function, *_ in both.calls] == called and len(called) >= 2


def test_sizes_and_rates_of_a_pair_are_those_of_its_operations(program: Program) -> None:
    times = event_times_us(program, CPU, 1, 1)
    pairs = measured_pairs(program, CPU, times, 1, 6, Recorder(), peak_gb_per_s=900.0)
    sizes = set((program.output_bytes / 1e3).tolist())
    assert pairs.pairs and all(kilobytes in sizes for each in pairs.pairs for kilobytes in each.kilobytes)
    assert pairs.peak_gb_per_s == 900
    rates = [rate for each in pairs.pairs for rate in each.gb_per_s]
    own = measured_pairs(program, CPU, times, 1, 6, Recorder()).peak_gb_per_s
    assert min(rates) >= 0 and own > 0


def test_one_operation_that_seems_to_read_a_lot_is_no_peak() -> None:
    def function(table: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        return [table[rows], *(rows + each for each in range(40))]

    program = capture(Step("gather", function, (torch.ones(100_000, 8), torch.zeros(2_000, dtype=torch.long))))
    computed = [each.kind == "operation" for each in program.operations]
    pairs = measured_pairs(program, CPU, 10.0 * np.array(computed), 1, 1, Recorder())
    assert pairs.peak_gb_per_s == pytest.approx(32e3 / 10e3), "of the sums: 16 kB read, 16 kB written, 10 us"


def test_samples_are_short_and_long_small_and_large_each_with_each() -> None:
    rng = np.random.default_rng(0)
    times, sizes, able = rng.lognormal(2, 1, 200), rng.lognormal(9, 2, 200), rng.random(200) < 0.9
    chosen = sampled_pairs(times, sizes, able, 40)
    is_long, is_large = times > np.median(times[able]), sizes > np.median(sizes[able])
    kinds = {frozenset((bool(is_long[n]), bool(is_large[n])) for n in nodes) for nodes in chosen}
    assert len(chosen) == 40 and len(kinds) == 10 and able[np.array(chosen)].all()
    assert chosen == sampled_pairs(times, sizes, able, 40)
    assert sampled_pairs(times, sizes, np.zeros(200, bool), 40) == []


def test_what_cannot_run_or_be_recorded_or_is_no_kernel_is_in_no_pair() -> None:
    program = products()
    times = event_times_us(program, CPU, 1, 1)
    computed = np.flatnonzero(times > 0)
    times[computed[1:]] = [np.inf, LEAST_US / 2, *[np.inf] * (len(computed) - 3)]
    pairs = measured_pairs(program, CPU, times, 1, 3, Recorder())
    assert {each.kilobytes for each in pairs.pairs} == {(program.output_bytes[computed[0]] / 1e3,) * 2}
    assert len(measured_pairs(program, CPU, times, 1, 3, Recorder(failing=0)).pairs) == 0


@pytest.mark.parametrize(
    ("error", "is_left_out"),
    [(RuntimeError("operation not permitted when stream is capturing"), True),
     (torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB"), True), (TypeError("a mistake"), False)],
)  # fmt: skip
def test_pairs_are_left_out_for_what_a_recording_forbids_alone(error: Exception, is_left_out: bool) -> None:
    def make(*_: object) -> Graph:
        raise error

    program = products()
    times = 10.0 * np.array([each.kind == "operation" for each in program.operations])
    with nullcontext() if is_left_out else pytest.raises(TypeError, match="a mistake"):
        assert measured_pairs(program, CPU, times, 1, 3, make).pairs == ()


def test_without_lanes_of_an_accelerator_there_are_no_pairs() -> None:
    program = products()
    assert pairs_of_lanes(program, pair(separate_memory=True), np.ones((2, program.num_nodes))) is None
    with pytest.raises(
        ValueError, match=r"^pairs of operations are timed in graphs of an accelerator, cpu records none$"
    ):
        measured_pairs(program, CPU, np.ones(program.num_nodes))


def test_the_record_of_costs_keeps_pairs_and_what_was_fitted_to_them(tmp_path: Path) -> None:
    program = products()
    devices = [Device(f"xpu:0/stream:{lane}", "xpu", (), 1, "xpu:0", "test") for lane in range(2)]
    pairs = timed(program, Recorder())
    task = Task.of_profile(program, devices, np.ones((2, program.num_nodes)))
    task = Task.of_program(program, replace(task.costs, pairs=pairs), fit_sharing(pairs, Contention(switch_us=7.0)))
    assert task.contention.least_share > 0 or task.contention.share_per_gb_per_s > 0
    for make in (lambda: task, pytest.fail):  # measured, then read
        cached = cached_task(program, devices, tmp_path, make)  # type: ignore[arg-type]
        assert cached.contention == task.contention and cached.costs.pairs == pairs


@pytest.mark.gpu
@NO_ACCELERATOR
def test_pairs_on_an_accelerator_take_between_the_longer_and_both_in_turns() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    program = small_program("inception", "cuda")
    pairs = measured_pairs(program, device, event_times_us(program, device))
    assert len(pairs.pairs) > 20
    for each in pairs.pairs:
        assert 0.8 * max(each.alone_us) < each.both_us < 1.5 * sum(each.alone_us)
