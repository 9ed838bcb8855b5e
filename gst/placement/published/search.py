"""Simulated annealing over plans of a published cost graph, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from gst.data.cost_graphs import CostGraph
from gst.devices import Plan
from gst.devices.simulate.simulator import neighbour_lists
from gst.placement.published.latency import PublishedObjective, latency_arrays, orders, published_latency
from partitioners.compiled import compiled

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
    indptr, members = neighbour_lists(np.stack([graph.colocation, np.arange(graph.num_nodes)]), groups)
    return _GroupArrays(graph.colocation, indptr, members, graph.sizes, float(graph.memory_limit), orders(graph))


@compiled
@no_type_check
def _uniform(state):
    """A number of [0, 1): the linear congruential generator of Knuth's MMIX, 53 upper bits."""
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
        temperature = start_ms * HOT * (COLD / HOT) ** (step / steps)
        trial, size = current.copy(), 0
        if _uniform(state) < 0.5:  # a node, and on a random walk from there
            node = np.int64(_uniform(state) * nodes)
            beside = node
            while True:
                chosen[size] = node
                size += 1
                before = graph.producer_indptr[node + 1] - graph.producer_indptr[node]
                after = graph.indptr[node + 1] - graph.indptr[node]
                if before + after == 0:
                    break
                step_to = np.int64(_uniform(state) * (before + after))
                if step_to < before:
                    node = graph.producers[graph.producer_indptr[node] + step_to]
                else:
                    node = graph.consumers[graph.indptr[node] + step_to - before]
                beside = node
                if _uniform(state) < 0.4 or size == nodes:
                    break
        else:  # a stretch
            order = groups.orders[np.int64(_uniform(state) * len(groups.orders))]
            length = np.int64(np.exp(_uniform(state) * np.log(nodes / 2 + 1)))
            first = np.int64(_uniform(state) * (nodes - length + 1))
            for position in range(first, first + length):
                chosen[size] = order[position]
                size += 1
            beside = order[max(first - 1, 0)] if _uniform(state) < 0.5 else order[min(first + length, nodes - 1)]
        kind = _uniform(state)
        if kind < 0.5:
            device = current[beside]
        elif kind < 0.7 or count == 0:
            device = -1
        else:
            device = np.int64(_uniform(state) * count)
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
        if took <= current_ms or _uniform(state) < np.exp((current_ms - took) / temperature):
            current, current_ms = trial, took
        if took < best_ms:
            best, best_ms = trial.copy(), took
            since = 0
        elif since > steps // 10:
            current, current_ms = best.copy(), best_ms
            since = 0
    return best, best_ms
