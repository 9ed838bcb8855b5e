"""Costs of a program on devices, which the simulator reads: time and memory of each operation alone, and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.calls import Storages, storages
from gst.lowering.plan import Timeline
from gst.lowering.stream_program import Rows, rows
from gst.machine.devices import Device, core_use, memories_of
from gst.programs import Program, Reference

Links = tuple[Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "devices devices"]]  # us; bytes per us
COPY_US = 20.0  # from memory to memory where no link was measured
COPY_BYTES_PER_US = 5_000.0  # 5 GB/s, likewise


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of each operation of a program on each device, alone, and of the links between devices.

    Args:
        edges: producer -> consumer.
        computed: false for inputs and constants, which take no time and no memory.
        kept: True for outputs, which are never freed.
        times_us: of each operation alone; infinite where it cannot run.
        output_bytes: of the value of each node.
        own_bytes: the most that each operation takes while it runs, its result included.
        storages: allocations, and the values that keep them.
        latency_us: fixed part of a transfer's time, from device (row) to device (column); 0 within a memory.
        bytes_per_us: of a copy; infinite within a memory.
        copies_queue: True if each memory sends one copy after the other, as a stream program does; otherwise links
            never queue.
        load: share of the cores that other processes took during the measurement, 0 .. 1; None if unknown.
    """

    devices: tuple[Device, ...]
    edges: Int64[np.ndarray, "2 edges"]
    computed: Bool[np.ndarray, " nodes"]
    kept: Bool[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices nodes"]
    output_bytes: Int64[np.ndarray, " nodes"]
    own_bytes: Int64[np.ndarray, "devices nodes"]
    storages: Storages
    latency_us: Float64[np.ndarray, "devices devices"]
    bytes_per_us: Float64[np.ndarray, "devices devices"]
    copies_queue: bool = False
    load: float | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.computed)

    @cached_property
    def readers(self) -> Rows:
        """Computed nodes that read the value of each computed node, in program order."""
        made, reader = self._computed_edges
        return rows(made, reader, self.num_nodes)

    @cached_property
    def producers(self) -> Rows:
        """Computed nodes whose values each computed node reads."""
        made, reader = self._computed_edges
        return rows(reader, made, self.num_nodes)

    @cached_property
    def cores(self) -> Rows:
        """Cores that each device uses, see `core_numbers`."""
        use = core_use(self.devices)
        return Rows(np.append(0, np.cumsum(use.sum(1))), np.nonzero(use)[1])

    @property
    def _computed_edges(self) -> Int64[np.ndarray, "2 edges"]:
        edges = self.edges[:, self.computed[self.edges].all(0)]
        return edges[:, np.argsort(edges[1], kind="stable")]

    @property
    def traffic_bytes(self) -> Float64[np.ndarray, " nodes"]:
        """Bytes that each operation reads and writes: its result, and each value that it reads."""
        size = self.output_bytes.astype(np.float64)
        return (np.bincount(self.edges[1], size[self.edges[0]], len(size)) + size) * self.computed


def profiled_costs(
    program: Program, devices: Sequence[Device], times_us: Float64[np.ndarray, "devices nodes"],
    links: Links | None = None,
) -> Costs:  # fmt: skip
    """Return costs of a program whose memory was not measured: an operation takes no more than its result.

    Args:
        times_us: of each operation alone; infinite where it cannot run.
        links: from `gst.execution.costs.measured_links`; if None, `COPY_US` and `COPY_BYTES_PER_US` between memories.

    Raises:
        ValueError: an operation can run on none of the devices.
    """
    if (stuck := np.flatnonzero(np.isinf(times_us).all(0))).size:
        names = ", ".join(device.name for device in devices)
        what = program.operations[stuck[0]].target
        raise ValueError(f"operation {stuck[0]} of {program.name} ({what}) can run on none of {names}")
    _, memory = memories_of(devices)
    apart = memory[:, None] != memory
    own_bytes = np.tile(program.output_bytes, (len(devices), 1))
    latency_us, bytes_per_us = links or (COPY_US * apart, np.where(apart, COPY_BYTES_PER_US, np.inf))
    computed = np.array([each.kind == "operation" for each in program.operations])
    kept = np.zeros(program.num_nodes, bool)
    kept[[each.node for each in program.outputs if isinstance(each, Reference)]] = True
    allocated, edges, sizes = storages(program), program.graph.edges, program.output_bytes
    return Costs(tuple(devices), edges, computed, kept, times_us, sizes, own_bytes, allocated, latency_us, bytes_per_us)


def shortest_us(runs: Sequence[Timeline]) -> Float64[np.ndarray, " nodes"]:
    """Return the shortest time of each operation over several runs of a plan, in microseconds: other processes
    interrupt some operations of every run, but seldom the same one in all.

    Examples:
        >>> begins = np.zeros(2)
        >>> runs = [Timeline(np.zeros(2, np.int64), begins, np.array(ends)) for ends in ([9.0, 2.0], [1.0, 3.0])]
        >>> shortest_us(runs).tolist()
        [1.0, 2.0]
    """
    return np.min([each.end_us - each.begin_us for each in runs], axis=0)
