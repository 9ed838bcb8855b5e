"""Published cost graphs: times of layers or operators on a CPU and on an accelerator, and of transfers between them.

The format and its cost model are those of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
Operators" (NeurIPS 2020; github.com/msr-fiddle/dnn-partitioning, README, "Input format"), which calls accelerators
FPGAs. The source names no unit of time; its bytes and transfer times are in the ratio of 2 GiB/s if it is the
millisecond, so milliseconds are assumed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, Storages
from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.task import Task
from gst.simulation.simulator import Contention
from gst.util.untrusted import read_object, shown

MOST_DEVICES = 4096  # of a kind
MOST = 2**53  # whole numbers are read as float64, which holds those below exactly
HIGHEST = 1e15  # of any number of a file: sums and products of such are finite
BYTES_PER_MS = 2**31 / 1e3
"""Bandwidth that the published transfer times amount to."""

NO_OVERHEAD = Contention(switch_us=0.0, hand_over_us=0.0, wake_us=0.0)
"""For a `Simulator` of published costs, which have no delays of threads."""


@dataclass(frozen=True, eq=False)
class CostGraph:
    """A network with its costs. Nodes are in topological order; times are milliseconds.

    Args:
        name: of the file.
        ids: of each node as published.
        edges: producer -> consumer.
        cpu_ms: time of each node on a CPU core.
        accelerator_ms: time on an accelerator; infinite where the node cannot run there.
        transfer_ms: time to move the output of each node between an accelerator and the memory of the CPU; 0 if unread.
        sizes: bytes that each node takes on its accelerator as long as the plan lasts.
        colocation: nodes with the same number belong on the same device.
        backward: nodes of the backward pass.
        num_accelerators: number of accelerators.
        num_cores: number of CPU cores.
        memory_limit: bytes that the nodes of one accelerator may take.
    """

    name: str
    ids: Int64[np.ndarray, " nodes"]
    edges: Int64[np.ndarray, "2 edges"]
    cpu_ms: Float64[np.ndarray, " nodes"]
    accelerator_ms: Float64[np.ndarray, " nodes"]
    transfer_ms: Float64[np.ndarray, " nodes"]
    sizes: Float64[np.ndarray, " nodes"]
    colocation: Int64[np.ndarray, " nodes"]
    backward: Bool[np.ndarray, " nodes"]
    num_accelerators: int
    num_cores: int
    memory_limit: float

    @property
    def num_nodes(self) -> int:
        return len(self.ids)

    @property
    def devices(self) -> tuple[Device, ...]:
        """`cpu:0` and so on, the cores, in one memory; then `accelerator:0` and so on, each with a memory of its own.
        They exist in simulation only."""
        cores = [Device(f"cpu:{n}", "cpu", (n,), 1, "host", "a published CPU core") for n in range(self.num_cores)]
        names = [f"accelerator:{number}" for number in range(self.num_accelerators)]
        limit = int(self.memory_limit)
        return *cores, *(Device(each, "accelerator", (), 1, each, "a published accelerator", limit) for each in names)

    def costs(self) -> Costs:
        """For `gst.simulation.simulator.Simulator`, with `NO_OVERHEAD`.

        A value goes from accelerator to accelerator by way of the CPU's memory, at twice the published time. Bytes of
        values follow from their published times of transfer at `BYTES_PER_MS`. The published sizes are left out: they
        count for a whole plan (see `refusal`), whereas a simulation tracks which values live at which moment. The time
        of an operation on a device that cannot run it is infinite; a simulation of such a plan fails.
        """
        devices = self.devices
        on_cpu = np.array([device.kind == "cpu" for device in devices])
        output_bytes = np.rint(self.transfer_ms * BYTES_PER_MS).astype(np.int64)
        made = np.flatnonzero(output_bytes)
        hops = (~on_cpu[:, None]).astype(np.float64) + ~on_cpu
        np.fill_diagonal(hops, 0)
        with np.errstate(divide="ignore"):
            bytes_per_us = BYTES_PER_MS / 1e3 / hops
        return Costs(
            devices, self.edges, np.ones(self.num_nodes, bool), ~np.isin(np.arange(self.num_nodes), self.edges[0]),
            1e3 * np.where(on_cpu[:, None], self.cpu_ms, self.accelerator_ms), output_bytes,
            np.tile(output_bytes, (len(devices), 1)),
            Storages(output_bytes[made], made, np.stack([np.arange(len(made)), made])),
            np.zeros((len(devices),) * 2), bytes_per_us,
        )  # fmt: skip


def task_of_cost_graph(published: CostGraph) -> Task:
    """Return the task of placing a published cost graph. Features of a node are the logarithms of its time on the CPU,
    on an accelerator (0 where it cannot run there), of its transfer and its size, and whether it can run there."""
    able = np.isfinite(published.accelerator_ms)
    columns = [published.cpu_ms, np.where(able, published.accelerator_ms, 0.0), published.transfer_ms]
    features = np.stack([*map(np.log1p, [*columns, published.sizes]), able], axis=1).astype(np.float32)
    return Task(
        published.name, Graph(features, published.edges, name=published.name), published.costs(),
        published.colocation, np.rint(published.sizes).astype(np.int64), NO_OVERHEAD, sizes_hold_values=True,
    )  # fmt: skip


def read_cost_graph(path: Path) -> CostGraph:
    """Read a file of `latency_layer_graphs`, `throughput_layer_graphs` or of the same format.

    Raises:
        ValueError: not such a file, a cost is missing, negative or no number, outputs of a node cost differently,
            an edge leads nowhere, or the graph has a cycle or several parts that nothing joins, edges or colocation.
    """
    record = read_object(path)
    nodes, edges = _items(path, record, "nodes"), _items(path, record, "edges")
    ids = [_whole(path, "a node", node, "id") for node in nodes]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{path}: node {Counter(ids).most_common(1)[0][0]} is there twice")
    known, transfer = set(ids), dict.fromkeys(ids, 0.0)
    readers: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        source, reader = (_whole(path, "an edge", edge, key) for key in ("sourceId", "destId"))
        if missing := {source, reader} - known:
            raise ValueError(f"{path}: an edge from {source} to {reader}, but there is no node {missing.pop()}")
        cost = _number(path, f"the edge from {source} to {reader}", edge, "cost")
        if source in readers and abs(cost - transfer[source]) > 1e-6:
            raise ValueError(f"{path}: node {source}: its edges cost {transfer[source]} and {cost}; want one cost")
        transfer[source] = cost
        readers[source].append(reader)
    order = _topological(path, ids, readers)
    position = {node: number for number, node in enumerate(order)}
    by_id = dict(zip(ids, nodes, strict=True))
    ordered = [by_id[node] for node in order]
    pairs = sorted({(position[node], position[reader]) for node in readers for reader in readers[node]})
    column = lambda key: np.array([_number(path, f"node {n['id']}", n, key) for n in ordered])  # noqa: E731
    colours = np.array([str(node.get("colorClass", f"alone {node['id']}")) for node in ordered])
    graph = CostGraph(
        name=path.stem,
        ids=np.array(order, np.int64),
        edges=np.array(pairs, np.int64).reshape(-1, 2).T,
        cpu_ms=column("cpuLatency"),
        accelerator_ms=np.where(column("supportedOnFpga") > 0, column("fpgaLatency"), np.inf),
        transfer_ms=np.array([transfer[node] for node in order]),
        sizes=column("size"),
        colocation=np.unique(colours, return_inverse=True)[1].astype(np.int64),
        backward=column("isBackwardNode") > 0,
        num_accelerators=_devices(path, record, "maxFPGAs"),
        num_cores=_devices(path, record, "maxCPUs"),
        memory_limit=_number(path, "the file", record, "maxSizePerFPGA"),
    )
    if not graph.devices:
        raise ValueError(f"{path}: the file: maxFPGAs and maxCPUs are 0, want a device")
    _check_connected(path, graph)
    return graph


def read_split(path: Path, graph: CostGraph) -> Plan:
    """A published split (`human_experts`) as a plan; all nodes of the CPU go to `cpu:0`.

    Raises:
        ValueError: not such a file, or it does not place every node of the graph exactly once.
    """
    record = read_object(path)
    groups = [_items(path, record, "cpus"), _items(path, record, "fpgas")]
    names = ("cpu:0", *(f"accelerator:{number}" for number in range(len(groups[1]))))
    position = {int(node): number for number, node in enumerate(graph.ids)}
    placement = np.full(graph.num_nodes, -1, np.int64)
    for device, group in [(0, each) for each in groups[0]] + list(enumerate(groups[1], start=1)):
        members = group.get("nodes", [])
        if not isinstance(members, list):
            raise ValueError(f"{path}: the nodes of a device are {shown(members)}, want a list")
        for node in members:
            if type(node) is not int or node not in position:
                raise ValueError(
                    f"{path}: node {shown(node)} is not in {graph.name}; is it the split of another graph?"
                )
            if placement[position[node]] >= 0:
                raise ValueError(f"{path}: node {node} is placed twice")
            placement[position[node]] = device
    if (placement < 0).any():
        raise ValueError(f"{path}: node {graph.ids[placement.argmin()]} of {graph.name} is not placed")
    return Plan(names, placement)


def refusal(graph: CostGraph, plan: Plan) -> str | None:
    """Reason in one line why a plan violates the paper's constraints, None if it does not: memory of each accelerator,
    colocation, operations that accelerators cannot run (latency-ip/lip.py of the published code)."""
    if len(plan.placement) != graph.num_nodes:
        return f"the plan places {len(plan.placement)} nodes, {graph.name} has {graph.num_nodes}"
    names = {device.name for device in graph.devices}
    used = [plan.devices[place] for place in np.unique(plan.placement)]
    if unknown := [name for name in used if name not in names]:
        return f"the plan uses {unknown[0]}; {graph.name} has cpu:0..{graph.num_cores - 1} and " + (
            f"accelerator:0..{graph.num_accelerators - 1}"
        )
    home = accelerators(plan)
    if (impossible := (home >= 0) & np.isinf(graph.accelerator_ms)).any():
        return f"node {graph.ids[impossible][0]} cannot run on an accelerator"
    for colour in np.unique(graph.colocation):
        together = np.flatnonzero(graph.colocation == colour)
        if (home[together] != home[together[0]]).any():
            other = together[home[together] != home[together[0]]][0]
            return f"nodes {graph.ids[together[0]]} and {graph.ids[other]} belong on the same device"
    for accelerator in np.unique(home[home >= 0]):
        taken = graph.sizes[home == accelerator].sum()
        if taken > graph.memory_limit:
            return f"out of memory: accelerator:{accelerator} needs {taken:.0f} bytes of {graph.memory_limit:.0f}"
    return None


def accelerators(plan: Plan) -> Int64[np.ndarray, " nodes"]:
    """Number of the accelerator that runs each node, -1 for the CPU."""
    numbers = [-1 if name.startswith("cpu:") else int(name.partition(":")[2]) for name in plan.devices]
    return np.array(numbers, np.int64)[plan.placement]


def _topological(path: Path, ids: Sequence[int], readers: dict[int, list[int]]) -> list[int]:
    waits: dict[int, set[int]] = {node: set() for node in ids}
    for node, each in readers.items():
        for reader in each:
            waits[reader].add(node)
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        raise ValueError(f"{path}: node {error.args[1][0]} waits for itself; the graph has a cycle") from None


def _check_connected(path: Path, graph: CostGraph) -> None:
    by_colour = np.argsort(graph.colocation, kind="stable")
    pairs = [(a, b) for a, b in pairwise(by_colour.tolist()) if graph.colocation[a] == graph.colocation[b]]
    tails, heads = np.hstack([graph.edges, np.array(pairs, np.int64).reshape(-1, 2).T])
    matrix = coo_array((np.ones(len(tails)), (tails, heads)), shape=(graph.num_nodes,) * 2)
    parts, part = connected_components(matrix, directed=False)
    if parts > 1:
        alone = graph.ids[part != part[0]][0]
        raise ValueError(f"{path}: nothing joins node {alone} to node {graph.ids[0]}; want one connected graph")


def _items(path: Path, record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = record.get(key)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{path}: {key!r} is no list of objects, or is empty")
    return items


def _number(path: Path, owner: str, record: dict[str, Any], key: str) -> float:
    if key not in record:
        raise ValueError(f"{path}: {owner}: {key} is missing")
    value = record[key]
    if not isinstance(value, int | float) or not 0 <= value < HIGHEST:
        raise ValueError(f"{path}: {owner}: {key} is {shown(value)}, want a number >= 0")
    return float(value)


def _devices(path: Path, record: dict[str, Any], key: str) -> int:
    count = _whole(path, "the file", record, key)
    if count > MOST_DEVICES:
        raise ValueError(f"{path}: the file: {key} is {count}, want at most {MOST_DEVICES}")
    return count


def _whole(path: Path, owner: str, record: dict[str, Any], key: str) -> int:
    value = _number(path, owner, record, key)
    if value != int(value) or value >= MOST:
        raise ValueError(f"{path}: {owner}: {key} is {value}, want a whole number below 2**53")
    return int(value)
