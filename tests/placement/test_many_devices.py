"""Plans on made-up machines of a thousand cores and of a thousand accelerators."""

from __future__ import annotations

import numpy as np
import pytest
from random_tasks import apart, made_up, random_edges

from gst.machine.devices import Device, with_core_sets
from gst.placement.task import Task
from gst.simulation.simulator import Contention, Simulator
from tests.machine.made_up import cores
from tests.simulation import slow_simulator

NODES = 120


def task_on(devices: list[Device] | tuple[Device, ...]) -> Task:
    """An operation on k cores takes 1 / k ** .8 of its time on one."""
    generator = np.random.default_rng(0)
    speed = np.array([device.threads**0.8 for device in devices])
    times = generator.lognormal(3, 1, NODES) / speed[:, None]
    size = generator.integers(1, 20_000, NODES)
    return made_up(random_edges(generator, NODES, 1.2), times, devices, size, contention=Contention(0.01, 0.001, 0.01))


def test_of_a_thousand_accelerators_and_of_a_thousand_cores_plans_are_simulated() -> None:
    """Devices on both sides of each border between words."""
    for devices in (apart(1024), with_core_sets(cores(1024))):
        task = task_on(devices)
        some = np.array([0, 63, 64, 65, 127, 128, 1022, 1023, len(devices) - 1])
        plan = task.plan(np.random.default_rng(1).choice(some, NODES))
        begin, end = slow_simulator.simulate(task.costs, task.contention, plan)
        got = Simulator(task.costs, task.contention).run(plan)
        np.testing.assert_allclose(got.begin_us, begin, atol=1e-6)
        np.testing.assert_allclose(got.end_us, end, atol=1e-6)
    with pytest.raises(ValueError, match="1025 cores and accelerators; at most 1024"):
        Simulator(task_on(apart(1025)).costs)
