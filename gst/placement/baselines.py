"""Plans that need no learning. They are always measured, and a search never returns anything worse than them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from gst.data.measured_plans import Profiled, core_use
from gst.devices import Device, Plan, overlap
from gst.programs import Program
from partitioners import partition

HAND_OVER_US = 20.0  # waking another worker
BYTES_PER_US = 5_000.0  # a copy between memories, 5 GB/s


@dataclass(frozen=True, eq=False)
class Task:
    """A program to be placed.

    Args:
        program: its operations.
        devices: where they may go; they may share cores.
        times_us: profiled time of each operation alone on each device.
    """

    program: Program
    devices: tuple[Device, ...]
    times_us: Float64[np.ndarray, "devices nodes"]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    @property
    def profiled(self) -> Profiled:
        return Profiled(self.program.graph, self.program.output_bytes, self.devices, self.times_us)

    def plan(self, placement: Int64[np.ndarray, " nodes"]) -> Plan:
        return Plan(self.names, placement.astype(np.int64))

    def plan_of_groups(self, assignment: Int64[np.ndarray, " groups"]) -> Plan:
        """The plan that puts every colocation group as a whole on the device assigned to it."""
        return self.plan(assignment[self.program.colocation])


def portfolio(task: Task) -> dict[str, Plan]:
    """Every baseline by name."""
    plans = {f"single:{name}": single(task, device) for device, name in enumerate(task.names)}
    if len(task.devices) > 1:
        plans |= {"chunks": chunks(task), "metis": metis(task), "heft": heft(task)}
        if overlap(task.devices):
            plans["heft:narrow"] = heft(task, narrow=True)
    return plans


def single(task: Task, device: int) -> Plan:
    """Everything on one device."""
    return task.plan(np.full(task.program.num_nodes, device))


def chunks(task: Task) -> Plan:
    """Program order cut into as many pieces as there are devices, of equal profiled time."""
    middle = np.cumsum(task.times_us[0]) - task.times_us[0] / 2
    share = middle / max(task.times_us[0].sum(), 1e-9)
    return task.plan(np.minimum((share * len(task.devices)).astype(np.int64), len(task.devices) - 1))


def metis(task: Task, seed: int = 0) -> Plan:
    """METIS over the operations: few values cross, each device gets as many operations."""
    graph = task.program.graph
    return task.plan(partition(graph.edges, graph.num_nodes, len(task.devices), "metis", seed))


def heft(task: Task, narrow: bool = False) -> Plan:
    """Heterogeneous Earliest Finish Time (Topcuoglu et al. 2002): the operation with the longest way still to go is
    placed next, where it would finish first. A device of several cores is free when all of them are.

    Args:
        narrow: use the devices of fewest threads alone. Otherwise nearly everything goes to the widest device, which
            is the fastest for each operation by itself.
    """
    program, times, use = task.program, task.times_us, core_use(task.devices)
    threads = np.array([device.threads for device in task.devices])
    forbidden = np.where(narrow & (threads > threads.min()), np.inf, 0.0)
    producers, _ = neighbours(program)
    transfer, mean = transfers_us(program), times.mean(0)
    free = np.zeros(use.shape[1])
    finish = np.zeros(program.num_nodes)
    placement = np.zeros(program.num_nodes, np.int64)
    shared = np.array([[a.memory == b.memory for b in task.devices] for a in task.devices])
    for node in np.argsort(-upward_rank(task), kind="stable"):
        ready = np.zeros(len(task.devices))
        for p in producers[node]:
            cost = np.where(shared[placement[p]], HAND_OVER_US, transfer[p])
            cost[placement[p]] = 0.0
            ready = np.maximum(ready, finish[p] + (cost if mean[p] else 0.0))
        done = np.maximum(np.where(use, free, 0.0).max(1), ready) + times[:, node] + forbidden
        placement[node] = device = int(done.argmin())
        finish[node] = done[device]
        if times[device, node]:
            free[use[device]] = done[device]
    return task.plan(placement)


def upward_rank(task: Task) -> Float64[np.ndarray, " nodes"]:
    """Microseconds from the start of each operation to the end of the program along its longest way, with mean times
    and half the transfers (Topcuoglu et al. 2002, equation 8)."""
    program, mean = task.program, task.times_us.mean(0)
    _, consumers = neighbours(program)
    transfer = transfers_us(program)
    rank = np.zeros(program.num_nodes)
    for node in range(program.num_nodes - 1, -1, -1):
        rank[node] = mean[node] + max((transfer[node] / 2 + rank[c] for c in consumers[node]), default=0.0)
    return rank


def transfers_us(program: Program) -> Float64[np.ndarray, " nodes"]:
    """To hand the value of each node to another memory."""
    return HAND_OVER_US + program.output_bytes / BYTES_PER_US


def neighbours(program: Program) -> tuple[list[list[int]], list[list[int]]]:
    """Producers and consumers of every node."""
    producers: list[list[int]] = [[] for _ in range(program.num_nodes)]
    consumers: list[list[int]] = [[] for _ in range(program.num_nodes)]
    for producer, consumer in program.graph.edges.T.tolist():
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    return producers, consumers


def mutate(task: Task, plan: Plan, generator: np.random.Generator) -> Plan:
    """A neighbour of `plan`: a stretch of the program, or a few groups, go to another device."""
    placement, colocation = plan.placement.copy(), task.program.colocation
    device = int(generator.integers(len(task.devices)))
    if generator.random() < 0.5:
        length = int(np.exp(generator.uniform(0, np.log(len(placement) / 2))))
        start = int(generator.integers(len(placement) - length + 1))
        placement[start : start + length] = device
    else:
        chosen = generator.integers(task.program.num_groups, size=int(generator.integers(1, 9)))
        placement[np.isin(colocation, chosen)] = device
    return task.plan(placement)


def crossover(task: Task, plans: Sequence[Plan], generator: np.random.Generator) -> Plan:
    """The beginning of one plan and the end of another."""
    first, second = generator.choice(len(plans), 2)
    cut = int(generator.integers(task.program.num_nodes))
    return task.plan(np.concatenate([plans[first].placement[:cut], plans[second].placement[cut:]]))
