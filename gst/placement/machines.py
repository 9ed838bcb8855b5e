"""Simulated machines by the roofline model, and random programs on random machines; neither is ever measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, Storages, profiled_costs
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


SKIPS = 0.1  # share of nodes that also read something far before them
JOINS = 0.15  # share of layers in which all branches meet
WEIGHTS = 0.5  # share of operations with parameters that lie in memory
PARALLEL = (0.5, 1.0)  # share of an operation that several cores divide among them


def generated_task(seed: int, num_nodes: int | None = None, num_devices: int | None = None) -> Task:
    """Generate a random program on a random machine, the same for the same seed.

    The graph has layers of branches, which meet now and then; every other one has a backward pass, in which each node
    reads its own node of the forward pass and the gradients of all that read that. Times and bytes are lognormal. The
    machine is 2 to 8 devices, each with a memory of its own, alike or of different speed; or 2 to 4 cores of one memory
    and the set of all of them. Moving the typical value takes 0.01 to 3 times as long as the typical operation.

    Args:
        num_nodes: about so many; log-uniform from 50 to 800 if None.
        num_devices: drawn if None; never core sets if given.

    Examples:
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> task.names
        ('gpu:0', 'gpu:1')
    """
    generator = np.random.default_rng(seed)
    wanted = num_nodes or int(np.exp(generator.uniform(np.log(50), np.log(800))))
    edges, nodes = generated_edges(wanted, generator)
    computed = np.isin(np.arange(nodes), edges[1])
    typical_us = float(np.exp(generator.uniform(np.log(10), np.log(300))))
    times = typical_us * generator.lognormal(0.0, generator.uniform(0.5, 1.5), nodes) * computed
    if num_devices is None and generator.random() < 0.25:
        devices, times_us = _cores(int(generator.integers(2, 5)), times, generator)
    else:
        devices, times_us = _apart(num_devices or int(generator.integers(2, 9)), times, generator)
    output_bytes = np.rint(1e5 * generator.lognormal(0.0, 1.0, nodes)).astype(np.int64) + 1
    latency_us, bytes_per_us = _links(devices, typical_us, float(output_bytes.mean()), generator)
    made = np.flatnonzero(computed)
    costs = Costs(
        devices, edges, computed, ~np.isin(np.arange(nodes), edges[0]), times_us, output_bytes,
        np.tile(output_bytes, (len(devices), 1)),
        Storages(output_bytes[made], made, np.stack([np.arange(len(made)), made])), latency_us, bytes_per_us,
    )  # fmt: skip
    name = f"generated:{seed}"
    graph = Graph(np.log1p(times)[:, None].astype(np.float32), edges, name=name)
    weights = output_bytes * generator.lognormal(0.0, 1.0, nodes) * (generator.random(nodes) < WEIGHTS)
    resident = np.where(computed, np.rint(weights).astype(np.int64), output_bytes)
    return Task(name, graph, costs, np.arange(nodes), resident)


def generated_edges(num_nodes: int, generator: np.random.Generator) -> tuple[Int64[np.ndarray, "2 edges"], int]:
    """Return edges in topological order, each pair once, and the number of nodes, close to `num_nodes`."""
    mirrored = generator.random() < 0.5
    size = max(num_nodes // 2 if mirrored else num_nodes, 4)
    widest = max(min(16, size // 3), 1)
    pairs: set[tuple[int, int]] = set()
    layer, count = [0], 1
    while count < size:
        width = 1 if generator.random() < JOINS else int(np.exp(generator.uniform(0, np.log(widest + 1))))
        now = list(range(count, min(count + max(width, 1), size)))
        for branch, node in enumerate(now):
            pairs.add((layer[branch % len(layer)], node))
            if generator.random() < SKIPS:
                pairs.add((int(generator.integers(node)), node))
        pairs |= {(node, now[branch % len(now)]) for branch, node in enumerate(layer)}
        layer, count = now, count + len(now)
    if mirrored:
        last = 2 * size - 1
        pairs |= {(last - consumer, last - producer) for producer, consumer in pairs}
        pairs |= {(node, last - node) for node in range(size)}
    return np.array(sorted(pairs), np.int64).T.copy(), 2 * size if mirrored else size


def _apart(
    count: int, times: Float64[np.ndarray, " nodes"], generator: np.random.Generator
) -> tuple[tuple[Device, ...], Float64[np.ndarray, "devices nodes"]]:
    """Return devices with a memory of their own, and times on them."""
    names = [f"gpu:{number}" for number in range(count)]
    devices = tuple(Device(name, "gpu", (), 1, name, "generated") for name in names)
    if generator.random() < 0.5:
        return devices, np.tile(times, (count, 1))
    factors = generator.lognormal(0.0, 0.6, (count, 1)) * generator.lognormal(0.0, 0.2, (count, len(times)))
    return devices, times * factors


def _cores(
    count: int, times: Float64[np.ndarray, " nodes"], generator: np.random.Generator
) -> tuple[tuple[Device, ...], Float64[np.ndarray, "devices nodes"]]:
    """Return cores of one memory, the set of all of them, and times on them by Amdahl's law."""
    devices = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "generated") for core in range(count)]
    devices.append(Device(f"cpu:0-{count - 1}", "cpu", tuple(range(count)), count, "host", "generated"))
    parallel = generator.uniform(*PARALLEL, len(times))
    together = times * (1 - parallel + parallel / count) + 3.0 * (times > 0)
    return tuple(devices), np.vstack([np.tile(times, (count, 1)), together])


def _links(
    devices: tuple[Device, ...], typical_us: float, typical_bytes: float, generator: np.random.Generator
) -> tuple[Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "devices devices"]]:
    """Return latency in microseconds and bytes per microsecond between devices."""
    apart = np.array([[a.memory != b.memory for b in devices] for a in devices])
    moved_us = typical_us * float(np.exp(generator.uniform(np.log(0.01), np.log(3.0))))
    latency = moved_us * generator.uniform(0.05, 0.5)
    return latency * apart, np.where(apart, typical_bytes / (moved_us - latency), np.inf)
