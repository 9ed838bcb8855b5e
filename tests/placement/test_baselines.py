"""Laws of plans that need no learning."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_tasks import NO_OVERHEAD, apart, core_sets, made_up, random_edges, random_task

from experiments.reproductions.public_problems.cost_graphs import read_cost_graph, task_of_cost_graph
from gst.machine.devices import Device
from gst.placement.baselines.portfolio import chunks, heft, metis, portfolio, single, topo
from gst.placement.baselines.units import held_bytes, smallest_units
from gst.placement.machines import CORE, GPU, Machine, machine
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.placement.search.random_plans import crossover, mutate
from gst.placement.task import Task
from gst.simulation.simulator import Simulator

PUBLISHED = Path(__file__).parents[1] / "fixtures/cost_graphs/bert24_inference.json"
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


def test_chunks_follow_program_order_and_share_the_time(task: Task) -> None:
    placement = chunks(task).placement
    assert (np.diff(placement[task.costs.computed]) >= 0).all()
    share = task.times_us[0][placement == 0].sum() / task.times_us[0].sum()
    assert abs(share - 0.5) <= task.times_us[0].max() / task.times_us[0].sum()


def test_simulated_gpus_take_the_sum_of_their_launches_and_no_delay_of_threads(gpus: Task) -> None:
    run = gpus.simulator.run(single(gpus, 0))
    assert run.makespan_us == pytest.approx(gpus.times_us[0].sum(), rel=1e-9)
    free = Simulator(gpus.costs, NO_OVERHEAD)
    for plan in portfolio(gpus).values():
        assert gpus.simulator.run(plan).makespan_us == free.run(plan).makespan_us
    cores = machine("cores:2").task(gpus.program)  # where a thread takes time from one operation to the next
    want = cores.times_us[0].sum() + cores.contention.switch_us * (np.count_nonzero(cores.costs.computed) - 1)
    assert cores.simulator.run(single(cores, 0)).makespan_us == pytest.approx(want, rel=0.01)


def test_inputs_go_where_they_are_first_read(gpus: Task) -> None:
    producers, consumers = gpus.costs.edges
    of = smallest_units(gpus).of
    for node in np.flatnonzero(~gpus.costs.computed):
        readers = consumers[producers == node]
        if len(readers):
            assert of[node] == of[readers.min()]
    assert len(np.unique(of[gpus.costs.computed])) == gpus.costs.computed.sum()


def test_metis_repeats_by_seed_and_keeps_groups_whole(gpus: Task) -> None:
    assert metis(gpus, 3).key == metis(gpus, 3).key
    placement = metis(gpus).placement
    assert all(len(set(placement[gpus.colocation == group])) == 1 for group in range(gpus.num_groups))


def test_metis_cuts_less_than_chunks_where_moving_is_dear() -> None:
    """Two chains that alternate in program order, joined at the end."""
    edges = np.stack([np.arange(38), np.arange(2, 40)])
    task = made_up(np.hstack([edges, [[38], [39]]]), np.full((2, 40), 5.0), apart(2), np.full(40, 50_000))
    assert task.simulator.run(metis(task)).makespan_us < 0.7 * task.simulator.run(chunks(task)).makespan_us


def test_topo_fills_one_device_after_the_other() -> None:
    size = np.full(30, 10)
    task = made_up(random_edges(np.random.default_rng(0), 30, 1.0), np.ones((3, 30)), apart(3), resident_bytes=size)
    assert np.bincount(topo(task).placement, minlength=3).tolist() == [11, 11, 8]


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


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_small_accelerator_beside_a_slow_core_holds_what_it_can(task: Task, share: float) -> None:
    both = Machine((GPU, CORE), 1.0, 12.0).task(task.program)
    peak = both.memory_use(both.simulator.run(single(both, 0)))["cuda:0"]
    capped = (replace(both.devices[0], memory_limit=int(share * peak)), both.devices[1])
    short = replace(both, costs=replace(both.costs, devices=capped))
    runtime, plans = SimulatedObjective(short), portfolio(short)
    assert set(plans) >= ALWAYS
    runtimes = {name: float(runtime([plan])[0]) for name, plan in plans.items()}
    assert np.isnan(runtimes.pop("single:cuda:0")) and not np.isnan(list(runtimes.values())).any()
    assert min(runtimes.values()) < 0.99 * runtimes["single:cpu:1"]


def test_where_nothing_fits_only_single_devices_are_left(gpus: Task) -> None:
    assert set(portfolio(limited(gpus, 0.02))) == {f"single:cuda:{number}" for number in range(4)}


def test_what_is_held_adds_up_to_the_peak_of_program_order(gpus: Task) -> None:
    use = gpus.memory_use(gpus.simulator.run(single(gpus, 0)))
    assert 0.8 * use["cuda:0"] <= held_bytes(gpus).sum() <= use["cuda:0"]


def test_published_costs_keep_groups_whole_and_accelerators_within_their_memory() -> None:
    task = task_of_cost_graph(read_cost_graph(PUBLISHED))
    task = replace(task, colocation=np.arange(task.num_nodes) // 3)
    runtime, plans = SimulatedObjective(task), portfolio(task)
    assert set(plans) >= ALWAYS - {"sct"}
    for name in ALWAYS & set(plans):
        assert runtime.excess(plans[name]) == 0
        for group in range(task.num_groups):
            assert len(set(plans[name].placement[task.colocation == group])) == 1
    best = min(runtime([plans[name]])[0] for name in ALWAYS & set(plans))
    assert best < 0.5 * runtime([plans["single:cpu:0"]])[0]


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
