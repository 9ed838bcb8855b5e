"""Random programs on random machines, as placement tasks to train and to test on; none is ever measured."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, Storages
from gst.machine.devices import Device
from gst.placement.task import Task

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
