"""A small task: a small language model on two one-thread devices, with made-up operation times."""

from __future__ import annotations

import numpy as np
import pytest

from gst.machine.devices import Device
from gst.placement.task import Task
from tests.programs.small import small_program


@pytest.fixture(scope="session")
def task() -> Task:
    program = small_program("rnnlm")
    devices = tuple(Device(f"cpu:{number}", "cpu", (), 1, "host", "test") for number in range(2))
    computed = np.array([operation.kind == "operation" for operation in program.operations])
    times = np.random.default_rng(0).lognormal(3, 1, program.num_nodes) * computed
    return Task.of_profile(program, devices, np.stack([times, times]))
