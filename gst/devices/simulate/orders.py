"""Schedules: in which order the operations of a plan run, as `Plan.priority`."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import no_type_check

import numpy as np
from jaxtyping import Float64, Int64

from gst.devices.execute.costs import Storages
from gst.devices.plan import priority_of
from gst.programs import Program, Reference
from partitioners.compiled import compiled


def critical_path_priority(program: Program, times_us: Float64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """What has the longest way still to go runs first.

    The way is the upward rank of Topcuoglu, Hariri and Wu (IEEE TPDS 13(3), 2002, section 4), without transfers: the
    time of an operation and of all on the longest path from it to the end.

    Args:
        program: what is to run.
        times_us: of each operation, microseconds.

    Returns:
        Distinct priorities, the greatest first; of equal ways the first in program order.
    """
    readers = neighbour_lists(program.graph.edges, program.num_nodes)
    return priority_of(np.argsort(-longest_ways(times_us, np.zeros(program.num_nodes), *readers), kind="stable"))


def memory_aware_priority(
    program: Program, placement: Int64[np.ndarray, " nodes"], storages: Storages
) -> Int64[np.ndarray, " nodes"]:
    """The order of the least peak among three, each run on one device; of equal ones the first.

    The order of the program, in which autograd frees what it can. List scheduling for the fewest live values, as
    Goodman and Hsu do for registers (Code scheduling and register allocation in large basic blocks, ICS 1988): of the
    operations that are ready the one runs first that frees the most bytes, less those it allocates; devices take
    turns. And depth first, each result as soon as all it needs (Sethi and Ullman, The generation of optimal code for
    arithmetic expressions, J. ACM 17(4), 1970, without their choice among operands).

    Args:
        program: what is to run.
        placement: index of the device of each node.
        storages: of the program, as `gst.devices.execute.costs.storages` finds them.

    Returns:
        Distinct priorities, the greatest first.
    """
    in_order = [node for node, each in enumerate(program.operations) if each.kind == "operation"]
    orders = (in_order, _greedy(program, placement, storages), _depth_first(program))
    best = min(orders, key=lambda order: peak_bytes(program, order, storages))
    fixed = [node for node, each in enumerate(program.operations) if each.kind != "operation"]
    return priority_of(np.array([*fixed, *best], np.int64))


def peak_bytes(program: Program, order: Sequence[int], storages: Storages) -> int:
    """The most bytes that values take while the operations run in this order, one by one."""
    memory = _Memory(program, storages)
    live = peak = 0
    for node in order:
        live += memory.allocated[node]
        peak = max(peak, live)
        live -= memory.freed(node)
        memory.run(node)
    return peak


class _Memory:
    """Who must still run before each storage is free: those that make a value in it, and those that read one."""

    def __init__(self, program: Program, storages: Storages) -> None:
        nodes = program.num_nodes
        self.num_bytes: list[int] = storages.num_bytes.tolist()
        self.allocated = np.bincount(storages.made_by, storages.num_bytes, nodes).astype(np.int64).tolist()
        self.consumers: list[list[int]] = [[] for _ in range(nodes)]
        for producer, node in program.graph.edges.T.tolist():
            self.consumers[producer].append(node)
        kept = {each.node for each in program.outputs if isinstance(each, Reference)}
        waiting: list[set[int]] = [set() for _ in self.num_bytes]
        for storage, node in storages.held.T.tolist():
            waiting[storage].update([node, *self.consumers[node]])
            if node in kept:
                waiting[storage].add(-1)  # never runs
        self.waiting = waiting
        self.touched: list[list[int]] = [[] for _ in range(nodes)]
        for storage, some in enumerate(waiting):
            for node in some - {-1}:
                self.touched[node].append(storage)

    def freed(self, node: int) -> int:
        """Bytes that are free once `node` has run."""
        return sum(self.num_bytes[each] for each in self.touched[node] if len(self.waiting[each]) == 1)

    def run(self, node: int) -> list[int]:
        """`node` has run. Returns the operations that now free more than before."""
        last: list[int] = []
        for storage in self.touched[node]:
            self.waiting[storage].discard(node)
            if len(self.waiting[storage]) == 1:
                last += self.waiting[storage] - {-1}
        return last


def _greedy(program: Program, placement: Int64[np.ndarray, " nodes"], storages: Storages) -> list[int]:
    """Operations in the order of a list schedule; devices with something ready take turns."""
    memory = _Memory(program, storages)
    computed = [each.kind == "operation" for each in program.operations]
    pending = [sum(computed[producer] for producer in each.producers) for each in program.operations]
    ready: list[list[tuple[int, int]]] = [[] for _ in range(int(placement.max(initial=0)) + 1)]
    done = [not each for each in computed]

    def offer(node: int) -> None:
        heappush(ready[placement[node]], (memory.allocated[node] - memory.freed(node), node))

    for node, count in enumerate(pending):
        if computed[node] and not count:
            offer(node)
    order: list[int] = []
    while any(ready):
        for waiting in ready:
            while waiting and done[waiting[0][1]]:  # offered again since
                heappop(waiting)
            if not waiting:
                continue
            _, node = heappop(waiting)
            done[node] = True
            order.append(node)
            for consumer in memory.consumers[node]:
                pending[consumer] -= 1
            for each in {*memory.run(node), *memory.consumers[node]}:
                if not done[each] and not pending[each]:
                    offer(each)
    return order


def _depth_first(program: Program) -> list[int]:
    """For each value that nobody reads, in program order, all that it needs and was not computed, then itself."""
    is_read = np.zeros(program.num_nodes, bool)
    is_read[program.graph.edges[0]] = True
    waiting = np.flatnonzero(~is_read)[::-1].tolist()
    opened = [each.kind != "operation" for each in program.operations]
    closed = opened.copy()
    order: list[int] = []
    while waiting:
        node = waiting[-1]
        if not opened[node]:
            opened[node] = True
            waiting += [each for each in reversed(program.operations[node].producers) if not opened[each]]
            continue
        waiting.pop()
        if not closed[node]:
            closed[node] = True
            order.append(node)
    return order


def neighbour_lists(
    edges: Int64[np.ndarray, "2 edges"], num_nodes: int
) -> tuple[Int64[np.ndarray, " bounds"], Int64[np.ndarray, " edges"]]:
    """Where the list of each node begins and ends, and the heads of its edges one list after the other.

    Args:
        edges: from a node to one of its list; reversed (`edges[::-1]`) they give the lists of the heads.
        num_nodes: of the graph; the first result has one number more.
    """
    order = np.argsort(edges[0], kind="stable")
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(edges[0], minlength=num_nodes), out=indptr[1:])
    return indptr, np.ascontiguousarray(edges[1][order])


@compiled
@no_type_check
def longest_ways(times, transfer, indptr, consumers):
    """The upward rank of each node, in the unit of the times (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002,
    equation 8): its time, and the longest way on, by way of a transfer.

    Args:
        times: of each node, float64; every edge leads to a greater number.
        transfer: to hand the value of each node to any of its readers, float64; zeros count operations alone.
        indptr, consumers: who reads the value of each node, as `neighbour_lists` gives them.
    """
    way = np.zeros(len(times))
    for node in range(len(times) - 1, -1, -1):
        longest = 0.0
        for position in range(indptr[node], indptr[node + 1]):
            longest = max(longest, transfer[node] + way[consumers[position]])
        way[node] = times[node] + longest
    return way
