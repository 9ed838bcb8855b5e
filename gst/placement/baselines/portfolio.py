"""Portfolio: the plans that need no search, by name. A search never returns a slower one."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.plan import Plan, priority_of
from gst.machine.devices import overlap
from gst.placement.baselines import units
from gst.placement.baselines.list_schedules import etf, heft, longest_first, mean_transfers_us, moldable, sct
from gst.placement.task import Task
from gst.programs import Program, Reference
from partitioners import has_metis, partition


def neighbours(task: Task) -> tuple[list[list[int]], list[list[int]]]:
    """Return the producers and consumers of every node."""
    producers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    consumers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    for producer, consumer in task.costs.edges.T.tolist():
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    return producers, consumers


def layers(task: Task) -> Int64[np.ndarray, " nodes"]:
    """Return the layer of each node, 0 .. layers - 1 in the order of the forward pass; the backward pass and the update
    of a layer belong to it.

    In a program a layer reads a parameter, or several in parallel. Other operations of the forward pass belong to the
    last layer that they read, those of the backward pass to the first whose gradient they read. In costs without a
    program the layer is the length of the longest path to a node; a colocation group has its least one.
    """
    producers, consumers = neighbours(task)
    depth = _depths(task, producers) if task.program is None else _parameter_layers(task.program, producers, consumers)
    return np.unique(depth, return_inverse=True)[1].astype(np.int64)


def _depths(task: Task, producers: list[list[int]]) -> Int64[np.ndarray, " nodes"]:
    depth = np.zeros(task.num_nodes, np.int64)
    for node, read in enumerate(producers):
        depth[node] = max((depth[each] + 1 for each in read), default=0)
    least = np.full(task.num_groups, task.num_nodes)
    np.minimum.at(least, task.colocation, depth)
    return least[task.colocation]


def _parameter_layers(
    program: Program, producers: list[list[int]], consumers: list[list[int]]
) -> Int64[np.ndarray, " nodes"]:
    home, forward = program.parameter_home.tolist(), _forward(program, producers)
    number: dict[int, int] = {}  # of each parameter, in the order in which they are first read
    entry: list[int] = []  # for each number, the last layer that is read where it is first read
    joined: list[int] = []  # numbers that are one layer with the one before
    depth = [-1] * program.num_nodes
    for node, read in enumerate(producers):
        parameters = [home[each] for each in read if home[each] >= 0]
        values = sorted({depth[each] for each in read if home[each] < 0 and depth[each] >= 0})
        gradients = [depth[each] for each in read if home[each] < 0 and depth[each] >= 0 and not forward[each]]
        if forward[node] and any(each not in number for each in parameters):
            number |= {each: len(entry) for each in parameters if each not in number}
            entry.append(values[-1] if values else -1)
        known = [number[each] for each in parameters if each in number]
        if known:
            depth[node] = max(known)
        elif values:
            depth[node] = min(gradients) if gradients else values[-1]
        if forward[node]:  # side by side: the later one does not need the earlier
            joined += [late for early, late in pairwise(values) if entry[late] < early == late - 1]
    for node in reversed(range(program.num_nodes)):
        if depth[node] < 0:
            depth[node] = min((depth[each] for each in consumers[node] if depth[each] >= 0), default=-1)
    layer = np.cumsum(~np.isin(np.arange(max(len(entry), 1)), joined))
    return np.array([layer[max(number.get(each, depth[node]), 0)] for node, each in enumerate(home)])


def _forward(program: Program, producers: list[list[int]]) -> list[bool]:
    """Return true for nodes that an output needs which renews no parameter, such as the loss."""
    forward = [False] * program.num_nodes
    for output in program.outputs:
        if isinstance(output, Reference) and program.parameter_home[output.node] < 0:
            forward[output.node] = True
    for node in reversed(range(program.num_nodes)):
        if forward[node]:
            for producer in producers[node]:
                forward[producer] = True
    return forward


WHOLE = 10**8  # sum of the integer weights that METIS is given


def portfolio(task: Task) -> dict[str, Plan]:
    """Return every baseline by name. Each of the `quickest_devices` alone is included, even if it cannot run all; other
    methods are left out if they find no plan within the memory limits.

    Examples:
        >>> from gst.placement.machines import generated_task
        >>> sorted(portfolio(generated_task(0, num_nodes=60, num_devices=2)))[:6]
        ['chunks', 'etf', 'expert', 'heft', 'metis', 'sct']
    """
    alone = units.quickest_devices(task).tolist()
    plans: dict[str, Plan | None] = {f"single:{task.names[device]}": single(task, device) for device in alone}
    if len(task.devices) > 1:
        plans |= {
            "chunks": chunks(task), "expert": expert(task), "metis": metis(task), "topo": topo(task),
            "heft": heft(task), "etf": etf(task), "sct": sct(task),
        }  # fmt: skip
        if overlap(task.devices):
            plans |= {"heft:narrow": heft(task, narrow=True), "moldable": moldable(task)}
    return {name: plan for name, plan in plans.items() if plan is not None}


def single(task: Task, device: int) -> Plan:
    """Place everything on one device."""
    return task.plan(np.full(task.num_nodes, device))


def chunks(task: Task) -> Plan | None:
    """Cut program order into a piece of equal profiled time for each of the `peers`, as far as memories have room."""
    parts = units.smallest_units(task)
    return units.fitted(task, parts, partial(_in_turn, task, parts, _times_us(task, parts), False))


def expert(task: Task) -> Plan | None:
    """Place as a person does by hand: consecutive `layers`, with their backward pass and updates, in shares of equal
    profiled time on the `peers`, as far as memories have room."""
    parts = units.units_of(task, layers(task))
    return units.fitted(task, parts, partial(_in_turn, task, parts, _times_us(task, parts), False))


def topo(task: Task) -> Plan | None:
    """Place by m-TOPO of Baechi (Jeon et al., SoCC 2020): in program order each of the `peers` takes operations until
    it holds its share of all bytes plus the largest operation."""
    parts = units.smallest_units(task)
    size = task.resident_bytes + task.costs.own_bytes.min(0) * task.costs.computed
    return units.fitted(task, parts, partial(_in_turn, task, parts, np.bincount(parts.of, size, parts.count), True))


def metis(task: Task, seed: int = 0) -> Plan | None:
    """Partition colocation groups by METIS (Karypis and Kumar, 1998), into 2 parts up to one for each of the `peers`.

    Groups are weighted by profiled time, edges by transfer time. The plan that simulates fastest is returned, in
    program order or by upward rank; None without pymetis.
    """
    if not has_metis():
        return None
    parts, devices = units.colocated(task), units.peers(task)
    priority = priority_of(longest_first(task))
    plans: list[Plan | None] = []
    for count in numbers_of_parts(min(len(devices), parts.count)):
        found = devices[weighted_metis(task, parts, count, seed)]
        for order in (None, priority):
            plans.append(units.fitted(task, parts, partial(_repaired_plan, task, parts, found, order)))
    return units.quickest(task, plans)


def numbers_of_parts(most: int) -> list[int]:
    """Return 2, 3, ... 16, then each half as many again, and the most.

    Examples:
        >>> numbers_of_parts(3), numbers_of_parts(60)[14:]
        ([2, 3], [16, 24, 36, 54, 60])
    """
    numbers = list(range(2, min(most, 16) + 1))
    while numbers and numbers[-1] * 3 // 2 < most:
        numbers.append(numbers[-1] * 3 // 2)
    return sorted({*numbers, most})


def weighted_metis(task: Task, parts: units.Units, num_parts: int, seed: int) -> units.Assignment:
    """Return the part of each unit: equal profiled time, little transfer time."""
    pairs = task.costs.edges[:, task.costs.computed[task.costs.edges[0]]]
    ends, transfer = parts.of[pairs], mean_transfers_us(task)[pairs[0]]
    crossing = ends[0] != ends[1]
    shares = (each / max(each.sum(), 1e-9) for each in (_times_us(task, parts), transfer[crossing]))
    node_weights, edge_weights = (np.maximum(1, np.rint(WHOLE * each)).astype(np.int64) for each in shares)
    return partition(
        ends[:, crossing], parts.count, num_parts, "metis", seed, node_weights=node_weights, edge_weights=edge_weights
    )


def _times_us(task: Task, parts: units.Units) -> Float64[np.ndarray, " units"]:
    times = parts.times_us[units.peers(task)[0]]
    return np.where(np.isfinite(times), times, parts.times_us.min(0))


def _in_turn(
    task: Task, parts: units.Units, weights: Float64[np.ndarray, " units"], full: bool, room: units.Rooms
) -> Plan | None:
    """Give units in order to one peer after the other, a share of the weight each, as far as its memory has room. If
    `full`, the heaviest unit may exceed a share; otherwise devices share out evenly what earlier ones left."""
    devices, memory, left = units.peers(task), units.memory_of(task), room.copy()
    assignment = np.full(parts.count, devices[-1])
    first = 0
    for number, device in enumerate(devices):
        rest = weights[first:]
        if full:
            allowed = np.cumsum(rest) <= weights.sum() / len(devices) + weights.max()
        else:
            allowed = np.cumsum(rest) - rest / 2 <= rest.sum() / (len(devices) - number)
        allowed &= np.cumsum(parts.load_bytes[first:]) <= left[memory[device]]
        end = first + int(np.logical_and.accumulate(allowed).sum())
        assignment[first:end] = device
        left[memory[device]] -= parts.load_bytes[first:end].sum()
        first = end
    return _repaired_plan(task, parts, assignment, None, room)


def _repaired_plan(
    task: Task,
    parts: units.Units,
    assignment: units.Assignment,
    priority: Int64[np.ndarray, " nodes"] | None,
    room: units.Rooms,
) -> Plan | None:
    found = units.repaired(task, parts, assignment, room)
    return None if found is None else task.plan(found[parts.of], priority)
