"""Portfolio: the plans that need no search, by name. A search never returns a slower one."""

from __future__ import annotations

from functools import partial

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.plan import Plan, priority_of
from gst.machine.devices import overlap
from gst.placement.baselines import units
from gst.placement.baselines.list_schedules import etf, heft, longest_first, mean_transfers_us, moldable, sct
from gst.placement.task import Task
from partitioners import has_metis, partition

WHOLE = 10**8  # sum of the integer weights that METIS is given


def portfolio(task: Task) -> dict[str, Plan]:
    """Return every baseline by name. Each of the `quickest_devices` alone is included, even if it cannot run all; other
    methods are left out if they find no plan within the memory limits.

    Examples:
        >>> from gst.placement.machines import generated_task
        >>> sorted(portfolio(generated_task(0, num_nodes=60, num_devices=2)))[:6]
        ['chunks', 'etf', 'heft', 'metis', 'sct', 'single:gpu:0']
    """
    alone = units.quickest_devices(task).tolist()
    plans: dict[str, Plan | None] = {f"single:{task.names[device]}": single(task, device) for device in alone}
    if len(task.devices) > 1:
        plans |= {
            "chunks": chunks(task), "metis": metis(task), "topo": topo(task),
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
    return units.fitted(task, parts, partial(in_turn, task, parts, profiled_us(task, parts), False))


def topo(task: Task) -> Plan | None:
    """Place by m-TOPO of Baechi (Jeon et al., SoCC 2020): in program order each of the `peers` takes operations until
    it holds its share of all bytes plus the largest operation."""
    parts = units.smallest_units(task)
    size = task.resident_bytes + task.costs.own_bytes.min(0) * task.costs.computed
    return units.fitted(task, parts, partial(in_turn, task, parts, np.bincount(parts.of, size, parts.count), True))


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
    shares = (each / max(each.sum(), 1e-9) for each in (profiled_us(task, parts), transfer[crossing]))
    node_weights, edge_weights = (np.maximum(1, np.rint(WHOLE * each)).astype(np.int64) for each in shares)
    return partition(
        ends[:, crossing], parts.count, num_parts, "metis", seed, node_weights=node_weights, edge_weights=edge_weights
    )


def profiled_us(task: Task, parts: units.Units) -> Float64[np.ndarray, " units"]:
    """Return the time of each unit on the first of the `peers`, or its least time."""
    times = parts.times_us[units.peers(task)[0]]
    return np.where(np.isfinite(times), times, parts.times_us.min(0))


def in_turn(
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
