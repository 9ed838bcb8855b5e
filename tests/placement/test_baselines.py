"""Laws of plans that need no learning."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from random_tasks import NO_OVERHEAD, apart, core_sets, made_up, random_task

from gst.machine.devices import Device
from gst.placement.baselines.portfolio import heft, metis, portfolio, single
from gst.placement.baselines.units import held_bytes
from gst.placement.machines import machine
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.placement.search.neighbourhoods import crossover, mutate
from gst.placement.task import Task
from gst.simulation.simulator import Simulator

ALWAYS = {"chunks", "metis", "topo", "heft", "etf", "sct"}


def on(task: Task, devices: Sequence[Device], rows: np.ndarray) -> Task:
    return Task.of_profile(task.program, devices, rows)


def limited(task: Task, share: float) -> Task:
    """Every memory may hold this share of what one would hold of everything."""
    limit = int(share * held_bytes(task).sum())
    devices = tuple(replace(device, memory_limit=limit) for device in task.devices)
    return replace(task, costs=replace(task.costs, devices=devices))


@pytest.fixture(scope="module")
def gpus(task: Task) -> Task:
    return machine("gpus:4").task(task.program)


def test_the_portfolio_always_holds_every_baseline(task: Task) -> None:
    assert set(portfolio(task)) == {"single:cpu:0", "single:cpu:1"} | ALWAYS
    assert set(portfolio(on(task, task.devices[:1], task.times_us[:1]))) == {"single:cpu:0"}
    sets = on(task, core_sets(), np.vstack([task.times_us, task.times_us[:1] / 1.5]))
    assert set(portfolio(sets)) >= ALWAYS | {"heft:narrow", "moldable", "single:cpu:0-1"}


def test_every_plan_can_be_simulated_and_the_same_is_found_again(gpus: Task) -> None:
    first, second = portfolio(gpus), portfolio(gpus)
    assert [plan.key for plan in first.values()] == [plan.key for plan in second.values()]
    assert np.isfinite(SimulatedObjective(gpus)(list(first.values()))).all()
    assert all(plan.devices == gpus.names for plan in first.values())


def test_simulated_gpus_take_the_sum_of_their_launches_and_no_delay_of_threads(gpus: Task) -> None:
    run = gpus.simulator.run(single(gpus, 0))
    assert run.makespan_us == pytest.approx(gpus.times_us[0].sum(), rel=1e-9)
    free = Simulator(gpus.costs, NO_OVERHEAD)
    for plan in portfolio(gpus).values():
        assert gpus.simulator.run(plan).makespan_us == free.run(plan).makespan_us
    cores = machine("cores:2").task(gpus.program)  # where a thread takes time from one operation to the next
    want = cores.times_us[0].sum() + cores.contention.switch_us * (np.count_nonzero(cores.costs.computed) - 1)
    assert cores.simulator.run(single(cores, 0)).makespan_us == pytest.approx(want, rel=0.01)


def test_a_slow_device_is_left_alone(task: Task) -> None:
    computed = task.costs.computed
    lame = on(task, task.devices, np.stack([task.times_us[0], 1e6 * computed]))
    for name, plan in portfolio(lame).items():
        assert name == "single:cpu:1" or (plan.placement[computed] == 0).all(), name


@pytest.mark.parametrize("share", [0.6, 0.8])
def test_where_one_device_cannot_hold_everything_all_other_plans_fit(gpus: Task, share: float) -> None:
    short = limited(gpus, share)
    runtime, plans = SimulatedObjective(short), portfolio(short)
    missing = ALWAYS - set(plans)
    assert len(missing) <= 2, missing
    for name, plan in plans.items():
        assert name.startswith("single") != (runtime.excess(plan) == 0), name


def test_where_nothing_fits_only_single_devices_are_left(gpus: Task) -> None:
    assert set(portfolio(limited(gpus, 0.02))) == {f"single:cuda:{number}" for number in range(4)}


@pytest.mark.parametrize("seed", range(3))
def test_groups_stay_whole_and_operations_go_where_they_can_run(seed: int) -> None:
    task = random_task(seed)
    for name, plan in portfolio(task).items():
        if not name.startswith("single"):
            assert np.isfinite(task.times_us[plan.placement, np.arange(task.num_nodes)]).all(), name
            for group in range(task.num_groups):
                assert len(set(plan.placement[task.colocation == group])) == 1, name


@pytest.mark.parametrize("seed", range(3))
def test_moves_keep_groups_whole_where_they_must_and_operations_where_they_can_run(seed: int) -> None:
    task, generator = random_task(seed), np.random.default_rng(seed)
    plans = [heft(task), metis(task)]
    for _ in range(100):
        plans.append(mutate(task, plans[-1], generator))
        plans.append(crossover(task, plans, generator))
    assert len({plan.key for plan in plans}) > 50
    assert (mutate(task, plans[0], generator).priority == plans[0].priority).all()
    child, parents = crossover(task, plans[:2], generator).placement, np.stack([each.placement for each in plans[:2]])
    assert (child == parents).any(0).all(), "a mixture comes from its parents"
    for plan in plans:
        assert np.isfinite(task.times_us[plan.placement, np.arange(task.num_nodes)]).all()
        for group in range(task.num_groups):
            assert len(set(plan.placement[task.colocation == group])) == 1


@pytest.mark.parametrize("nodes", [1, 5])
@pytest.mark.parametrize("devices", [apart(1), apart(3), core_sets(4)])
def test_a_single_group_and_no_edges_are_placed_and_moved(nodes: int, devices: tuple[Device, ...]) -> None:
    times, group = np.full((len(devices), nodes), 2.0), np.zeros(nodes, np.int64)
    task, generator = made_up(np.zeros((2, 0), np.int64), times, devices, colocation=group), np.random.default_rng(0)
    plans = list(portfolio(task).values())
    assert (task.simulator.makespans(plans) == 2.0 * nodes).all()
    moved = {mutate(task, plans[0], generator).placement[0] for _ in range(100)}
    assert moved == set(range(len(devices)))


def test_without_pymetis_all_other_baselines_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that only measures may lack it."""
    monkeypatch.setitem(sys.modules, "pymetis", None)
    task = random_task(0, 80, apart(2))
    assert set(portfolio(task)) & ALWAYS == ALWAYS - {"metis"}
    objective = Budgeted(SimulatedObjective(task), budget=200)
    anneal(task, objective)
    assert objective.num_asked == 200
