"""A machine that is not as the simulator believes, which stands for devices: other times, contention, and noise."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gst.execution.measure import Measurement
from gst.lowering.plan import Plan
from gst.machine.devices import this_machine
from gst.placement.objectives import Batches, SimulatedObjective
from gst.placement.task import Task
from gst.simulation.simulator import Contention

SPREAD = 0.2  # standard deviation of logarithms of costs from those believed
SHARED = Contention(slowdown=0.1, memory_slowdown=0.05, remote_ns_per_byte=0.02)  # of cores; unknown to searches


class Pretended:
    """Measures plans of a task on a machine drawn by `seed`; a plan always takes the same time."""

    def __init__(self, task: Task, seed: int = 0, noise: float = 0.01) -> None:
        self._simulated, self._noise = SimulatedObjective(unlike(task, seed)), noise

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]:
        return enumerate(map(self.measure, batches))

    def measure(self, plans: Sequence[Plan]) -> list[Measurement]:
        return [self._one(plan, ms) for plan, ms in zip(plans, self._simulated(plans).tolist(), strict=True)]

    def _one(self, plan: Plan, ms: float) -> Measurement:
        took = ms * float(np.exp(self._noise * np.random.default_rng(zlib.crc32(plan.key.encode())).standard_normal()))
        return Measurement(plan.key, plan.key, (took,), took, took, took, machine=this_machine())


def unlike(task: Task, seed: int) -> Task:
    """A machine that is not as believed: kinds of operations, single ones, devices and links are faster or slower than
    that, and cores slow each other down."""
    generator = np.random.default_rng([seed, 0])

    def factors(*shape: int) -> np.ndarray:
        return np.exp(SPREAD * generator.standard_normal(shape))

    opcodes, costs = task.graph.opcodes, task.costs
    times = costs.times_us * factors(1, int(opcodes.max()) + 1)[:, opcodes] * factors(1, task.num_nodes)
    changed = replace(
        costs, times_us=times * np.sqrt(factors(len(task.devices), 1)), latency_us=costs.latency_us * factors(),
        bytes_per_us=costs.bytes_per_us * factors(),
    )  # fmt: skip
    return replace(task, costs=changed, contention=SHARED if task.devices[0].kind == "cpu" else task.contention)
