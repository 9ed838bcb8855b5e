"""A small language model as a task, on two one-thread devices and on core sets, and short training of networks."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gst.machine.devices import Device
from gst.placement.task import Task
from gst.whole_model.variants import COMPILED
from tests.placement.random_tasks import core_sets
from tests.programs.small import small_program

MOST_S = 60  # of a test


@pytest.fixture(scope="session")
def task() -> Task:
    program = small_program("rnnlm")
    devices = tuple(Device(f"cpu:{number}", "cpu", (), 1, "host", "test") for number in range(2))
    computed = np.array([operation.kind == "operation" for operation in program.operations])
    times = np.random.default_rng(0).lognormal(3, 1, program.num_nodes) * computed
    return Task.of_profile(program, devices, np.stack([times, times]))


@pytest.fixture(scope="session")
def moldable(task: Task) -> Task:
    """Two cores, each alone or both together, which makes every operation 1.6 times as fast."""
    assert task.program is not None
    return Task.of_profile(task.program, core_sets(), np.vstack([task.times_us, task.times_us[:1] / 1.6]))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gst.placement.cost_models.EPOCHS", 3)
    monkeypatch.setattr("gst.placement.cost_models.MORE_EPOCHS", 1)


@pytest.fixture(autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that has not ended after a minute, or after ten where it compiles: a call that waits for itself."""
    is_long = any(map(request.node.get_closest_marker, ("slow", "e2e")))

    def fail(*_: object) -> None:
        faulthandler.dump_traceback(sys.__stderr__)
        pytest.fail("the test does not end")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, MOST_S * (10 if is_long else 1))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def compiled_wins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Let compiled graphs win without a race, and collect them."""
    winners: list[Any] = []

    def fastest(runs: dict[str, Any], *_: Any) -> Any:
        winners.append(runs[COMPILED])
        return runs[COMPILED]

    monkeypatch.setattr("gst.placement.api.backend._fastest", fastest)
    torch._dynamo.reset()
    yield winners
    torch._dynamo.reset()
