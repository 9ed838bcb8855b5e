"""Times of operations by events: they are those of the clock on a CPU, and those of the device where there is one."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gst.execution import costs as module
from gst.execution.costs import BUDGET_US, Graphs, call_us, can_be_recorded, event_times_us, first_runs
from gst.execution.executor import GraphExecutor, executor
from gst.execution.isolated import profile_devices
from gst.lowering.calls import Step as Bound
from gst.lowering.calls import in_program_order, profiled_costs
from gst.machine.devices import discover
from gst.programs import Program, Step, capture, outputs_differ
from gst.programs.step import drawn_from
from tests.execution.recorded import Recorder
from tests.execution.test_lanes import NO_ACCELERATOR
from tests.made_devices import pair

CPU = torch.device("cpu")
LAUNCH_S = 0.0005  # of calls that are slow to launch
NO_MEMORY = "OutOfMemoryError: out of memory: tried to allocate 2 GiB"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations are recorded however long they take on a busy machine."""
    monkeypatch.setattr(module, "LONG_US", np.inf)


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


def slow_to_launch(program: Program, device: torch.device) -> list[Bound]:
    """Calls that keep the host busy for `LAUNCH_S` each, as launching does, and then compute."""

    def slowed(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(values: Any) -> Any:
            time.sleep(LAUNCH_S)
            return call(values)

        return run

    return [(node, slowed(call), dead) for node, call, dead in in_program_order(program, device)]


@pytest.mark.usefixtures("unhurried")
def test_a_recorded_operation_takes_its_own_time_and_not_that_of_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_program_order", slow_to_launch)
    program, recorder = products(8), Recorder()
    recorded = event_times_us(program, CPU, 3, 10, recorder)
    assert len(recorder.graphs) == len(computed(program)) and recorder.pools == [None, "pool"], "they share memory"
    with_launch = event_times_us(program, CPU, 3, 10)
    for node in computed(program):
        assert 0 < recorded[node] < 0.5e6 * LAUNCH_S <= LAUNCH_S * 1e6 <= with_launch[node]


@pytest.mark.usefixtures("unhurried")
def test_operations_that_are_alike_are_timed_once() -> None:
    def sums(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a + b, b + a, a + 1, b + 1, a + 2, a.t() + b, (a + b).double()

    program, recorder = capture(Step("sums", sums, (torch.ones(4, 4), torch.zeros(4, 4)))), Recorder()
    times = event_times_us(program, CPU, 1, 1, recorder)
    assert (times[computed(program)] > 0).all()
    operators = [str(each.calls[0][0]) for each in recorder.graphs]
    assert operators.count("aten.add.Tensor") == 4, "of two tensors, of one and 1, of one and 2, of one transposed"
    assert len(set(times[[n for n in computed(program) if "add" in str(program.operations[n].target)]])) <= 4


def test_what_takes_long_is_called_a_few_times_only() -> None:
    calls: list[float] = []

    def call(seconds: float) -> None:
        calls.append(seconds)
        time.sleep(seconds)

    recorder = Recorder()
    for seconds, most in ((1.5 * BUDGET_US / 1e6, 2), (BUDGET_US / 3e6, 3), (1e-5, 2 + 10)):
        calls.clear()
        took = call_us(lambda: call(seconds), CPU, 5, 10, Graphs(CPU, recorder))  # noqa: B023
        assert len(calls) <= most, (seconds, calls)
        assert seconds < 1e-3 or took >= seconds * 1e6


@pytest.mark.usefixtures("unhurried")
def test_what_cannot_be_recorded_is_timed_with_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_program_order", slow_to_launch)
    program = capture(Step("sums", lambda a: (a + a, a * a, a - 1), (torch.ones(4),)))
    first, *others = computed(program)
    times = event_times_us(program, CPU, 3, 2, Recorder(failing=1))
    assert 0 < times[first] < LAUNCH_S * 1e6 <= times[others].min() < np.inf


def test_short_memory_is_an_error_and_nothing_that_an_operation_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first run and in later ones; so is any failure of a later run."""
    program = capture(Step("sum", lambda a: a + a, (torch.ones(4),)))
    for error, failing in ((torch.OutOfMemoryError(NO_MEMORY), 1), (torch.OutOfMemoryError(NO_MEMORY), 3),
                           (NotImplementedError("later"), 2)):  # fmt: skip

        def bound(program: Program, device: torch.device) -> list[Bound]:
            number = iter(range(1, 1_000))

            def call(values: Any) -> Any:
                if next(number) == failing:  # noqa: B023
                    raise error  # noqa: B023
                return values[0] + values[0]

            return [(node, call, dead) for node, _, dead in in_program_order(program, device)]

        monkeypatch.setattr(module, "in_program_order", bound)
        with pytest.raises(type(error), match=str(error)):
            event_times_us(program, CPU, 1, 2, Recorder())


def dropped(values: Tensor, seed: Tensor) -> Tensor:
    with drawn_from(seed):
        return torch.nn.functional.dropout(values, 0.5) + 1


@pytest.mark.usefixtures("unhurried")
def test_numbers_that_are_drawn_on_the_host_are_not_recorded() -> None:
    program, recorder = capture(Step("dropped", dropped, (torch.ones(8), torch.tensor(0)))), Recorder()
    drawn = [n for n in computed(program) if getattr(program.operations[n].target, "namespace", "") == "gst"]
    times = event_times_us(program, CPU, 1, 1, recorder)
    assert drawn and not any(can_be_recorded(program, node) for node in drawn) and (times[drawn] > 0).all()
    assert len(recorder.graphs) == len(computed(program)) - len(drawn)


@pytest.mark.usefixtures("unhurried")
def test_results_that_the_host_waits_for_are_not_recorded() -> None:
    def function(a: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        zero = a.sum() - 4
        return a[positions], a.index_put((positions,), zero), a.index_put((a > 0,), zero)

    program = capture(Step("indices", function, (torch.ones(4), torch.tensor([2, 0]))))
    kinds = [(str(each.target), can_be_recorded(program, node)) for node, each in enumerate(program.operations)]
    assert [able for name, able in kinds if "index" in name] == [True, True, False]
    recorder = Recorder()
    assert (event_times_us(program, CPU, 1, 1, recorder)[computed(program)] > 0).all()
    assert len(recorder.graphs) == len(computed(program)) - 1


def failing_on(there: torch.device, target: str) -> Callable[[Program, torch.device], list[Bound]]:
    """Calls of which those of one operator fail on a device."""

    def fails(values: Any) -> Any:
        raise NotImplementedError(f"no kernel of {target} on {there}\nand more")

    def bound(program: Program, device: torch.device) -> list[Bound]:
        is_it = [device == there and str(each.target) == target for each in program.operations]
        return [(node, fails if is_it[node] else call, dead) for node, call, dead in in_program_order(program, device)]

    return bound


def test_an_operation_that_fails_on_a_device_takes_for_ever_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that read its value are timed all the same: it is computed on the host."""
    there = torch.device("cpu", 0)
    program = capture(Step("chain", lambda a: ((a @ a).relu() + 1,), (torch.ones(4, 4),)))
    monkeypatch.setattr(module, "in_program_order", failing_on(there, "aten.relu.default"))
    (node,) = np.isinf(event_times_us(program, there, 1, 1, Recorder())).nonzero()[0].tolist()
    assert str(program.operations[node].target) == "aten.relu.default"
    runs = [(reason, list(values)) for _, _, values, reason in first_runs(program, there)]
    assert [reason for reason, _ in runs] == ["", "NotImplementedError: no kernel of aten.relu.default on cpu:0", ""]
    values = [values for _, values in runs]
    assert outputs_differ([values[-1][program.num_nodes - 1]], [torch.full((4, 4), 5.0)]) is None


def test_an_operation_that_runs_nowhere_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    program = products(4)
    monkeypatch.setattr(module, "in_program_order", failing_on(CPU, "aten.mm.default"))
    with pytest.raises(
        ValueError, match=r"^operation \d+ \(aten.mm.default\) runs neither on cpu \(NotImplementedError"
    ):
        event_times_us(program, CPU, 1, 1)
    devices, times = pair(separate_memory=True), np.ones((2, program.num_nodes))
    times[:, 2] = np.inf
    with pytest.raises(
        ValueError, match=r"^operation 2 of products \(aten.mm.default\) can run on none of cpu:0, cpu:1$"
    ):
        profiled_costs(program, devices, times)
    times[0, 2] = 7.0
    assert np.isinf(profiled_costs(program, devices, times).times_us[1, 2])


@pytest.mark.gpu
@NO_ACCELERATOR
def test_a_product_on_an_accelerator_takes_the_time_that_the_device_says() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    program = products(4096)
    times = event_times_us(program, device)
    assert times.max() > 50  # 137 GFLOP
    gpus = [each for each in discover() if each.kind != "cpu"]
    with executor(program, gpus) as running:
        assert isinstance(running, GraphExecutor)
        profiled = profile_devices(running, 5)
    assert profiled.max() == pytest.approx(times.max(), rel=0.5)
