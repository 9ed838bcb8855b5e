"""A published graph on a machine: the arrays that schedules are computed from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.formats import PublicGraph
from gst.lowering.stream_program import rows
from gst.placement.baselines.arrays import Arrays, Scheduled, edge_lists, mean_times, scheduled
from gst.placement.machines import machine

MOST_DEVICES = 1024


@dataclass(frozen=True, eq=False)
class Problem:
    """A published graph on named devices.

    Args:
        graph: what is placed.
        machine: name of the machine, `gpus:4` say.
        devices: name of each device.
        kind: of each device, a position in `graph.kinds`.
        arrays: what kernels read.
        notes: what was assumed, those of the graph included.
    """

    graph: PublicGraph
    machine: str
    devices: tuple[str, ...]
    kind: Int64[np.ndarray, " devices"]
    arrays: Arrays
    notes: tuple[str, ...]

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @cached_property
    def scheduled(self) -> Scheduled:
        """Operations and devices for windows and the constructive policy; no device shares a core with another."""
        return scheduled(self.arrays, np.eye(len(self.devices), dtype=bool))

    @cached_property
    def mean_times(self) -> Float64[np.ndarray, " nodes"]:
        """Of each node, over the devices that can run it."""
        return mean_times(self.arrays.times)

    @cached_property
    def group_times(self) -> Float64[np.ndarray, "devices groups"]:
        """Sum of the times of each group on each device; infinite where it cannot run."""
        return np.stack([np.bincount(self.arrays.groups, row, len(self.arrays.sizes)) for row in self.arrays.times])

    @cached_property
    def mean_transfers(self) -> Float64[np.ndarray, " edges"]:
        """Of each edge, over the pairs of different devices."""
        arrays, count = self.arrays, len(self.devices)
        apart = ~np.eye(count, dtype=bool)
        if count < 2:
            return np.zeros(len(arrays.amounts))
        if len(arrays.table):
            pairs = np.zeros(arrays.table.shape[1:])  # how many of each two kinds
            np.add.at(pairs, tuple(self.kind[each] for each in np.nonzero(apart)), 1.0)
            return (arrays.table * pairs).sum((1, 2)) / pairs.sum()
        return arrays.fixed[apart].mean() + arrays.per_amount[apart].mean() * arrays.amounts


def public_problem(graph: PublicGraph, name: str, memory_limit: int | None = None) -> Problem:
    """A published graph on a simulated machine: `gpus:4`, `cores:8`.

    The devices are as many as the name says. A file that tells accelerators from CPUs gives the times of these, and
    beside accelerators the CPU cores that it asks for; one with times on several devices gives them in turn. Links are
    those of the file where it has any, otherwise those of the machine.

    Args:
        memory_limit: bytes of each device, in place of what the file says.

    Raises:
        ValueError: there is no such machine, or an operation runs on none of its devices.
    """
    chips = machine(name)
    count = len(chips.chips)
    if count > MOST_DEVICES:
        raise ValueError(f"--machine {name} has {count} devices, want at most {MOST_DEVICES}")
    names, notes = [device.name for device in chips.devices], list(graph.notes)
    kind = np.arange(count) % len(graph.kinds)
    if graph.format == "msr":
        cores = graph.counts[0] if chips.has_accelerators else 0
        names = [f"cpu:{n}" for n in range(cores)] + names
        kind = np.array([0] * cores + [int(chips.has_accelerators)] * count)
        if cores:
            notes.append(f"beside {name} the {cores} CPU core{'s' * (cores > 1)} that the file has")
    elif len(graph.kinds) > 1:
        notes.append(f"device i has the times of the file's device i modulo {len(graph.kinds)}")
    fixed, per_amount, table = _links(graph, kind, chips.link_us, chips.link_gb_per_s, notes)
    times = graph.times[kind]
    if (stuck := np.isinf(times).all(0)).any():
        raise ValueError(f"{graph.name}: node {graph.ids[int(stuck.argmax())]} runs on no device of {name}")
    limits = graph.limits[kind] if memory_limit is None else np.full(len(names), float(memory_limit))
    if np.isfinite(limits).any():
        notes.append("operations of a device may take, all together: " + _memories(names, limits))
    groups = int(graph.groups.max()) + 1
    arrays = Arrays(
        *edge_lists(graph.edges, graph.num_nodes), np.ascontiguousarray(times),
        graph.amounts, fixed, per_amount, table, kind, graph.groups,
        *rows(graph.groups, np.arange(graph.num_nodes), groups),
        np.bincount(graph.groups, graph.sizes, groups), np.arange(len(names)), limits, graph.file_rank,
    )  # fmt: skip
    return Problem(graph, name, tuple(names), kind, arrays, tuple(notes))


def _links(
    graph: PublicGraph, kind: Int64[np.ndarray, " devices"], link_us: float, link_gb_per_s: float, notes: list[str]
) -> tuple[
    Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "pairs k k"]
]:
    """`fixed`, `per_amount` and `table` of `Arrays`."""
    count = len(kind)
    apart = 1.0 - np.eye(count)
    fixed, table = np.zeros((count, count)), graph.pair_times
    if len(table):
        between = ~np.eye(len(graph.kinds), dtype=bool)
        mean = table[:, between].mean(1) if between.any() else np.zeros(len(table))
        table = np.where(between, table, mean[:, None, None])
        if count > len(graph.kinds):
            notes.append("between two devices with the same times a transfer takes the mean of the others")
        return fixed, fixed.copy(), np.ascontiguousarray(table)
    if len(graph.hops):
        hops = graph.hops if len(graph.hops) > 1 else np.repeat(np.repeat(graph.hops, 2, 0), 2, 1)
        return fixed, hops[np.ix_(kind, kind)] * apart, table
    if np.isfinite(graph.bytes_per_unit):
        return fixed, apart / graph.bytes_per_unit, table
    per_second = {"s": 1.0, "ms": 1e3}[graph.unit]
    notes.append(f"links of the machine: {link_us:g} us and {link_gb_per_s:g} GB/s")
    return link_us * 1e-6 * per_second * apart, apart * per_second / (link_gb_per_s * 1e9), table


def _memories(names: list[str], limits: Float64[np.ndarray, " devices"]) -> str:
    words = {
        re.sub(r"\d+$", "*", name) if (limits == limit).sum() > 1 else name: limit
        for name, limit in zip(names, limits.tolist(), strict=True)
        if np.isfinite(limit)
    }
    return ", ".join(f"{name} {limit / 2**20:,.0f} MiB" for name, limit in words.items())
