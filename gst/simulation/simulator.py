"""Discrete-event simulator: the runtime of a plan from measured costs, without running it; and its calibration.

The rule is the interpreter's (`gst/execution/interpreter.cpp`): a core runs the ready operation of least rank among
those that use it, and an operation on several cores starts when it is the choice of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.calls import Costs
from gst.lowering.plan import Plan, Timeline, ranks, rows
from gst.machine.devices import MOST_CORES, core_numbers, core_use, memories_of, overlap
from gst.simulation.event_kernel import Cores, Work, simulate
from gst.util.compiled import compiled


class Contention(NamedTuple):
    """Costs that operations cause each other, fitted by `fit`.

    Args:
        slowdown: share of its speed that an operation loses to each other one that runs.
        memory_slowdown: further share, times the traffic of both in units of 10 GB/s.
        remote_ns_per_byte: to read what another device's thread has written, from its caches.
        helper_us: that an operation of several threads takes longer where its helpers have fallen asleep.
        switch_us: from the end of an operation to the start of the next on the same thread.
        hand_over_us: the same when another thread waits for it, awake.
        wake_us: the same when the other thread sleeps: its core was in use, or it waited longer than `spin_us`.
        spin_us: time that threads look for work before they sleep.
        helper_spin_us: time that helpers of an operation wait for the next of their thread, see `gst.util.process`.
    """

    slowdown: float = 0.0
    memory_slowdown: float = 0.0
    remote_ns_per_byte: float = 0.0
    helper_us: float = 0.0
    switch_us: float = 0.3
    hand_over_us: float = 1.0
    wake_us: float = 30.0
    spin_us: float = 500.0
    helper_spin_us: float = 25.0


UNCALIBRATED = Contention()


class Simulator:
    """Simulates plans of one program. The same plan always takes the same time.

    Args:
        costs: of the program on the devices that plans name.
        contention: costs that operations cause each other.

    Attributes:
        cores: numbers of the cores of each device, see `core_numbers`.
        worker: number of the thread that runs each device.
        leader: number of each thread's own core.
        threads: of one operation on each device.
    """

    def __init__(self, costs: Costs, contention: Contention = UNCALIBRATED) -> None:
        self.costs = costs
        self.contention = Contention(*map(float, contention))  # the kernel is compiled for floats
        self._names = tuple(device.name for device in costs.devices)
        self._machine = _machine(costs)
        self._work = _work(costs)
        self.cores = core_numbers(costs.devices)
        self.worker, self.leader, self.threads = self._machine.worker, self._machine.leader, self._machine.threads

    def run(self, plan: Plan) -> Timeline:
        """Simulate one plan.

        Raises:
            ValueError: the plan is for another number of nodes or names an unknown device.
        """
        if len(plan.placement) != self.costs.num_nodes:
            raise ValueError(f"the plan places {len(plan.placement)} nodes, the program has {self.costs.num_nodes}")
        home = plan.homes(self._names)
        begin, end = simulate(home, ranks(plan), self._work, self._machine, self.contention)
        return Timeline(home, begin, end)

    def makespans(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        """Return the microseconds that each plan takes."""
        return np.array([self.run(plan).makespan_us for plan in plans])


def _work(costs: Costs) -> Work:
    return Work(
        *costs.readers, *costs.producers, np.diff(costs.producers.bounds), costs.computed, costs.times_us,
        costs.traffic_bytes / 1e4, costs.output_bytes.astype(np.float64),
    )  # fmt: skip


def _machine(costs: Costs) -> Cores:
    numbers = core_numbers(costs.devices)
    if (count := len({core for mine in numbers for core in mine})) > MOST_CORES:
        raise ValueError(f"{count} cores and accelerators; at most {MOST_CORES} are simulated: name some by --devices")
    leaders = list(dict.fromkeys(mine[0] for mine in numbers))
    thread_of = {leader: thread for thread, leader in enumerate(leaders)}
    use = core_use(costs.devices)
    cores = np.packbits(np.pad(use, ((0, 0), (0, -use.shape[1] % 64))), axis=1, bitorder="little").view(np.uint64)
    words = np.array([(min(mine) // 64, max(mine) // 64 + 1) for mine in numbers], np.int64).reshape(-1, 2)
    worker = np.array([thread_of[mine[0]] for mine in numbers], np.int64)
    pairs = [(device, core) for device, mine in enumerate(numbers) for core in mine[1:]]
    covered = [(device, thread_of[core]) for device, core in pairs if core in thread_of]
    takes, taken = np.array(covered, np.int64).reshape(-1, 2).T
    covers = rows(takes, taken, len(numbers))
    threads = np.array([device.threads for device in costs.devices])
    leader = np.array(leaders, np.int64)
    memories, memory = memories_of(costs.devices)
    queue = costs.copies_queue and len(memories) > 1
    return Cores(
        cores, words, worker, leader, *covers, threads, costs.latency_us, costs.bytes_per_us,
        memory if queue else np.full_like(memory, -1), len(memories) * queue, overlap(costs.devices),
    )  # fmt: skip


# Calibration: contention between operations, fitted to timelines of plans that ran ------------------------------------

TRIMMED = 0.01  # share of the operations left out, those that fit least: interrupted by something else


def fit(costs: Costs, runs: Sequence[Sequence[Timeline]], start: Contention = UNCALIBRATED) -> Contention:
    """Fit the contention under which the simulator gives the operations of `runs` the durations they had.

    The excess of a duration over its time alone is linear in the unknowns: non-negative least squares, then again
    without the one in a hundred that fits least. Each operation counts in its shortest run. Times from one operation to
    the next are medians over the quickest run of each plan.

    Args:
        costs: of the program, on the devices that ran it.
        runs: of each plan, run alternately (`runs_in_turns`); a dozen plans that keep several devices busy suffice.
        start: values that are not fitted, and defaults for times that no run shows.
    """
    from scipy.optimize import nnls

    simulator = Simulator(costs)
    rows = np.concatenate([_shortest([_rows(simulator, run, start.helper_spin_us) for run in each]) for each in runs])
    scale = np.maximum(np.abs(rows[:, :-1]).max(0), 1e-12)
    terms, excess = rows[:, :-1] / scale, rows[:, -1]
    weights, _ = nnls(terms, excess)
    errors = excess - terms @ weights
    usual_ones = np.abs(errors) <= np.quantile(np.abs(errors), 1 - TRIMMED)
    weights, _ = nnls(terms[usual_ones], excess[usual_ones])
    slowdown, memory_slowdown, remote, helper_us = weights / scale
    quickest = [min(each, key=lambda run: run.makespan_us) for each in runs]
    gaps: dict[str, list[float]] = {}
    for run in quickest:
        _add_gaps(gaps, simulator, run, start.spin_us)
    return start._replace(
        slowdown=float(slowdown), memory_slowdown=float(memory_slowdown), remote_ns_per_byte=float(remote) * 1e3,
        helper_us=float(helper_us), **{name: float(np.median(each)) for name, each in gaps.items()},
    )  # fmt: skip


def _shortest(rows: Sequence[Float64[np.ndarray, "operations 5"]]) -> Float64[np.ndarray, "operations 5"]:
    """Return the row of each operation from the run in which it was shortest."""
    of_runs = np.stack(rows)
    return of_runs[of_runs[:, :, -1].argmin(0), np.arange(of_runs.shape[1])]


def _rows(simulator: Simulator, run: Timeline, helper_spin_us: float) -> Float64[np.ndarray, "operations 5"]:
    """Return for each operation: microseconds with others, the same times both traffics, bytes from another thread, 1
    if its helpers slept, and its excess over its time alone."""
    costs = simulator.costs
    nodes = np.flatnonzero(costs.computed)
    alone = costs.times_us[run.device[nodes], nodes]
    intensity = np.zeros(costs.num_nodes)
    intensity[nodes] = costs.traffic_bytes[nodes] / 1e4 / np.maximum(alone, 1e-3)
    worker = simulator.worker[run.device]
    producers, consumers = costs.edges[:, costs.computed[costs.edges[0]]]
    crossing = worker[producers] != worker[consumers]
    remote = np.bincount(
        consumers[crossing], costs.output_bytes[producers[crossing]].astype(np.float64), costs.num_nodes
    )
    order = nodes[np.argsort(run.begin_us[nodes], kind="stable")]
    beside, traffic = _overlaps(order, run.begin_us, run.end_us, intensity)
    took = run.end_us[nodes] - run.begin_us[nodes]
    asleep = _helpers_asleep(order, run, worker, simulator.threads[run.device] > 1, helper_spin_us)
    return np.stack([beside[nodes], traffic[nodes], remote[nodes], asleep[nodes], took - alone], axis=1)


def _helpers_asleep(
    order: Int64[np.ndarray, " operations"],
    run: Timeline,
    worker: Int64[np.ndarray, " nodes"],
    wide: Bool[np.ndarray, " nodes"],
    helper_spin_us: float,
) -> Float64[np.ndarray, " nodes"]:
    """Return 1 for each operation of several threads whose thread has run none for `helper_spin_us`."""
    asleep = np.zeros(len(worker))
    until: dict[int, float] = {}
    for node in order[wide[order]].tolist():
        asleep[node] = run.begin_us[node] - until.get(worker[node], -np.inf) > helper_spin_us
        until[worker[node]] = run.end_us[node]
    return asleep


@compiled
@no_type_check
def _overlaps(order, begin, end, intensity):
    """Return the time that each node of `order` (by begin) ran with others, and the same weighted by both
    intensities."""
    beside, traffic = np.zeros(len(begin)), np.zeros(len(begin))
    for position in range(len(order)):
        node = order[position]
        for later in range(position + 1, len(order)):
            other = order[later]
            if begin[other] >= end[node]:
                break
            shared = min(end[node], end[other]) - begin[other]
            weight = intensity[node] * intensity[other]
            beside[node] += shared
            beside[other] += shared
            traffic[node] += shared * weight
            traffic[other] += shared * weight
    return beside, traffic


def _add_gaps(gaps: dict[str, list[float]], simulator: Simulator, run: Timeline, spin_us: float) -> None:
    """Add the delay of each operation after its inputs and cores are free, in microseconds, by its name in
    `Contention`."""
    costs = simulator.costs
    worker, leader = simulator.worker[run.device], simulator.leader.tolist()
    leading = [[core for core in mine if core in leader] for mine in simulator.cores]
    latest = np.full(costs.num_nodes, -1)
    latest_end = np.zeros(costs.num_nodes)
    for producer, consumer in costs.edges[:, costs.computed[costs.edges[0]]].T.tolist():
        if run.end_us[producer] > latest_end[consumer]:
            latest[consumer], latest_end[consumer] = producer, run.end_us[producer]
    last_on_core: dict[int, int] = {}
    nodes = np.flatnonzero(costs.computed)
    for node in nodes[np.argsort(run.begin_us[nodes], kind="stable")].tolist():
        mine = leading[run.device[node]]
        before = [last_on_core[core] for core in mine if core in last_on_core]
        awaited = [*before, int(latest[node])] if latest[node] >= 0 else before
        trigger = max(awaited, key=lambda n: run.end_us[n], default=-1)
        own = last_on_core.get(leader[worker[node]], -1)
        for core in mine:
            last_on_core[core] = node
        if trigger < 0:
            continue
        gap = run.begin_us[node] - run.end_us[trigger]
        if worker[trigger] == worker[node]:
            name = "switch_us"
        elif own >= 0 and worker[own] == worker[node] and run.end_us[trigger] - run.end_us[own] < spin_us:
            name = "hand_over_us"
        else:
            name = "wake_us"
        gaps.setdefault(name, []).append(gap)
