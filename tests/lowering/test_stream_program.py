"""Stream programs: what lowering promises, and that the checker finds every mistake that can change an outcome."""

from dataclasses import replace
from functools import cache
from time import process_time

import numpy as np
import pytest
import torch

from gst.execution.lanes import LaneExecutor
from gst.lowering.calls import Storages, eager, storages
from gst.lowering.common_order import Work
from gst.lowering.happens_before import RaceError, check
from gst.lowering.lower import lowered, stream_program
from gst.lowering.plan import COPY, FREE, RECORD, RUN, WAIT, Plan, StreamProgram
from gst.machine.devices import Device
from gst.programs import Program, Step, capture, outputs_differ
from tests.lowering.interleavings import explore, mutants, random_work

allocated = cache(storages)


def lanes_of(memories: int, lanes: int) -> list[Device]:
    """Devices of so many memories, with so many lanes in each."""
    return [
        Device(f"gpu:{memory}/{lane}", "cpu", (), 1, f"gpu:{memory}", "test")
        for memory in range(memories)
        for lane in range(lanes)
    ]


def random_plan(program: Program, devices: list[Device], rng: np.random.Generator) -> Plan:
    """Nodes anywhere, in any priority; every second plan with groups."""
    nodes, fusion = program.num_nodes, None
    if rng.random() < 0.5:
        fusion = rng.integers(-1, nodes // 8, nodes)
    names = tuple(device.name for device in devices)
    return Plan(names, rng.integers(0, len(names), nodes), rng.integers(-5, 5, nodes), fusion)


def random_streams(program: Program, rng: np.random.Generator, memories: int = 3, lanes: int = 2) -> StreamProgram:
    devices = lanes_of(memories, lanes)
    return stream_program(program, random_plan(program, devices, rng), devices, allocated(program))


def is_caught(program: StreamProgram) -> bool:
    try:
        check(program)
    except RaceError:
        return True
    return False


def test_every_lowered_plan_is_free_of_races(program: Program) -> None:
    rng = np.random.default_rng(0)
    for memories, lanes in ((1, 4), (8, 4)):
        peak = check(random_streams(program, rng, memories, lanes)).peak_bytes
        assert len(peak) == memories and sum(peak.values()) > 0


def test_values_are_copied_once_and_parameters_lie_where_they_are_read(program: Program) -> None:
    rng = np.random.default_rng(1)
    devices = lanes_of(3, 2)
    plan = replace(random_plan(program, devices, rng), fusion=None)
    streams = stream_program(program, plan, devices, allocated(program))
    memory = plan.placement // 2
    read = {(producer, int(memory[node])) for producer, node in program.graph.edges.T.tolist()}
    is_copy = streams.kind == COPY
    copies = list(zip(streams.argument[is_copy].tolist(), streams.target[is_copy].tolist(), strict=True))
    assert len(set(copies)) == len(copies) and set(copies) <= read
    there = {*copies, *map(tuple, streams.residents.T.tolist())}
    computed = [node for node, each in enumerate(program.operations) if each.kind == "operation"]
    assert read <= there | {(node, int(memory[node])) for node in computed}
    lanes = streams.lane_of_step
    assert {streams.lanes[lane] for lane in lanes[is_copy]} <= {f"copies of gpu:{number}" for number in range(3)}
    renewed = {int(program.parameter_home[node]): int(memory[node]) for node in streams.results[0]}
    unread = {int(node) for node in streams.results[0]}
    for node, where in streams.residents.T.tolist():
        if node in renewed:  # where the next step finds it
            assert where == renewed[node]
        else:
            assert (node, where) in read or node in unread or program.parameter_home[node] < 0


def test_every_value_is_freed_once_unless_it_is_a_result(program: Program) -> None:
    streams = random_streams(program, np.random.default_rng(2))
    memory = streams.lane_memory[streams.lane_of_step]
    freed = [tuple(pair) for pair in np.stack([streams.argument, memory])[:, streams.kind == FREE].T.tolist()]
    results = {tuple(pair) for pair in streams.results.T.tolist()}
    assert len(set(freed)) == len(freed)
    assert {tuple(pair) for pair in streams.made.T.tolist()} == {*freed, *results} - {
        tuple(pair) for pair in streams.residents.T.tolist()
    }


def test_no_wait_can_be_dropped(program: Program) -> None:
    """Transitive reduction: every wait that is left orders two steps that nothing else orders."""
    rng = np.random.default_rng(3)
    streams = random_streams(program, rng, 2, 2)
    waits = rng.choice(np.flatnonzero(streams.kind == WAIT), 30, replace=False).tolist()
    dropped = {name: mutant for name, mutant in mutants(streams, waits).items() if name.startswith("without")}
    assert len(dropped) == 30 and all(map(is_caught, dropped.values()))
    assert (np.sort(streams.argument[streams.kind == RECORD]) == np.arange(streams.num_events)).all()


def test_one_lane_has_no_events_and_frees_at_the_last_use(program: Program) -> None:
    devices = lanes_of(1, 1)
    streams = stream_program(program, Plan(("gpu:0/0",), np.zeros(program.num_nodes, np.int64)), devices)
    assert not np.isin(streams.kind, (RECORD, WAIT, COPY)).any()
    reads = streams.reads.lists()
    last: dict[int, int] = {}
    for step in np.flatnonzero(streams.kind == RUN).tolist():
        last |= dict.fromkeys([*reads[streams.argument[step]], *streams.members.lists()[streams.argument[step]]], step)
    holds = {node: set(buffers) for node, buffers in zip(streams.made[0].tolist(), streams.holds.lists(), strict=True)}
    given_back = set().union(*holds.values()) - set().union(*(holds.get(node, set()) for node in streams.results[0]))
    for step in np.flatnonzero(streams.kind == FREE).tolist():
        run, node = step, int(streams.argument[step])
        while streams.kind[run] == FREE:
            run -= 1
        buffers = holds[node] & given_back
        sharing = {other for other in holds if holds[other] & buffers} if len(buffers) == 1 else {node}
        assert run == max(last[other] for other in sharing)  # a buffer at once


def test_no_lane_stands_still_for_a_free(program: Program) -> None:
    """What it frees, a lane knows to be read by all; it asks only behind its last run or copy."""
    streams = random_streams(program, np.random.default_rng(7), 2, 3)
    for begin, end in zip(streams.bounds[:-1], streams.bounds[1:], strict=True):
        kind = streams.kind[begin:end].tolist()
        works = [step for step, each in enumerate(kind) if each in (RUN, COPY)]
        for step, each in enumerate(kind[: works[-1]] if works else []):
            assert not (each == WAIT and kind[step + 1] == FREE)


def judged(seed: int, memories: int, lanes: int) -> tuple[int, int, int]:
    """Mutants of a random program of six nodes, those that depend on luck, and those that the checker caught."""
    program = random_work(np.random.default_rng(seed), 6, memories, lanes)
    outcome = explore(program)
    assert not outcome.luck
    assert all(size >= outcome.peak[int(memory)] for memory, size in check(program).peak_bytes.items())
    bad = caught = 0
    every = mutants(program)
    for name, mutant in every.items():
        luck, found = explore(mutant).luck, is_caught(mutant)
        assert luck == found, f"seed {seed}: {name}"
        bad, caught = bad + luck, caught + found
    return len(every), bad, caught


def test_every_mutant_that_can_change_an_outcome_is_caught() -> None:
    """By every interleaving: what the checker refuses depends on luck, and what it accepts does not."""
    sums = np.sum([judged(seed, 2, 1) for seed in range(5)] + [judged(seed, 1, 3) for seed in range(3)], axis=0)
    assert sums[0] > 100 and 0.3 * sums[0] < sums[1] == sums[2] < sums[0]


def test_no_interleaving_takes_more_than_is_proven() -> None:
    proven, most = [], []
    for seed in range(100, 112):
        program = random_work(np.random.default_rng(seed), 7, *((1, 2), (2, 1), (1, 3))[seed % 3])
        outcome = explore(program)
        proven += check(program).peak_bytes.values()
        most += [outcome.peak[each] for each in range(len(program.memories))]
    assert all(map(int.__ge__, proven, most)) and proven.count(0) == most.count(0)
    assert sum(map(int.__eq__, proven, most)) > 0.7 * len(most), "most bounds are exact"


def layered(operations: int, memories: int, lanes: int) -> tuple[Work, list[str], list[str], np.ndarray]:
    """A layered program of many operations, each of which reads two of the fifty before it, near where they are: what
    `lowered` takes."""
    rng = np.random.default_rng(0)
    node = np.arange(10, operations)
    edges = np.concatenate(
        [np.stack([node - rng.integers(1, 50, len(node)).clip(max=node), node]) for _ in range(2)], 1
    )
    edges = np.unique(edges[:, edges[0] >= 0], axis=1)
    group = np.where(np.arange(operations) < 10, -1, np.arange(operations) - 10)
    count = len(node)
    lane = (node // 200 + rng.integers(0, 2, count)) % (memories * lanes)
    sizes = rng.integers(1, 1000, operations)
    work = Work(
        edges, group, lane, np.arange(count), np.where(group < 0, 0, -1), np.array([operations - 1]), sizes,
        np.zeros(count, np.int64), Storages(sizes[10:], node, np.stack([np.arange(count), node])),
    )  # fmt: skip
    names = [f"{memory}/{each}" for memory in range(memories) for each in range(lanes)]
    return work, [str(each) for each in range(memories)], names, np.repeat(np.arange(memories), lanes)


@pytest.mark.slow
def test_the_time_to_lower_and_check_40_000_operations_grows_as_they_do(unchecked: None) -> None:
    def took(count: int) -> float:
        work = layered(count, 4, 2)
        begin = process_time()
        check(lowered(*work))
        return process_time() - begin

    took(1_000)  # compiled
    assert took(40_000) < 10 * took(10_000)  # it would be 16 times if it grew as their square


def spread(count: int) -> Program:
    """`count` values made on one device, which another adds up one after the other."""

    def step(value: torch.Tensor) -> torch.Tensor:
        made = [value * number for number in range(1, count + 1)]
        total = made[0]
        for each in made[1:]:
            total = total + each
        return total

    return capture(Step("spread", step, (torch.ones(1_000),)))


def test_copies_are_as_late_as_a_memory_limit_demands() -> None:
    """Made as soon as they can be, ten copies of 4,000 bytes lie in the second memory at once; no more than the limit
    allows where there is one, and outputs are the same."""
    program, devices = spread(10), lanes_of(2, 1)
    adds = [each.kind == "operation" and "add" in str(each.target) for each in program.operations]
    plan = Plan(tuple(device.name for device in devices), np.array(adds).astype(np.int64))
    early = stream_program(program, plan, devices)
    peak = check(early).peak_bytes["gpu:1"]
    assert peak >= 10 * 4_000
    peaks = []
    for limit in (peak, 32_000, 16_000):
        limited = [devices[0], replace(devices[1], memory_limit=limit)]
        late = stream_program(program, plan, limited)
        peaks.append(check(late).peak_bytes["gpu:1"])
        assert outputs_differ(LaneExecutor(program, late, limited).run(), eager(program)) is None
        assert peaks[-1] <= limit
        assert (late.kind == COPY).sum() == (early.kind == COPY).sum()
    assert peaks == sorted(peaks, reverse=True) and peaks[0] == peak
    assert late.num_events > early.num_events


def test_late_copies_of_random_plans_are_free_of_races(program: Program) -> None:
    rng, devices = np.random.default_rng(8), lanes_of(3, 2)
    plan = random_plan(program, devices, rng)
    early = sum(check(stream_program(program, plan, devices, allocated(program))).peak_bytes.values())
    limited = [replace(device, memory_limit=1) for device in devices]
    late = stream_program(program, plan, limited, allocated(program))
    assert outputs_differ(LaneExecutor(program, late, limited).run(), eager(program)) is None
    assert sum(check(late).peak_bytes.values()) <= early
