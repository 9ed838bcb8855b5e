"""Simulated machines by the roofline model; they are never measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float64

from gst.lowering.calls import Costs, profiled_costs
from gst.machine.devices import Device
from gst.placement.task import Task
from gst.programs import Program
from gst.programs.features import flops
from gst.programs.operation import ACCELERATOR
from gst.simulation.simulator import Contention

NAME = re.compile(r"(cores|gpus):(\d+)")
VIEW_US = 0.3  # of a CPU
STREAMS = Contention(switch_us=0.0, hand_over_us=0.0, wake_us=0.0)
"""Delays of GPUs: no thread sleeps or wakes on them; operations wait `launch_us`, copies `link_us`."""


@dataclass(frozen=True)
class Chip:
    """A device by its data sheet.

    Args:
        gflops: rate of matrix products and convolutions.
        gb_per_s: bandwidth of its memory.
        launch_us: time of the smallest operation.
        memory_bytes: limit for a plan; None = no limit.
    """

    kind: str
    gflops: float
    gb_per_s: float
    launch_us: float
    memory_bytes: int | None = None

    def times_us(
        self,
        arithmetic: Float64[np.ndarray, " nodes"],
        traffic: Float64[np.ndarray, " nodes"],
        is_view: Bool[np.ndarray, " nodes"],
    ) -> Float64[np.ndarray, " nodes"]:
        """Return the time of each operation: the launch, and the longer of arithmetic (floating-point operations) and
        traffic (bytes), by Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009; `VIEW_US` of CPU views."""
        busy = np.maximum(arithmetic / self.gflops, traffic / self.gb_per_s) / 1e3
        return np.where(is_view, VIEW_US if self.kind == "cpu" else 0.0, self.launch_us + busy)


@dataclass(frozen=True)
class Machine:
    """Chips, each with a memory of its own, and one kind of link between all of them.

    Args:
        chips: device i has the name of the kind of its chip, `cpu:i`.
        link_us: time of the smallest copy.
        link_gb_per_s: rate of large copies.
    """

    chips: tuple[Chip, ...]
    link_us: float
    link_gb_per_s: float
    name: str = ""

    @property
    def devices(self) -> tuple[Device, ...]:
        """A device of one thread for each chip."""
        names = [f"{chip.kind}:{number}" for number, chip in enumerate(self.chips)]
        return tuple(
            Device(name, chip.kind, (), 1, name, f"simulated: {chip.gflops:g} GFLOP/s", chip.memory_bytes)
            for name, chip in zip(names, self.chips, strict=True)
        )

    def costs(self, program: Program) -> Costs:
        """Return the costs of a program: operations take the roofline of their chip."""
        arithmetic, size = flops(program.operations), program.output_bytes.astype(np.float64)
        read = np.bincount(program.graph.edges[1], size[program.graph.edges[0]], program.num_nodes)
        computed = np.array([each.kind == "operation" for each in program.operations])
        view = np.array([each.is_view for each in program.operations])
        rows = [chip.times_us(arithmetic, read + size, view) * computed for chip in self.chips]
        found = profiled_costs(program, self.devices, np.stack(rows))
        apart = found.latency_us > 0
        return replace(
            found, latency_us=self.link_us * apart, bytes_per_us=np.where(apart, self.link_gb_per_s * 1e3, np.inf),
            copies_queue=self.has_accelerators,
        )  # fmt: skip

    @property
    def contention(self) -> Contention:
        """Delays between operations: those of threads on CPUs; none if one of the chips is a GPU."""
        return STREAMS if self.has_accelerators else Contention()

    @property
    def has_accelerators(self) -> bool:
        """True if one of the chips is no CPU; copies then queue."""
        return any(chip.kind != "cpu" for chip in self.chips)

    def task(self, program: Program) -> Task:
        """Return the task of placing a program on these chips."""
        return Task.of_program(program, self.costs(program), self.contention)


CORE = Chip("cpu", gflops=60.0, gb_per_s=10.0, launch_us=3.0)
CORE_LINK, BUS = (20.0, 5.0), (15.0, 12.0)  # us of the smallest copy, GB/s of large ones
GPU = Chip(ACCELERATOR, gflops=15_000.0, gb_per_s=1_500.0, launch_us=4.0)


def machine(name: str) -> Machine:
    """Return a simulated machine by name: `cores:K` is K cores that copy at 5 GB/s, `gpus:K` is K GPUs on a bus of
    12 GB/s.

    Examples:
        >>> [device.name for device in machine("cores:2").devices]
        ['cpu:0', 'cpu:1']

    Raises:
        ValueError: no such machine.
    """
    found = NAME.fullmatch(name)
    if not found or int(found[2]) < 1:
        raise ValueError(f"there is no simulated machine {name!r}; there are cores:K and gpus:K, such as gpus:4")
    count = int(found[2])
    return Machine((CORE,) * count, *CORE_LINK, name) if found[1] == "cores" else Machine((GPU,) * count, *BUS, name)
