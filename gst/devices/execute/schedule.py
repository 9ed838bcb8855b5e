"""Schedules of plans for the threads of devices: what each device computes, waits for, sends and frees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from gst.devices.describe.machine import Device
from gst.devices.execute.calls import Call, Step, bind, steps_in_order
from gst.devices.plan import Plan, positions_of_nodes, ranks
from gst.programs import Program, Reference


@dataclass(frozen=True, eq=False)
class Share:
    """One device's part of a plan. Lists are indexed by node and are copied, never changed, by a run.

    Only the thread of the device reads and writes its copies: a value reaches another device by message, so
    no lock is needed.

    Args:
        position: of the device among those of the executor.
        device: the device.
        calls: how to compute each node.
        count: number of operations to run here.
        first: ranks that can run at once, a heap. Rank r is the operation `by_rank[r]`; the least runs first.
        rank: of each node.
        by_rank: node of each rank.
        pending: how many values each operation here waits for.
        consumers: operations here that read the node.
        uses: how many operations here read the node.
        reads: nodes each operation here reads (inputs and constants, which stay, are left out).
        sends: positions of the devices that are told of the value when it is made here.
        forwards: positions of the devices of this memory that get the copy made here of a value from another.
        residents: inputs and constants that are in this memory from the start.
    """

    position: int
    device: Device
    calls: Sequence[Call | None]
    count: int
    first: list[int]
    rank: list[int]
    by_rank: list[int]
    pending: list[int]
    consumers: list[tuple[int, ...]]
    uses: list[int]
    reads: list[tuple[int, ...]]
    sends: list[tuple[int, ...]]
    forwards: list[tuple[int, ...]]
    residents: list[int]


@dataclass(frozen=True, eq=False)
class Schedule:
    """All shares of a plan.

    Args:
        shares: of the devices that have something to do.
        home: position of the device on which each node is placed.
        entries: (input node, position of the device to be told) for inputs needed in another memory.
        in_order: the whole plan as a list of steps if a single device has all of it, else None.
    """

    shares: tuple[Share, ...]
    home: list[int]
    entries: tuple[tuple[int, int], ...]
    in_order: list[Step] | None


def schedule(program: Program, plan: Plan, devices: Sequence[Device]) -> Schedule:
    """Work out who waits for whom.

    Raises:
        ValueError: the plan has another number of nodes than the program, or names a device not in `devices`.
    """
    home = positions_of_nodes(plan, program, devices).tolist()
    by_rank = np.argsort(ranks(plan)).tolist()
    messages, entries = _routes(program, home, devices)
    busy = sorted({home[node] for node, each in enumerate(program.operations) if each.kind == "operation"})
    shares = tuple(_share(program, position, home, by_rank, messages, devices) for position in busy)
    in_order = None
    if len(shares) == 1 and not entries:
        in_order = steps_in_order(program, shares[0].calls, _order(shares[0]))
    return Schedule(shares, home, entries, in_order)


def _routes(
    program: Program, home: Sequence[int], devices: Sequence[Device]
) -> tuple[Mapping[tuple[int, int], tuple[int, ...]], tuple[tuple[int, int], ...]]:
    """Who tells whom of each value: (node, teller) -> devices; and inputs needed in another memory.

    Within the memory where it is made, a value's maker tells every device that needs it. Of each other memory
    one device is told; it copies the value once, and tells the others of its memory.
    """
    needed: dict[int, dict[int, None]] = {}
    for node, operation in enumerate(program.operations):
        for producer in operation.producers:
            if home[node] != home[producer]:
                needed.setdefault(producer, {})[home[node]] = None
    messages: dict[tuple[int, int], tuple[int, ...]] = {}
    entries: list[tuple[int, int]] = []
    for node, places in needed.items():
        kind, maker = program.operations[node].kind, home[node]
        if kind == "constant":
            continue
        by_memory: dict[str, list[int]] = {}
        for place in places:
            by_memory.setdefault(devices[place].memory, []).append(place)
        told = [] if kind == "input" else by_memory.pop(devices[maker].memory, [])
        for memory, (carrier, *others) in by_memory.items():
            if kind == "input" and memory == devices[maker].memory:
                continue
            told.append(carrier)
            if others:
                messages[node, carrier] = tuple(others)
        if kind == "input":
            entries += [(node, carrier) for carrier in told]
        elif told:
            messages[node, maker] = tuple(told)
    return messages, tuple(entries)


def _share(
    program: Program,
    position: int,
    home: Sequence[int],
    by_rank: list[int],
    messages: Mapping[tuple[int, int], tuple[int, ...]],
    devices: Sequence[Device],
) -> Share:
    nodes, memory = program.num_nodes, devices[position].memory
    rank = [0] * nodes
    for number, node in enumerate(by_rank):
        rank[node] = number
    pending, uses = [0] * nodes, [0] * nodes
    consumers: list[list[int]] = [[] for _ in range(nodes)]
    reads: list[tuple[int, ...]] = [()] * nodes
    residents: dict[int, None] = {}
    first: list[int] = []
    here = [n for n, each in enumerate(program.operations) if home[n] == position and each.kind == "operation"]
    for node in here:
        arriving = []
        for producer in program.operations[node].producers:
            kind = program.operations[producer].kind
            if kind == "constant" or (kind == "input" and devices[home[producer]].memory == memory):
                residents[producer] = None
            else:
                arriving.append(producer)
                consumers[producer].append(node)
                uses[producer] += 1
        reads[node] = tuple(arriving)
        pending[node] = len(arriving)
        if not arriving:
            first.append(rank[node])
    heapify(first)
    sends: list[tuple[int, ...]] = [()] * nodes
    forwards: list[tuple[int, ...]] = [()] * nodes
    for (node, teller), told in messages.items():
        if teller == position:
            (sends if home[node] == position else forwards)[node] = told
    calls = bind(program, devices[position].torch_device)
    return Share(
        position, devices[position], calls, len(here), first, rank, by_rank, pending,
        [tuple(each) for each in consumers], uses, reads, sends, forwards, list(residents),
    )  # fmt: skip


def _order(share: Share) -> list[int]:
    """The order in which a device alone runs its operations: of those ready, always the least rank."""
    ready, pending, order = share.first.copy(), share.pending.copy(), []
    while ready:
        node = share.by_rank[heappop(ready)]
        order.append(node)
        for consumer in share.consumers[node]:
            pending[consumer] -= 1
            if not pending[consumer]:
                heappush(ready, share.rank[consumer])
    assert len(order) == share.count, "a program has no cycles"
    return order


def output_nodes(program: Program) -> frozenset[int]:
    """Operations whose values a run returns."""
    nodes = (each.node for each in program.outputs if isinstance(each, Reference))
    return frozenset(node for node in nodes if program.operations[node].kind == "operation")
