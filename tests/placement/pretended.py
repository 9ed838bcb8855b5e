"""A machine that is not as the simulator believes, which stands for devices: other times, contention, and noise."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.bench.search_loop import unlike
from gst.execution.measure import Measurement
from gst.lowering.plan import Plan
from gst.machine.devices import this_machine
from gst.placement.objectives import Batches, SimulatedObjective
from gst.placement.task import Task


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
