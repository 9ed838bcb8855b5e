"""Pairs of operations at once on two lanes: a CPU stands for the accelerator, whose graphs are made again in place."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gst.execution import pairs as pairs_module
from gst.execution.costs import Pair, Pairs, traffic_bytes
from gst.execution.event_times import event_times_us
from gst.execution.pairs import LEAST_US, measured_pairs, pairs_of_lanes, sampled_pairs
from gst.execution.recording import Graph
from gst.machine.devices import Device
from gst.placement.profiling import cached_task
from gst.placement.task import Task
from gst.programs import Program, Step, capture
from gst.programs.features import flops
from gst.simulation.share_fit import Timed, fit_sharing, pair_us
from gst.simulation.simulator import Contention, shares_of
from tests.execution.recorded import Recorder
from tests.execution.test_lanes import NO_ACCELERATOR
from tests.made_devices import pair
from tests.programs.small import small_program

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
    assert len(pairs.pairs) == 10 and len(recorder.graphs) == 30
    assert not any(pairs.threads), "a CPU tells no threads"
    ratios = [each.both_us / sum(each.alone_us) for each in pairs.pairs]
    assert 0.8 < np.median(ratios) < 1.25
    times = Timed.of(pairs)
    predicted = pair_us(times.alone, shares_of(times.parts, fit_sharing([pairs]).factors))
    measured = np.array([each.both_us for each in pairs.pairs])
    assert np.median(np.abs(predicted / measured - 1)) < 0.25


def test_each_of_a_pair_is_called_about_as_long_as_the_other() -> None:
    recorder = Recorder()
    timed(products(), recorder, 4)
    for one, other, both in zip(recorder.graphs[::3], recorder.graphs[1::3], recorder.graphs[2::3], strict=True):
        called = [function for function, *_ in one.calls + other.calls]
        assert [function for function, *_ in both.calls] == called and len(called) >= 2


def test_parts_of_a_pair_are_those_of_its_operations(program: Program) -> None:
    times = event_times_us(program, CPU, 1, 1)
    pairs = measured_pairs(program, CPU, times, 1, 6, Recorder(), peak_gb_per_s=900.0, peak_gflops=5e4)
    assert (pairs.device, pairs.gb_per_s, pairs.gflops) == ("cpu", 900, 5e4)
    assert pairs.flops == tuple(flops(program.operations).tolist())
    traffic = traffic_bytes(program.graph.edges, program.output_bytes)
    parts = pairs.parts(times, traffic)
    every = {tuple(each) for each in parts.tolist()}
    assert pairs.pairs and all(part in every for each in pairs.pairs for part in each.parts)
    node = int(parts[:, 2].argmax())
    assert parts[node] == pytest.approx([0, traffic[node] / times[node] / 9e5, pairs.flops[node] / times[node] / 5e7])
    own = measured_pairs(program, CPU, times, 1, 6, Recorder())
    assert own.gb_per_s > 0 and own.parts(times, traffic)[times >= LEAST_US, 2].max() == pytest.approx(1)


def test_one_operation_that_seems_to_read_a_lot_is_no_peak() -> None:
    def function(table: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        return [table[rows], *(rows + each for each in range(40))]

    program = capture(Step("gather", function, (torch.ones(100_000, 8), torch.zeros(2_000, dtype=torch.long))))
    computed = [each.kind == "operation" for each in program.operations]
    pairs = measured_pairs(program, CPU, 10.0 * np.array(computed), 1, 1, Recorder())
    assert pairs.gb_per_s == pytest.approx(32e3 / 10e3), "of the sums: 16 kB read, 16 kB written, 10 us"


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
    only = tuple(pairs.parts(times, traffic_bytes(program.graph.edges, program.output_bytes))[computed[0]].tolist())
    assert {each.parts for each in pairs.pairs} == {(only, only)}
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


def test_a_pair_that_fails_on_its_lane_is_left_out_and_the_log_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pairs are a refinement: what fails in them does not end the measurement of costs."""
    program, spans = products(), list[object]()

    def span_us(*arguments: Any) -> float | None:
        spans.append(arguments)
        if len(spans) == 2:
            raise RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED\nand more")
        return span(*arguments)

    span = pairs_module._span_us
    monkeypatch.setattr(pairs_module, "_span_us", span_us)
    times = 10.0 * np.array([each.kind == "operation" for each in program.operations])
    assert len(measured_pairs(program, CPU, times, 1, 3, Recorder()).pairs) == 2
    assert [each.getMessage().partition(",")[0] for each in caplog.records if each.name == "gst"] == [
        "a pair of operations is left out"
    ]
    assert "RuntimeError: CUBLAS_STATUS_NOT_INITIALIZED" in caplog.text and "and more" not in caplog.text


def test_values_for_which_there_is_no_memory_leave_all_pairs_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What operations ask of the accelerator stays, for factors that are fitted to others."""

    def short(*_: object) -> object:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")

    program = products()
    monkeypatch.setattr(pairs_module, "first_runs", short)
    times = 10.0 * np.array([each.kind == "operation" for each in program.operations])
    pairs = measured_pairs(program, CPU, times, 1, 3, Recorder())
    assert pairs.pairs == () and pairs.gflops > 0 and "no pairs of operations are timed on cpu" in caplog.text


def test_accelerators_that_are_alike_are_timed_once_and_those_without_graphs_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, measured = products(), list[str]()

    def pairs_of(program: Program, device: torch.device, *_: object, **rates: float) -> Pairs:
        measured.append(str(device))
        if device.index == 1:
            raise ValueError("pairs of operations are timed in graphs of an accelerator, xpu:1 records none")
        return Pairs(str(device), 1.0, 1.0, (), (), (Pair(((0.0,) * 3, (0.0,) * 3), (1.0, 1.0), 1.0),))

    monkeypatch.setattr(pairs_module, "is_here", lambda device: device.type == "xpu")
    monkeypatch.setattr(pairs_module, "measured_pairs", pairs_of)
    lanes = [
        Device(f"xpu:{card}/stream:{lane}", "xpu", (), 1, f"xpu:{card}", ("A", "B", "A", "C")[card])
        for card in range(4) for lane in range(2 if card < 3 else 1)
    ]  # fmt: skip
    pairs = pairs_of_lanes(program, lanes, np.ones((len(lanes), program.num_nodes)))
    assert measured == ["xpu:0", "xpu:1"]
    assert [(each.device, len(each.pairs)) for each in pairs] == [("xpu:0", 1), ("xpu:2", 0)]


def test_without_lanes_of_an_accelerator_there_are_no_pairs() -> None:
    program = products()
    assert pairs_of_lanes(program, pair(separate_memory=True), np.ones((2, program.num_nodes))) == ()
    with pytest.raises(
        ValueError, match=r"^pairs of operations are timed in graphs of an accelerator, cpu records none$"
    ):
        measured_pairs(program, CPU, np.ones(program.num_nodes))


def test_the_record_of_costs_keeps_pairs_and_what_was_fitted_to_them(tmp_path: Path) -> None:
    program = products()
    devices = [Device(f"xpu:0/stream:{lane}", "xpu", (), 1, "xpu:0", "test") for lane in range(2)]
    pairs = timed(program, Recorder())
    task = Task.of_profile(program, devices, np.ones((2, program.num_nodes)))
    costs = replace(task.costs, pairs=(pairs,))
    task = Task.of_program(program, costs, fit_sharing(costs.pairs, Contention(switch_us=7.0)))
    assert any(task.contention.factors)
    for make in (lambda: task, pytest.fail):  # measured, then read
        cached = cached_task(program, devices, tmp_path, make)  # type: ignore[arg-type]
        assert cached.contention == task.contention and cached.costs.pairs == (pairs,)


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
