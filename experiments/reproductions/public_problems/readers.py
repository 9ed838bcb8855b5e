"""Published formats as tasks: readers for `gst place --graph FILE --format MODULE:CLASS`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.reproductions.public_problems.cost_graphs import BYTES_PER_MS, read_cost_graph, task_of_cost_graph
from experiments.reproductions.public_problems.formats import read_public_graph
from experiments.reproductions.public_problems.placing import PER_UNIT_US
from experiments.reproductions.public_problems.problem import Problem, public_problem
from gst.execution.costs import Costs, Storages
from gst.graphs.graph import Graph
from gst.machine.devices import Device
from gst.placement.machines import STREAMS, Machine
from gst.placement.task import Task

BYTES_PER_US = BYTES_PER_MS / 1e3  # of transfers that a file states as times


class MsrGraph:
    """A cost graph of github.com/msr-fiddle/dnn-partitioning on the devices that it names, or on those of a machine.

    Examples:
        >>> node = '"supportedOnFpga": 1, "isBackwardNode": 0, "cpuLatency": 3, "fpgaLatency": 1, "size": 1'
        >>> _ = Path("two.json").write_text('{"maxFPGAs": 1, "maxCPUs": 1, "maxSizePerFPGA": 9, "nodes": [{"id": 0, '
        ...     + node + '}, {"id": 1, ' + node + '}], "edges": [{"sourceId": 0, "destId": 1, "cost": 2}]}')
        >>> MsrGraph(Path("two.json")).task(None).times_us.tolist()
        [[3000.0, 3000.0], [1000.0, 1000.0]]
    """

    def __init__(self, path: Path) -> None:
        self.path, self.graph = path, read_cost_graph(path)

    def task(self, machine: Machine | None) -> Task:
        """Return the task on the devices of the file if `machine` is None."""
        return task_of_cost_graph(self.graph) if machine is None else PublicProblem(self.path).task(machine)


class PublicProblem:
    """A published problem of any format of `read_public_graph`, on the devices of a machine.

    Attributes:
        notes: assumptions about the last task.

    Examples:
        >>> from gst.placement.machines import machine
        >>> _ = Path("two.txt").write_text("2\\n\\n0\\n1\\n30000000000,10000000000\\n20000000000,0\\n")
        >>> PublicProblem(Path("two.txt")).task(machine("gpus:2")).times_us.tolist()
        [[3000.0, 2000.0], [3000.0, 2000.0]]
    """

    def __init__(self, path: Path) -> None:
        self.path, self.graph = path, read_public_graph(path)
        self.notes: tuple[str, ...] = self.graph.notes

    def task(self, machine: Machine | None) -> Task:
        """Return the task on a machine.

        Raises:
            ValueError: `machine` is None, or it has too many devices, or none that runs an operation.
        """
        if machine is None:
            raise ValueError(f"{self.path} is of the format {self.graph.format}, which needs a machine; add --machine")
        problem = public_problem(self.graph, machine.name, machine.chips[0].memory_bytes)
        self.notes = (*problem.notes, "each value takes as long as its longest edge")
        return task_of_problem(problem)


def task_of_problem(problem: Problem) -> Task:
    """Return a problem as a task: a value takes as long on every link as its longest edge, and devices run operations
    in the order of the plan."""
    arrays, graph, count = problem.arrays, problem.graph, problem.num_nodes
    unit_us = PER_UNIT_US.get(graph.unit, 1e3) / graph.scale
    amounts = arrays.amounts
    if len(arrays.table):
        between = ~np.eye(arrays.table.shape[1], dtype=bool)
        amounts = arrays.table[:, between].max(1) if between.any() else np.zeros(len(amounts))
    largest = np.zeros(count)
    np.maximum.at(largest, graph.edges[0], amounts)
    apart = 1.0 - np.eye(len(problem.devices))
    per_amount = unit_us * (apart if len(arrays.table) else arrays.per_amount)
    if len(arrays.table) or len(graph.hops):  # amounts are times
        largest, per_amount = largest * unit_us * BYTES_PER_US, per_amount / unit_us / BYTES_PER_US
    output_bytes = np.rint(largest).astype(np.int64)
    devices = tuple(
        Device(
            name, name.partition(":")[0], (), 1, name, f"of {problem.machine}", int(limit) if limit < np.inf else None
        )
        for name, limit in zip(problem.devices, arrays.limits.tolist(), strict=True)
    )
    made = np.flatnonzero(output_bytes)
    with np.errstate(divide="ignore"):
        bytes_per_us = 1 / per_amount
    costs = Costs(
        devices, graph.edges, np.ones(count, bool), ~np.isin(np.arange(count), graph.edges[0]),
        unit_us * arrays.times, output_bytes, np.tile(output_bytes, (len(devices), 1)),
        Storages(output_bytes[made], made, np.stack([np.arange(len(made)), made])), unit_us * arrays.fixed,
        bytes_per_us,
    )  # fmt: skip
    times = np.where(np.isfinite(graph.times), graph.times, 0.0) * unit_us
    features = np.log1p(np.vstack([times, graph.sizes])).T.astype(np.float32)
    return Task(
        graph.name, Graph(features, graph.edges, name=graph.name), costs, graph.groups,
        np.rint(graph.sizes).astype(np.int64), STREAMS, sizes_hold_values=True,
    )  # fmt: skip
