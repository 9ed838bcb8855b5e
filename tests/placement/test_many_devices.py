"""Plans on costs for made-up machines of 1 to 256 cores, in sets along their caches, and of 1 to 16 accelerators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_tasks import apart, made_up, random_edges

from gst.machine.devices import Device, with_core_sets
from gst.machine.topology import shared_domains
from gst.placement.measured import NUM_BASELINES, finalists
from gst.placement.objectives import SimulatedObjective
from gst.placement.planning import plan_all
from gst.placement.task import Task
from gst.simulation.simulator import Contention, Simulator
from tests.choices import with_rest
from tests.machine.made_up import cores, made_up_system
from tests.simulation import slow_simulator

NODES = 120


def task_on(devices: list[Device] | tuple[Device, ...]) -> Task:
    """An operation on k cores takes 1 / k ** .8 of its time on one."""
    generator = np.random.default_rng(0)
    speed = np.array([device.threads**0.8 for device in devices])
    times = generator.lognormal(3, 1, NODES) / speed[:, None]
    size = generator.integers(1, 20_000, NODES)
    return made_up(random_edges(generator, NODES, 1.2), times, devices, size, contention=Contention(0.01, 0.001, 0.01))


def is_placed_well(task: Task) -> None:
    """The best plan is simulated as by the slow twin, and faster than each device alone; few plans are measured."""
    planned = plan_all(task, SimulatedObjective(task), ["annealing"], evaluations=150)
    best = min(planned.values(), key=lambda each: np.nan_to_num(each.expected_ms, nan=np.inf))
    assert best.plan is not None
    _, end = slow_simulator.simulate(task.costs, task.contention, best.plan)
    assert best.expected_ms == pytest.approx(max(end) / 1e3)
    alone = [task.simulator.run(task.plan(np.full(NODES, device))).makespan_us for device in range(len(task.devices))]
    assert best.expected_ms <= min(alone) / 1e3 * (0.9 if len(alone) > 1 else 1.0)
    assert len(finalists(planned, ["annealing"])) <= 2 + NUM_BASELINES


@pytest.mark.parametrize("count", with_rest([1, 2, 8, 64, 256], [1, 8]))
def test_cores_of_one_machine(tmp_path: Path, count: int) -> None:
    domains = shared_domains(made_up_system(tmp_path, count, 1 + (count > 8), min(count, 8), max(count // 4, 1)))
    is_placed_well(task_on(with_core_sets(cores(count), domains)))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
def test_accelerators(count: int) -> None:
    is_placed_well(task_on(apart(count)))


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
