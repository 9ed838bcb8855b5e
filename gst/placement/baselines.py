"""Plans that need no learning. They are always measured, and a search never returns anything worse than them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from gst.data.measured_plans import core_use
from gst.devices import Plan, overlap
from gst.devices.costs import COPY_BYTES_PER_US
from gst.placement.task import Task
from partitioners import partition

HAND_OVER_US = 20.0  # waking another worker


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
    return task.plan(np.full(task.num_nodes, device))


def chunks(task: Task) -> Plan:
    """Program order cut into as many pieces as there are devices, of equal profiled time."""
    middle = np.cumsum(task.times_us[0]) - task.times_us[0] / 2
    share = middle / max(task.times_us[0].sum(), 1e-9)
    return task.plan(np.minimum((share * len(task.devices)).astype(np.int64), len(task.devices) - 1))


def metis(task: Task, seed: int = 0) -> Plan:
    """METIS over the operations: few values cross, each device gets as many operations."""
    return task.plan(partition(task.costs.edges, task.num_nodes, len(task.devices), "metis", seed))


def heft(task: Task, narrow: bool = False) -> Plan:
    """Heterogeneous Earliest Finish Time (Topcuoglu et al. 2002): the operation with the longest way still to go is
    placed next, where it would finish first. A device of several cores is free when all of them are.

    Args:
        narrow: use the devices of fewest threads alone. Otherwise nearly everything goes to the widest device, which
            is the fastest for each operation by itself.
    """
    times, use = task.times_us, core_use(task.devices)
    threads = np.array([device.threads for device in task.devices])
    forbidden = np.where(narrow & (threads > threads.min()), np.inf, 0.0)
    producers, _ = neighbours(task)
    transfer, mean = transfers_us(task), times.mean(0)
    free = np.zeros(use.shape[1])
    finish = np.zeros(task.num_nodes)
    placement = np.zeros(task.num_nodes, np.int64)
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
    mean = task.times_us.mean(0)
    _, consumers = neighbours(task)
    transfer = transfers_us(task)
    rank = np.zeros(task.num_nodes)
    for node in range(task.num_nodes - 1, -1, -1):
        rank[node] = mean[node] + max((transfer[node] / 2 + rank[c] for c in consumers[node]), default=0.0)
    return rank


def transfers_us(task: Task) -> Float64[np.ndarray, " nodes"]:
    """To hand the value of each node to another memory."""
    return HAND_OVER_US + task.costs.output_bytes / COPY_BYTES_PER_US


def neighbours(task: Task) -> tuple[list[list[int]], list[list[int]]]:
    """Producers and consumers of every node."""
    producers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    consumers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    for producer, consumer in task.costs.edges.T.tolist():
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    return producers, consumers


def mutate(task: Task, plan: Plan, generator: np.random.Generator) -> Plan:
    """A neighbour of `plan`: a stretch of the program, or a few groups, go to another device."""
    placement, colocation = plan.placement.copy(), task.colocation
    device = int(generator.integers(len(task.devices)))
    if generator.random() < 0.5:
        length = int(np.exp(generator.uniform(0, np.log(len(placement) / 2))))
        start = int(generator.integers(len(placement) - length + 1))
        placement[start : start + length] = device
    else:
        chosen = generator.integers(task.num_groups, size=int(generator.integers(1, 9)))
        placement[np.isin(colocation, chosen)] = device
    return task.plan(placement)


def crossover(task: Task, plans: Sequence[Plan], generator: np.random.Generator) -> Plan:
    """The beginning of one plan and the end of another."""
    first, second = generator.choice(len(plans), 2)
    cut = int(generator.integers(task.num_nodes))
    return task.plan(np.concatenate([plans[first].placement[:cut], plans[second].placement[cut:]]))
