"""Times of operations by events: they are those of the clock on a CPU, and those of the device where there is one."""

import numpy as np
import pytest
import torch

from gst.devices import Executor, discover
from gst.devices.execute.costs import profile
from gst.devices.execute.event_times import event_times_us, span_us
from gst.programs import Program, Step, capture

from .test_lanes import NO_ACCELERATOR

CPU = torch.device("cpu")


def products(size: int = 256) -> Program:
    """A large product, and a sum of few elements."""
    return capture(Step("products", lambda a, b: (a @ a, b + b), (torch.ones(size, size), torch.ones(4))))


def test_a_large_product_takes_longer_than_a_small_sum() -> None:
    program = products()
    times = event_times_us(program, CPU, repetitions=3, batch=3)
    computed = np.array([each.kind == "operation" for each in program.operations])
    assert ((times > 0) == computed).all()
    names = {str(each.target): times[node] for node, each in enumerate(program.operations)}
    assert names["aten.mm.default"] > 10 * names["aten.add.Tensor"]


def test_every_operation_of_a_workload_has_a_time(program: Program) -> None:
    times = event_times_us(program, CPU, repetitions=1, batch=1)
    assert ((times > 0) == [each.kind == "operation" for each in program.operations]).all()


def test_what_is_not_here_or_makes_no_sense_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^there is no meta here to take times on$"):
        span_us(lambda: None, torch.device("meta"))
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
