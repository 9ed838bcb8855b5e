"""Plans of published cost graphs by dynamic programming: an order of the nodes, cut into pieces."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int64

from gst.data.cost_graphs import CostGraph
from gst.devices.simulate.orders import neighbour_lists
from partitioners.compiled import compiled


def cut_homes(graph: CostGraph) -> list[Int64[np.ndarray, " nodes"]]:
    """Accelerators of the nodes, -1 on the CPU: everything on the CPU; and for two orders of the nodes the cuts of the
    order into pieces for the CPU or for an accelerator each, as if one piece began when the one before it has ended,
    those that take least. A colocation group goes with its first node."""
    leader = np.unique(graph.colocation, return_index=True)[1][graph.colocation]
    return [np.full(graph.num_nodes, -1), *(_cuts(graph, order)[leader] for order in orders(graph))]


def orders(graph: CostGraph) -> Int64[np.ndarray, "2 nodes"]:
    """The topological order of the graph, and one that goes deep before it goes wide."""
    indptr, consumers = neighbour_lists(graph.edges, graph.num_nodes)
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
    (indptr, _), (producer_indptr, producers) = (
        neighbour_lists(edges[::direction], len(order)) for direction in (1, -1)
    )
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
