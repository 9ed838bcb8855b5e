"""Published cost graphs by their published latency: the objective, and annealing over it, compiled.

The objective is `computeLatency` of latency-greedy/greedy.cpp in github.com/msr-fiddle/dnn-partitioning (Tarnawski et
al., NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.cost_graphs import CostGraph, refusal
from gst.lowering.plan import Plan, rows
from partitioners.compiled import compiled


class PublishedObjective:
    """Latency of plans of a published cost graph; NaN for a plan that its cost model does not admit.

    Args:
        graph: of inference.

    Raises:
        ValueError: the graph has a backward pass. When called: a plan is for another number of nodes, or names a
            device that the graph has not.
    """

    def __init__(self, graph: CostGraph) -> None:
        if graph.backward.any():
            raise ValueError(f"{graph.name} has a backward pass; the latency objective is of inference: simulate it")
        if not graph.num_cores:
            raise ValueError(f"{graph.name} has no CPU, which its latency is defined with; add --machine gpus:4, say")
        self.graph = graph
        self._leader = np.unique(graph.colocation, return_index=True)[1][graph.colocation]
        self._able = np.isfinite(graph.accelerator_ms)
        self._arrays = latency_arrays(graph)
        self._known = {device.name for device in graph.devices}

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([self._one(plan) for plan in plans], np.float64)

    def excess(self, plan: Plan) -> float:
        """Return the largest excess of an accelerator's memory under a plan, as a share of its limit; 0 = it fits."""
        return max(0.0, float(self._taken(self.home(plan)).max(initial=0.0)) / max(self.graph.memory_limit, LEAST) - 1)

    def home(self, plan: Plan) -> Int64[np.ndarray, " nodes"]:
        """Accelerator of each node, -1 on the CPU.

        Raises:
            ValueError: the plan is for another number of nodes, or names a device that the graph does not have.
        """
        strange = len(plan.placement) != self.graph.num_nodes or not self._known.issuperset(plan.devices)
        if strange and (why := refusal(self.graph, plan)):
            raise ValueError(why)
        numbers = [-1 if name.startswith("cpu:") else int(name.partition(":")[2]) for name in plan.devices]
        return np.array(numbers, np.int64)[plan.placement]

    def plan(self, home: Int64[np.ndarray, " nodes"]) -> Plan:
        """The plan that puts each node on the accelerator `home` says, or on the CPU where that is -1."""
        cores = self.graph.num_cores
        return Plan(tuple(device.name for device in self.graph.devices), np.where(home < 0, 0, cores + home))

    def starts(self) -> list[Plan]:
        """Plans from which a search may start, see `cut_homes`."""
        return [self.plan(home) for home in cut_homes(self.graph)]

    def _one(self, plan: Plan) -> float:
        home = self.home(plan)
        if ((home >= 0) & ~self._able).any() or (home != home[self._leader]).any():
            return float("nan")
        if (self._taken(home) > self.graph.memory_limit).any():
            return float("nan")
        return float(published_latency(home, self._arrays))

    def _taken(self, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " accelerators"]:
        used = home >= 0
        return np.bincount(home[used], self.graph.sizes[used], self.graph.num_accelerators)


def published_bound(graph: CostGraph) -> float:
    """Lower bound of the latency of all plans in ms: the longest path if every node runs where it is quickest
    and nothing has to be moved."""
    least = np.minimum(graph.cpu_ms, graph.accelerator_ms)
    end = least.copy()
    for producer, consumer in graph.edges.T[np.argsort(graph.edges[1], kind="stable")]:
        end[consumer] = max(end[consumer], end[producer] + least[consumer])
    return float(end.max())


class LatencyArrays(NamedTuple):
    """A published cost graph as the kernels read it.

    Args:
        indptr, consumers: who reads the value of each node; `producer_indptr` and `producers` whose values it reads.
        accelerators: their numbers.
    """

    indptr: Int64[np.ndarray, " nodes_plus_one"]
    consumers: Int64[np.ndarray, " edges"]
    producer_indptr: Int64[np.ndarray, " nodes_plus_one"]
    producers: Int64[np.ndarray, " edges"]
    cpu_ms: Float64[np.ndarray, " nodes"]
    accelerator_ms: Float64[np.ndarray, " nodes"]
    transfer_ms: Float64[np.ndarray, " nodes"]
    accelerators: Int64[np.ndarray, " accelerators"]


def latency_arrays(graph: CostGraph) -> LatencyArrays:
    """Arrays of a graph for `published_latency`."""
    (indptr, consumers), (producer_indptr, producers) = (
        rows(*graph.edges[::direction], graph.num_nodes) for direction in (1, -1)
    )
    return LatencyArrays(
        indptr, consumers, producer_indptr, producers, graph.cpu_ms, graph.accelerator_ms, graph.transfer_ms,
        np.arange(graph.num_accelerators),
    )  # fmt: skip


@compiled
@no_type_check
def published_latency(home, graph):
    """Milliseconds of a plan that is admitted; NaN if calls wait for each other.

    Args:
        home: accelerator of each node, -1 on the CPU.
        graph: its `LatencyArrays`.
    """
    indptr, consumers, transfer_ms = graph.indptr, graph.consumers, graph.transfer_ms
    producer_indptr, producers, accelerators = graph.producer_indptr, graph.producers, graph.accelerators
    nodes = len(home)
    call = np.arange(nodes)
    number, first = np.zeros(nodes, np.int64), np.empty(nodes + 2, np.int64)
    busy = np.zeros(len(accelerators), np.int64)
    for node in range(nodes):
        if home[node] >= 0:
            busy[home[node]] += 1
    for accelerator in accelerators:
        if busy[accelerator] < 2:
            continue
        first[:] = -1
        for node in range(nodes):
            here = home[node] == accelerator
            most = 1 if here else 0
            for position in range(producer_indptr[node], producer_indptr[node + 1]):
                producer = producers[position]
                entry = number[producer]
                if here and home[producer] != accelerator:
                    entry += 1
                most = max(most, entry)
            number[node] = most
            if here:
                if first[most] < 0:
                    first[most] = node
                call[node] = first[most]
    duration, start = np.zeros(nodes), np.zeros(nodes)
    pending = np.zeros(nodes, np.int64)  # values that each call waits for
    seen = np.full(nodes, -1)
    following, last = np.full(nodes, -1), np.arange(nodes)
    for node in range(nodes):
        own = call[node]
        if own != node:
            following[last[own]] = node
            last[own] = node
        duration[own] += graph.cpu_ms[node] if home[node] < 0 else graph.accelerator_ms[node]
        written = False
        for position in range(indptr[node], indptr[node + 1]):
            reader = call[consumers[position]]
            if reader != own:
                written = True
                if seen[reader] != node:
                    seen[reader] = node
                    pending[reader] += 1
                    if home[reader] >= 0:
                        duration[reader] += transfer_ms[node]
        if written and home[node] >= 0:
            duration[own] += transfer_ms[node]
    stack, size, left, latest = np.empty(nodes, np.int64), 0, 0, 0.0
    seen[:] = -1
    for node in range(nodes):
        if call[node] == node:
            left += 1
            if pending[node] == 0:
                stack[size] = node
                size += 1
    while size:
        size -= 1
        left -= 1
        own = stack[size]
        end = start[own] + duration[own]
        latest = max(latest, end)
        node = own
        while node >= 0:
            for position in range(indptr[node], indptr[node + 1]):
                reader = call[consumers[position]]
                if reader != own and seen[reader] != node:
                    seen[reader] = node
                    start[reader] = max(start[reader], end)
                    pending[reader] -= 1
                    if pending[reader] == 0:
                        stack[size] = reader
                        size += 1
            node = following[node]
    return latest if left == 0 else np.nan


def cut_homes(graph: CostGraph) -> list[Int64[np.ndarray, " nodes"]]:
    """Accelerators of the nodes, -1 on the CPU: everything on the CPU; and for two orders of the nodes the cuts of the
    order into pieces for the CPU or for an accelerator each, as if one piece began when the one before it has ended,
    those that take least. A colocation group goes with its first node."""
    leader = np.unique(graph.colocation, return_index=True)[1][graph.colocation]
    return [np.full(graph.num_nodes, -1), *(_cuts(graph, order)[leader] for order in orders(graph))]


def orders(graph: CostGraph) -> Int64[np.ndarray, "2 nodes"]:
    """The topological order of the graph, and one that goes deep before it goes wide."""
    indptr, consumers = rows(*graph.edges, graph.num_nodes)
    waiting = np.bincount(graph.edges[1], minlength=graph.num_nodes)
    stack = [int(node) for node in np.flatnonzero(waiting == 0)[::-1]]
    deep = []
    while stack:
        node = stack.pop()
        deep.append(node)
        for reader in consumers[indptr[node] : indptr[node + 1]].tolist():
            waiting[reader] -= 1
            if not waiting[reader]:
                stack.append(reader)
    return np.stack([np.arange(graph.num_nodes), np.array(deep, np.int64)])


def _cuts(graph: CostGraph, order: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    edges = position[graph.edges]
    (indptr, _), (producer_indptr, producers) = (rows(*edges[::direction], len(order)) for direction in (1, -1))
    home = np.empty(len(order), np.int64)
    home[order] = _best_cuts(
        np.diff(indptr), producer_indptr, producers, graph.cpu_ms[order], graph.accelerator_ms[order],
        graph.transfer_ms[order], graph.sizes[order], graph.num_accelerators, graph.memory_limit,
    )  # fmt: skip
    return home


@compiled
@no_type_check
def _best_cuts(num_readers, producer_indptr, producers, cpu_ms, accelerator_ms, transfer_ms, sizes, count, limit):
    """Accelerator of each node, -1 on the CPU. Nodes are numbered in the order that is cut."""
    nodes = len(cpu_ms)
    best = np.full((nodes + 1, count + 1), np.inf)  # of the nodes before, with so many accelerators
    best[0, :] = 0.0
    begin = np.zeros((nodes + 1, count + 1), np.int64)
    on_accelerator = np.zeros((nodes + 1, count + 1), np.bool_)
    path, unread = np.zeros(nodes), np.zeros(nodes, np.int64)
    seen = np.full(nodes, -1)
    for first in range(nodes):
        longest, computed, read, written, taken = 0.0, 0.0, 0.0, 0.0, 0.0
        for node in range(first, nodes):
            path[node] = 0.0
            unread[node] = num_readers[node]
            if unread[node]:
                written += transfer_ms[node]
            for position in range(producer_indptr[node], producer_indptr[node + 1]):
                producer = producers[position]
                if producer >= first:
                    path[node] = max(path[node], path[producer])
                    unread[producer] -= 1
                    if unread[producer] == 0:
                        written -= transfer_ms[producer]
                elif seen[producer] != first:
                    seen[producer] = first
                    read += transfer_ms[producer]
            path[node] += cpu_ms[node]
            longest = max(longest, path[node])
            computed += accelerator_ms[node]
            taken += sizes[node]
            for used in range(count + 1):
                if best[first, used] + longest < best[node + 1, used]:
                    best[node + 1, used] = best[first, used] + longest
                    begin[node + 1, used], on_accelerator[node + 1, used] = first, False
                if used and taken <= limit and best[first, used - 1] + computed + read + written < best[node + 1, used]:
                    best[node + 1, used] = best[first, used - 1] + computed + read + written
                    begin[node + 1, used], on_accelerator[node + 1, used] = first, True
    home = np.full(nodes, -1)
    end, used = nodes, count
    while end > 0:
        first, here = begin[end, used], on_accelerator[end, used]
        if here:
            used -= 1
            home[first:end] = used
        end = first
    return home


LEAST = 1e-300  # in place of 0 where it is divided by
HOT, COLD = 0.003, 0.00002
"""First and last temperature of annealing, as shares of the latency it starts from."""


def search_published(graph: CostGraph, seed: int = 0, steps: int = 300_000, start: Sequence[Plan] = ()) -> Plan:
    """The best plan that annealing finds from the two best of `start` and of the runtime's `starts()`, or one of these.

    Args:
        steps: plans that are tried; tens of thousands a second.
        start: plans known beforehand, such as a human expert's; those not admitted are left out.

    Raises:
        ValueError: the graph has a backward pass.
    """
    runtime = PublishedObjective(graph)
    plans = [*start, *runtime.starts()]
    took = runtime(plans)
    order = [int(each) for each in np.argsort(took, kind="stable") if np.isfinite(took[each])][:2]
    best_ms, best = float(took[order[0]]), plans[order[0]]
    arrays, groups = latency_arrays(graph), _group_arrays(graph)
    for number, position in enumerate(order):
        home = runtime.home(plans[position])
        generator = np.array([seed * 2 + number + 1], np.uint64)
        found, found_ms = _anneal(home, float(took[position]), steps // len(order), generator, arrays, groups)
        if found_ms < best_ms:
            best_ms, best = found_ms, runtime.plan(found)
    return best


class _GroupArrays(NamedTuple):
    """Colocation groups, what accelerators can hold of them, and orders of the nodes.

    Args:
        of: group of each node.
        indptr, members: nodes of each group.
        sizes: of each node; `limit` of each accelerator.
    """

    of: Int64[np.ndarray, " nodes"]
    indptr: Int64[np.ndarray, " groups_plus_one"]
    members: Int64[np.ndarray, " nodes"]
    sizes: Float64[np.ndarray, " nodes"]
    limit: float
    orders: Int64[np.ndarray, "orders nodes"]


def _group_arrays(graph: CostGraph) -> _GroupArrays:
    groups = int(graph.colocation.max()) + 1
    indptr, members = rows(graph.colocation, np.arange(graph.num_nodes), groups)
    return _GroupArrays(graph.colocation, indptr, members, graph.sizes, float(graph.memory_limit), orders(graph))


@compiled
@no_type_check
def uniform(state):
    """Draw a number of [0, 1): the linear congruential generator of Knuth's MMIX, 53 upper bits."""
    state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return (state[0] >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
@no_type_check
def _anneal(start, start_ms, steps, state, graph, groups):
    """The best homes found and their milliseconds. A step gives a group with some of its neighbours, or a stretch of
    one of the orders, to the CPU, to a neighbour's device or to any; what is not admitted is not tried."""
    nodes, count = len(start), len(graph.accelerators)
    current, current_ms, best, best_ms = start.copy(), start_ms, start.copy(), start_ms
    chosen, taken = np.empty(nodes, np.int64), np.zeros(count)
    since = 0
    for step in range(steps):
        temperature = max(start_ms * HOT * (COLD / HOT) ** (step / steps), LEAST)
        trial, size = current.copy(), 0
        if uniform(state) < 0.5:  # a node, and on a random walk from there
            node = np.int64(uniform(state) * nodes)
            beside = node
            while True:
                chosen[size] = node
                size += 1
                before = graph.producer_indptr[node + 1] - graph.producer_indptr[node]
                after = graph.indptr[node + 1] - graph.indptr[node]
                if before + after == 0:
                    break
                step_to = np.int64(uniform(state) * (before + after))
                if step_to < before:
                    node = graph.producers[graph.producer_indptr[node] + step_to]
                else:
                    node = graph.consumers[graph.indptr[node] + step_to - before]
                beside = node
                if uniform(state) < 0.4 or size == nodes:
                    break
        else:  # a stretch
            order = groups.orders[np.int64(uniform(state) * len(groups.orders))]
            length = np.int64(np.exp(uniform(state) * np.log(nodes / 2 + 1)))
            first = np.int64(uniform(state) * (nodes - length + 1))
            for position in range(first, first + length):
                chosen[size] = order[position]
                size += 1
            beside = order[max(first - 1, 0)] if uniform(state) < 0.5 else order[min(first + length, nodes - 1)]
        kind = uniform(state)
        if kind < 0.5:
            device = current[beside]
        elif kind < 0.7 or count == 0:
            device = -1
        else:
            device = np.int64(uniform(state) * count)
        changed = False
        for position in range(size):
            group = groups.of[chosen[position]]
            for place in range(groups.indptr[group], groups.indptr[group + 1]):
                member = groups.members[place]
                if trial[member] != device:
                    trial[member] = device
                    changed = True
        if not changed:
            continue
        fits = True
        taken[:] = 0.0
        for node in range(nodes):
            if trial[node] >= 0:
                taken[trial[node]] += groups.sizes[node]
                fits = fits and graph.accelerator_ms[node] < np.inf and taken[trial[node]] <= groups.limit
        if not fits:
            continue
        took = published_latency(trial, graph)
        since += 1
        if took <= current_ms or uniform(state) < np.exp((current_ms - took) / temperature):
            current, current_ms = trial, took
        if took < best_ms:
            best, best_ms = trial.copy(), took
            since = 0
        elif since > steps // 10:
            current, current_ms = best.copy(), best_ms
            since = 0
    return best, best_ms
