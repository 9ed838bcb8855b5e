"""Discrete-event simulator: the runtime of a plan from measured costs, without running it.

The rule is the interpreter's (`gst/execution/interpreter.cpp`): a core runs the ready operation of least rank among
those that use it, and an operation on several cores starts when it is the choice of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from gst.lowering.costs import Costs
from gst.lowering.plan import Plan, Timeline, ranks
from gst.lowering.stream_program import rows
from gst.machine.devices import MOST_CORES, core_numbers, overlap
from gst.simulation.event_kernel import Cores, Work, simulate


class Contention(NamedTuple):
    """Costs that operations cause each other, fitted by `gst.simulation.calibration`.

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
        self._positions = {device.name: position for position, device in enumerate(costs.devices)}
        self._machine = _machine(costs)
        self._work = _work(costs)
        self.cores = core_numbers(costs.devices)
        self.worker, self.leader, self.threads = self._machine.worker, self._machine.leader, self._machine.threads

    def run(self, plan: Plan) -> Timeline:
        """Simulate one plan.

        Raises:
            ValueError: the plan is for another number of nodes or names an unknown device.
        """
        home = self._home(plan)
        begin, end = simulate(home, ranks(plan), self._work, self._machine, self.contention)
        return Timeline(home, begin, end)

    def makespans(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        """Return the microseconds that each plan takes."""
        return np.array([self.run(plan).makespan_us for plan in plans])

    def _home(self, plan: Plan) -> Int64[np.ndarray, " nodes"]:
        if len(plan.placement) != self.costs.num_nodes:
            raise ValueError(f"the plan places {len(plan.placement)} nodes, the program has {self.costs.num_nodes}")
        unknown = [name for name in plan.devices if name not in self._positions]
        if unknown:
            raise ValueError(f"the plan uses device {unknown[0]!r}; costs are known of {', '.join(self._positions)}")
        return np.array([self._positions[name] for name in plan.devices], np.int64)[plan.placement]


def _work(costs: Costs) -> Work:
    edges = costs.edges[:, costs.computed[costs.edges[0]] & costs.computed[costs.edges[1]]]
    edges = edges[:, np.argsort(edges[1], kind="stable")]  # the readers of a value in program order
    indptr, consumers = rows(edges[0], edges[1], costs.num_nodes)
    producer_indptr, producers = rows(edges[1], edges[0], costs.num_nodes)
    return Work(
        indptr, consumers, producer_indptr, producers, np.diff(producer_indptr), costs.computed, costs.times_us,
        costs.traffic_bytes / 1e4, costs.output_bytes.astype(np.float64),
    )  # fmt: skip


def _machine(costs: Costs) -> Cores:
    numbers = core_numbers(costs.devices)
    if (count := len({core for mine in numbers for core in mine})) > MOST_CORES:
        raise ValueError(f"{count} cores and accelerators; at most {MOST_CORES} are simulated: name some by --devices")
    leaders = list(dict.fromkeys(mine[0] for mine in numbers))
    thread_of = {leader: thread for thread, leader in enumerate(leaders)}
    cores = core_words(numbers)
    words = np.array([(min(mine) // 64, max(mine) // 64 + 1) for mine in numbers], np.int64).reshape(-1, 2)
    worker = np.array([thread_of[mine[0]] for mine in numbers], np.int64)
    pairs = [(device, core) for device, mine in enumerate(numbers) for core in mine[1:]]
    covered = [(device, thread_of[core]) for device, core in pairs if core in thread_of]
    takes, taken = np.array(covered, np.int64).reshape(-1, 2).T
    covers = rows(takes, taken, len(numbers))
    threads = np.array([device.threads for device in costs.devices])
    leader = np.array(leaders, np.int64)
    memories = list(dict.fromkeys(device.memory for device in costs.devices))
    memory, num_lanes = np.full(len(numbers), -1), 0
    if costs.copies_queue and len(memories) > 1:
        memory = np.array([memories.index(device.memory) for device in costs.devices])
        num_lanes = len(memories)
    return Cores(
        cores, words, worker, leader, *covers, threads, costs.latency_us, costs.bytes_per_us, memory, num_lanes,
        overlap(costs.devices),
    )  # fmt: skip


def core_words(numbers: Sequence[Sequence[int]]) -> UInt64[np.ndarray, "devices words"]:
    """Return the cores of each device as bits, 64 to a word.

    Examples:
        >>> core_words([[0, 2], [65]]).tolist()
        [[5, 0], [0, 2]]
    """
    words = np.zeros((len(numbers), max((core for mine in numbers for core in mine), default=0) // 64 + 1), np.uint64)
    for device, mine in enumerate(numbers):
        for core in mine:
            words[device, core // 64] |= np.uint64(1) << np.uint64(core % 64)
    return words
