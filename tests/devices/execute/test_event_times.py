"""Times of operations by events: they are those of the clock on a CPU, and those of the device where there is one."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gst.devices import Executor, discover
from gst.devices.execute import event_times as module
from gst.devices.execute.calls import bind
from gst.devices.execute.costs import profile, profiled_costs
from gst.devices.execute.event_times import DRAWN_ON_HOST, event_times, event_times_us, first_runs
from gst.devices.execute.spans import launch_us, span_us
from gst.programs import Program, Step, capture, outputs_differ
from gst.programs.seeded import drawn_from

from ..conftest import pair
from .recorded import Recorder
from .test_lanes import NO_ACCELERATOR

CPU = torch.device("cpu")
LAUNCH_S = 0.002  # of calls that are slow to launch


def products(size: int = 256) -> Program:
    """A large product, and a sum of few elements."""
    return capture(Step("products", lambda a, b: (a @ a, b + b), (torch.ones(size, size), torch.ones(4))))


def computed(program: Program) -> list[int]:
    return [node for node, each in enumerate(program.operations) if each.kind == "operation"]


def test_a_large_product_takes_longer_than_a_small_sum() -> None:
    program = products()
    times = event_times_us(program, CPU, repetitions=3, batch=3)
    assert np.flatnonzero(times > 0).tolist() == computed(program)
    names = {str(each.target): times[node] for node, each in enumerate(program.operations)}
    assert names["aten.mm.default"] > 10 * names["aten.add.Tensor"]


def test_every_operation_of_a_workload_has_a_time(program: Program) -> None:
    times = event_times_us(program, CPU, repetitions=1, batch=1)
    assert ((times > 0) == [each.kind == "operation" for each in program.operations]).all()


def slow_to_launch(program: Program, device: torch.device) -> list[Callable[[Any], Any] | None]:
    """Calls that keep the host busy for `LAUNCH_S` each, as launching does, and then compute."""

    def slowed(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(values: Any) -> Any:
            time.sleep(LAUNCH_S)
            return call(values)

        return run

    return [None if call is None else slowed(call) for call in bind(program, device)]


def test_a_recorded_operation_takes_its_own_time_and_not_that_of_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bind", slow_to_launch)
    program, recorder = products(8), Recorder()
    recorded = event_times(program, CPU, 3, 10, recorder)
    assert not recorded.launched and not recorded.unable and len(recorder.graphs) == len(computed(program))
    assert all(len(each.calls) == 10 for each in recorder.graphs)
    launched = event_times(program, CPU, 3, 10)
    assert list(launched.launched) == computed(program)
    for node in computed(program):
        assert 0 < recorded.times_us[node] < 0.5e6 * LAUNCH_S <= LAUNCH_S * 1e6 <= launched.times_us[node]


def test_what_a_launch_takes_is_what_calls_take_beyond_their_graph() -> None:
    def call() -> None:
        time.sleep(LAUNCH_S)
        torch.ones(8).add_(1)

    took = launch_us(CPU, 3, 5, Recorder(), call)
    assert took is not None and 0.5e6 * LAUNCH_S < took < 20e6 * LAUNCH_S
    assert launch_us(CPU) is None
    assert launch_us(CPU, 2, 2, Recorder(failing=0)) is None


def test_what_cannot_be_recorded_is_launched_and_says_why() -> None:
    program = capture(Step("sums", lambda a: (a + a, a * a, a - 1), (torch.ones(4),)))
    recorder = Recorder(failing=1)
    found = event_times(program, CPU, 1, 2, recorder)
    first, *others = computed(program)
    assert found.launched == dict.fromkeys(others, "OutOfMemoryError: out of memory: tried to allocate 2 GiB")
    assert not found.unable and (found.times_us[[first, *others]] > 0).all()


def dropped(values: Tensor, seed: Tensor) -> Tensor:
    with drawn_from(seed):
        return torch.nn.functional.dropout(values, 0.5) + 1


def test_numbers_that_are_drawn_on_the_host_are_not_recorded() -> None:
    program, recorder = capture(Step("dropped", dropped, (torch.ones(8), torch.tensor(0)))), Recorder()
    drawn = [n for n in computed(program) if getattr(program.operations[n].target, "namespace", "") == "gst"]
    found = event_times(program, CPU, 1, 1, recorder)
    assert drawn and found.launched == dict.fromkeys(drawn, DRAWN_ON_HOST)
    assert len(recorder.graphs) == len(computed(program)) - len(drawn)


def unable_on(there: torch.device, target: str) -> Callable[[Program, torch.device], list[Any]]:
    """Calls of which those of one operator fail on a device."""

    def fails(values: Any) -> Any:
        raise NotImplementedError(f"no kernel of {target} on {there}\nand more")

    def bound(program: Program, device: torch.device) -> list[Any]:
        calls = list(bind(program, device))
        is_it = [device == there and str(each.target) == target for each in program.operations]
        return [fails if it else call for call, it in zip(calls, is_it, strict=True)]

    return bound


def test_an_operation_that_fails_on_a_device_takes_for_ever_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that read its value are timed all the same: it is computed on the host."""
    there = torch.device("cpu", 0)
    program = capture(Step("chain", lambda a: ((a @ a).relu() + 1,), (torch.ones(4, 4),)))
    monkeypatch.setattr(module, "bind", unable_on(there, "aten.relu.default"))
    found = event_times(program, there, 1, 1, Recorder())
    (node,) = found.unable
    assert str(program.operations[node].target) == "aten.relu.default"
    assert found.unable[node] == "NotImplementedError: no kernel of aten.relu.default on cpu:0"
    assert np.isinf(found.times_us).nonzero()[0].tolist() == [node]
    values = [dict(enumerate(values)) for _, _, values, _ in first_runs(program, there)]
    assert outputs_differ([values[-1][program.num_nodes - 1]], [torch.full((4, 4), 5.0)]) is None


def test_an_operation_that_runs_nowhere_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    program = products(4)
    monkeypatch.setattr(module, "bind", unable_on(CPU, "aten.mm.default"))
    with pytest.raises(
        ValueError, match=r"^operation \d+ \(aten.mm.default\) runs neither on cpu \(NotImplementedError"
    ):
        event_times(program, CPU, 1, 1)
    devices, times = pair(separate_memory=True), np.ones((2, program.num_nodes))
    times[:, 2] = np.inf
    with pytest.raises(
        ValueError, match=r"^operation 2 of products \(aten.mm.default\) can run on none of cpu:0, cpu:1$"
    ):
        profiled_costs(program, devices, times)
    times[0, 2] = 7.0
    assert np.isinf(profiled_costs(program, devices, times).times_us[1, 2])


def test_what_is_not_here_or_makes_no_sense_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^there is no meta here to take times on$"):
        span_us(lambda: None, torch.device("meta"))
    with pytest.raises(ValueError, match=r"^there is no meta here to take times on$"):
        event_times(products(4), torch.device("meta"))
    with pytest.raises(ValueError, match=r"^want repetitions >= 1 and batch >= 1, got 0 and 10$"):
        event_times_us(products(4), CPU, repetitions=0)


@pytest.mark.gpu
@NO_ACCELERATOR
def test_a_product_on_an_accelerator_takes_the_time_that_the_device_says() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    program = products(4096)
    times = event_times_us(program, device)
    assert times.max() > 50  # 137 GFLOP
    gpus = [each for each in discover() if each.kind != "cpu"]
    with Executor(program, gpus) as executor:
        profiled = profile(program, executor)
    assert profiled.max() == pytest.approx(times.max(), rel=0.5)
    recorded = event_times(program, device)
    assert not recorded.launched and not recorded.unable
    took = launch_us(device)
    assert took is not None and took > 0


@pytest.mark.gpu
@NO_ACCELERATOR
def test_a_short_kernel_takes_less_than_its_launch() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    program, took = capture(Step("sum", lambda a: (a + 1,), (torch.ones(8),))), launch_us(device)
    assert took is not None and 0 < event_times_us(program, device).max() < took
