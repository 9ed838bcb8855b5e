"""The compiled simulator agrees with its slow twin, with what can be worked out by hand, and with the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.execution.executor import NativeExecutor, measure_costs
from gst.lowering.calls import Costs, Storages, profiled_costs, storages
from gst.lowering.common_order import Work, transient_bytes
from gst.lowering.happens_before import check
from gst.lowering.lower import lowered
from gst.lowering.plan import Plan, StreamProgram, Timeline, in_order_of, ranks
from gst.machine.devices import Device
from gst.programs import Program
from gst.simulation.copies import copies_of, peak_bytes
from gst.simulation.simulator import Contention, Simulator, fit
from gst.util.compiled import compiler
from tests.execution.replay import assert_is_a_run_of
from tests.execution.test_executor import alone, random_plan
from tests.execution.test_native import CHAINED, MOLDABLE, names
from tests.simulation import slow_simulator

NOTHING = Contention(switch_us=0.0, hand_over_us=0.0, wake_us=0.0)
ROUGH = Contention(
    0.1, 0.05, 0.2, helper_us=7.0, helper_spin_us=15.0, switch_us=0.5, hand_over_us=2.0, wake_us=11.0, spin_us=20.0
)  # fmt: skip


def made(
    devices: list[Device], edges: list[tuple[int, int]], times: np.ndarray, size: int = 1000, queue: bool = False
) -> Costs:
    """Operations that each make one storage of `size` bytes; the last is the output."""
    nodes = times.shape[1]
    every = np.arange(nodes)
    kept = every == nodes - 1
    apart = np.array([[a.memory != b.memory for b in devices] for a in devices])
    return Costs(
        tuple(devices), np.array(edges, np.int64).reshape(-1, 2).T, np.ones(nodes, bool), kept,
        times, np.full(nodes, size), np.full(times.shape, size),
        Storages(np.full(nodes, size), every, np.stack([every, every])),
        5.0 * apart, np.where(apart, 100.0, np.inf), queue,
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> tuple[Costs, Plan]:
    """A random program on devices that share cores, or have memories of their own, whose copies may queue."""
    nodes = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    apart = [Device(f"cpu:{n}", "cpu", (), 1, f"memory {n}", "test") for n in range(3)]
    paired = [Device(f"cpu:{n}", "cpu", (), 1, f"memory {n // 2}", "test") for n in range(4)]
    beside = [*MOLDABLE, Device("gpu:0", "gpu", (), 1, "memory of a GPU", "test")]
    devices = draw(st.sampled_from([MOLDABLE, CHAINED, beside, apart, paired]))
    edges = [(a, b) for b in range(nodes) for a in range(b) if rng.random() < 3 / nodes]
    times = rng.lognormal(2, 1, (len(devices), nodes))
    plan = Plan(names(devices), rng.integers(0, len(devices), nodes), rng.integers(0, 4, nodes))
    # Lanes of a memory that several devices share order the copies of all of them, which links that never queue ignore.
    queue = devices in (beside, paired) or draw(st.booleans())
    return made(devices, edges, times, int(rng.choice([1, 300, 3_000, 100_000])), queue), plan


@given(st.lists(st.sampled_from([-(2**63), -(2**62), -7, 0, 1, 2**62, 2**63 - 1]) | st.integers(-9, 9), max_size=12))
def test_ranks_are_those_of_a_stable_sort_of_any_priorities(priority: list[int]) -> None:
    plan = Plan(("cpu:0",), np.zeros(len(priority), np.int64), np.array(priority, np.int64))
    assert np.argsort(ranks(plan)).tolist() == sorted(range(len(priority)), key=lambda node: -priority[node])


@given(cases(), st.sampled_from(["whole", "none", "rough"]), st.booleans())
@settings(max_examples=200)
def test_the_compiled_simulator_agrees_with_its_slow_twin(
    case: tuple[Costs, Plan], delays: str, may_queue: bool
) -> None:
    costs, plan = case
    costs = replace(costs, copies_queue=costs.copies_queue and may_queue)
    contention = ROUGH if delays == "rough" else NOTHING
    if delays == "whole":  # then operations and copies often end at the same moment
        costs = replace(costs, times_us=np.rint(costs.times_us / 4))
    got = Simulator(costs, contention).run(plan)
    begin, end = slow_simulator.simulate(costs, contention, plan)
    np.testing.assert_allclose(got.begin_us, begin, atol=1e-6)
    np.testing.assert_allclose(got.end_us, end, atol=1e-6)


def test_by_hand_a_wide_operation_waits_for_both_cores_and_holds_them() -> None:
    """0 (10 us, core 0) and 1 (4 us, core 1) run at once; 2 needs both cores: 10 .. 16; 3 (core 1) has a lesser
    priority than 2, so that core 1 waits for it from 4 to 10 and 3 runs 16 .. 17."""
    times = np.array([[10.0, 9, 9, 9], [9, 4, 9, 1], [9, 9, 6, 9]])
    costs = made(MOLDABLE, [(1, 2), (1, 3)], times)
    plan = Plan(names(MOLDABLE), np.array([0, 1, 2, 1]), np.array([3, 2, 1, 0]))
    got = Simulator(costs, NOTHING).run(plan)
    assert got.begin_us.tolist() == [0, 0, 10, 16] and got.end_us.tolist() == [10, 4, 16, 17]
    first = Plan(names(MOLDABLE), np.array([0, 1, 2, 1]), np.array([3, 2, 0, 1]))
    assert Simulator(costs, NOTHING).run(first).end_us.tolist() == [10, 4, 16, 5]


@pytest.mark.parametrize("slowdown", [0.0, 1e-9])
def test_by_hand_a_value_that_arrives_while_its_core_is_busy_delays_nothing(slowdown: float) -> None:
    """2 runs on core 0 until 40. 1 is ready there at 25, but core 0 waits for 4, which needs both cores: 3 ends at 100,
    not later because of the value that has arrived."""
    devices = [*MOLDABLE, Device("gpu:0", "gpu", (), 1, "memory of a GPU", "test")]
    costs = made(devices, [(0, 1), (2, 4)], np.tile(np.array([10.0, 10, 40, 100, 10]), (4, 1)))
    plan = Plan(names(devices), np.array([3, 0, 0, 1, 2]), np.array([0, 0, 5, 5, 9]))
    got = Simulator(costs, NOTHING._replace(slowdown=slowdown)).run(plan)
    assert got.end_us == pytest.approx([10, 120, 40, 100, 110])


def test_by_hand_a_value_stays_until_its_copy_has_arrived() -> None:
    """Operation 0 ends at 10, and its copy arrives at 25; operation 2 makes another value in memory 0 meanwhile."""
    devices = [Device(f"cpu:{n}", "cpu", (), 1, f"memory {n}", "test") for n in range(2)]
    costs = made(devices, [(0, 1)], np.array([[10.0, 7, 2], [10, 7, 2]]))
    run = Simulator(costs, NOTHING).run(Plan(names(devices), np.array([0, 1, 0])))
    assert run.end_us.tolist() == [10, 32, 12]
    assert peak_bytes(costs, run) == {"memory 0": 2000, "memory 1": 2000}


def test_by_hand_a_value_crosses_once_and_copies_of_a_memory_go_one_after_the_other() -> None:
    """Device 0 ends 0 at 10 and 1 at 12. A copy takes 15 us: the value of 0 is in memory 1, for both of its readers, at
    25, then in memory 2 at 40; that of 1, made in between, is in memory 1 at 55."""
    devices = [Device(f"gpu:{n}", "gpu", (), 1, f"memory {n}", "test") for n in range(3)]
    edges = [(0, 2), (0, 3), (0, 4), (1, 5)]
    times = np.tile([10.0, 2, 1, 1, 1, 1], (3, 1))
    plan = Plan(names(devices), np.array([0, 0, 1, 1, 2, 1]), np.arange(6)[::-1].copy())
    got = Simulator(made(devices, edges, times, queue=True), NOTHING).run(plan)
    assert got.begin_us.tolist() == [0, 10, 25, 26, 40, 55]
    copies = copies_of(made(devices, edges, times, queue=True), got)
    assert list(zip(*(each.tolist() for each in copies), strict=True)) == [
        (0, 1, 10, 25), (0, 2, 25, 40), (1, 1, 40, 55),
    ]  # fmt: skip
    free = Simulator(made(devices, edges, times), NOTHING).run(plan)
    assert free.begin_us.tolist() == [0, 10, 25, 26, 25, 27]


def test_an_operation_writes_its_result_and_reads_what_it_uses() -> None:
    costs = made(MOLDABLE, [(0, 1), (0, 2), (1, 2)], np.ones((3, 3)))
    costs = replace(costs, output_bytes=np.array([1, 2, 4]), computed=np.array([False, True, True]))
    assert costs.traffic_bytes.tolist() == [0, 2 + 1, 4 + 1 + 2]


def test_contention_is_recovered_from_runs_under_it() -> None:
    rng = np.random.default_rng(0)
    nodes = 400
    edges = [(a, b) for b in range(nodes) for a in range(max(0, b - 9), b) if rng.random() < 0.2]
    times = rng.lognormal(4, 1, (3, nodes))
    costs = made(MOLDABLE, edges, times, 200_000)
    want = Contention(0.08, 0.02, 0.01, helper_us=40.0, switch_us=0.4, hand_over_us=1.5, wake_us=25.0)
    plans = [Plan(names(MOLDABLE), rng.choice(3, nodes, p=[0.45, 0.45, 0.1])) for _ in range(6)]
    runs = [Simulator(costs, want).run(plan) for plan in plans]
    got = fit(costs, [[run] for run in runs])
    learned = got.slowdown, got.memory_slowdown, got.remote_ns_per_byte, got.helper_us
    assert learned == pytest.approx((0.08, 0.02, 0.01, 40.0), rel=0.15)  # LEAST_RATE is no law of it
    assert (got.switch_us, got.hand_over_us, got.wake_us) == pytest.approx((0.4, 1.5, 25.0), rel=0.1)
    slower = Simulator(costs, want._replace(switch_us=9.0, hand_over_us=30.0))
    of_the_quickest = fit(costs, [[slower.run(plan), run] for plan, run in zip(plans, runs, strict=True)])
    assert (of_the_quickest.switch_us, of_the_quickest.hand_over_us) == (got.switch_us, got.hand_over_us)
    several = [[interrupted(costs, want, plan, rng) for _ in range(5)] for plan in plans]
    disturbed, of_one_run = fit(costs, several), fit(costs, [runs[:1] for runs in several])
    assert disturbed.slowdown == pytest.approx(0.08, rel=0.15), "hardly any operation is interrupted in all five"
    assert of_one_run.slowdown > 0.3


def interrupted(costs: Costs, contention: Contention, plan: Plan, rng: np.random.Generator) -> Timeline:
    """A run in which another process takes the core of every third operation for as long as that takes, or thrice."""
    longer = rng.choice([1.0, 1.0, 1.0, 1.0, 2.0, 4.0], costs.num_nodes)
    return Simulator(replace(costs, times_us=longer * costs.times_us), contention).run(plan)


needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")


@needs_compiler
def test_on_one_device_order_and_memory_are_those_of_the_run(program: Program) -> None:
    plan = alone(program, priority=np.random.default_rng(0).integers(0, 9, program.num_nodes))
    with NativeExecutor(program, MOLDABLE) as native:
        costs = measure_costs(native, repetitions=1)
        native.run(plan)
        ran = native.last_timeline
    simulated = Simulator(costs).run(plan)
    computed = np.flatnonzero(costs.computed)
    assert (np.argsort(ran.begin_us[computed]) == np.argsort(simulated.begin_us[computed])).all()
    assert peak_bytes(costs, simulated)["host"] == pytest.approx(ran.peak_bytes, rel=0.01)


@needs_compiler
def test_simulated_peaks_are_those_of_random_plans(program: Program) -> None:
    """Given the times at which operations really ran; those that run at once are taken to peak together, which is too
    much by what kernels of such small tensors take for themselves."""
    rng = np.random.default_rng(1)
    with NativeExecutor(program, MOLDABLE) as native:
        costs = measure_costs(native, repetitions=1)
        for _ in range(4):
            native.run(random_plan(program, rng, names(MOLDABLE)))
            ran = native.last_timeline
            assert 0.99 <= peak_bytes(costs, ran)["host"] / ran.peak_bytes <= 1.5


def costs_streams(costs: Costs, simulation: Timeline) -> StreamProgram:
    """Stream program of a simulated run: each device takes its operations in the order in which they began."""
    memories = list(dict.fromkeys(device.memory for device in costs.devices))
    computed = np.flatnonzero(costs.computed)
    group = np.full(costs.num_nodes, -1)
    group[computed] = np.arange(len(computed))
    rank = np.empty(len(computed), np.int64)
    rank[group[simulation.order[costs.computed[simulation.order]]]] = np.arange(len(computed))
    results, nowhere = np.flatnonzero(costs.kept), np.full(costs.num_nodes, -1)
    own = costs.own_bytes[simulation.device, np.arange(costs.num_nodes)]
    transient = transient_bytes(costs.edges, group, results, costs.storages, own)
    lane = simulation.device[computed]
    work = Work(costs.edges, group, lane, rank, nowhere, results, costs.output_bytes, transient, costs.storages)
    lane_memory = np.array([memories.index(device.memory) for device in costs.devices])
    return lowered(work, memories, [device.name for device in costs.devices], lane_memory)


def simulated(costs: Costs, plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
    """Peaks of the simulated run, and those that are proven of all runs of its stream program."""
    run = Simulator(costs, ROUGH).run(plan)
    return peak_bytes(costs, run), check(costs_streams(costs, run)).peak_bytes


@given(cases())
@settings(max_examples=60)
def test_a_simulated_run_takes_no_more_than_is_proven_of_its_stream_program(case: tuple[Costs, Plan]) -> None:
    ran, proven = simulated(*case)
    assert all(ran[memory] <= proven[memory] for memory in ran)


def test_peaks_of_workloads_are_at_most_proven_and_equal_on_one_device(bundled_program: Program) -> None:
    """On lanes that share a memory, and on memories of their own, where views lie in copies of their bases, with links
    that queue and with links that do not."""
    rng, total = np.random.default_rng(2), 0
    for memories, queue in (("abc", True), ("aab", True), ("abc", False)):
        devices = [Device(f"cpu:{n}", "cpu", (), 1, memory, "test") for n, memory in enumerate(memories)]
        times = rng.lognormal(2, 1, (3, bundled_program.num_nodes))
        costs = replace(profiled_costs(bundled_program, devices, times), copies_queue=queue)
        for _ in range(2):
            ran, proven = simulated(costs, random_plan(bundled_program, rng, names(devices)))
            assert all(ran[memory] <= proven[memory] for memory in ran)
            total += sum(ran.values())
        ran, proven = simulated(costs, alone(bundled_program, "cpu:2"))
        assert ran == proven
    assert total > 0


@given(cases())
@settings(max_examples=60)
def test_a_simulated_run_keeps_the_order_and_the_waits_of_its_stream_program(case: tuple[Costs, Plan]) -> None:
    costs, plan = case
    run = Simulator(costs, ROUGH).run(plan)
    assert_is_a_run_of(costs_streams(costs, run), run)


@given(cases(), st.sampled_from([NOTHING, ROUGH]))
@settings(max_examples=60)
def test_a_plan_in_the_order_of_its_simulation_is_simulated_alike(case: tuple[Costs, Plan], rough: Contention) -> None:
    costs, plan = case
    simulator = Simulator(costs, rough)
    run = simulator.run(plan)
    again = simulator.run(in_order_of(plan, run))
    assert (again.begin_us == run.begin_us).all() and (again.end_us == run.end_us).all()


def test_values_in_one_memory_are_seen(bundled_program: Program) -> None:
    """A view holds the storage of its base, and no input's memory counts."""
    found = storages(bundled_program)
    held = {node: set() for node in range(bundled_program.num_nodes)}
    for storage, node in found.held.T.tolist():
        held[node].add(storage)
    for node, operation in enumerate(bundled_program.operations):
        if operation.is_view and operation.producers:
            assert held[node] <= held[operation.producers[0]]
        if operation.kind != "operation":
            assert not held[node]
    assert (found.num_bytes > 0).all()


def test_a_plan_that_does_not_fit_is_refused() -> None:
    costs = made(MOLDABLE, [], np.ones((3, 2)))
    with pytest.raises(ValueError, match="places 3 nodes"):
        Simulator(costs).run(Plan(("cpu:0",), np.zeros(3, np.int64)))
    with pytest.raises(ValueError, match="uses device 'cuda:0'"):
        Simulator(costs).run(Plan(("cuda:0",), np.zeros(2, np.int64)))
