"""Plans that need no learning. They are always measured, and a search never returns anything worse than them."""

from __future__ import annotations

from functools import partial

import numpy as np
from jaxtyping import Float64, Int64

from gst.devices import Plan, overlap
from gst.devices.plan import priority_of
from gst.placement.baselines.favourite_child import sct
from gst.placement.baselines.fitting import Assignment, Rooms, fitted, quickest, repaired
from gst.placement.baselines.layers import layers
from gst.placement.baselines.list_schedules import Arrays, etf, heft, longest_first, moldable
from gst.placement.baselines.units import Units, colocated, memory_of, peers, smallest_units, units_of
from gst.placement.task import Task
from partitioners import partition

WHOLE = 10**8  # sum of the integer weights that METIS is given


def portfolio(task: Task) -> dict[str, Plan]:
    """Every baseline by name. Each device alone is always there, whether it can run everything or not; another method
    is left out where it finds no plan that keeps the limits of the memories (in simulation)."""
    plans: dict[str, Plan | None] = {f"single:{name}": single(task, device) for device, name in enumerate(task.names)}
    if len(task.devices) > 1:
        plans |= {
            "chunks": chunks(task), "expert": expert(task), "metis": metis(task), "topo": topo(task),
            "heft": heft(task), "etf": etf(task), "sct": sct(task),
        }  # fmt: skip
        if overlap(task.devices):
            plans |= {"heft:narrow": heft(task, narrow=True), "moldable": moldable(task)}
    return {name: plan for name, plan in plans.items() if plan is not None}


def single(task: Task, device: int) -> Plan:
    """Everything on one device."""
    return task.plan(np.full(task.num_nodes, device))


def chunks(task: Task) -> Plan | None:
    """Program order cut into a piece for each of the `peers`, of equal profiled time as far as memories have room."""
    parts = smallest_units(task)
    return fitted(task, parts, partial(_in_turn, task, parts, _times_us(task, parts), False))


def expert(task: Task) -> Plan | None:
    """As a person places by hand: layers (see `layers`) with their backward pass and their updates, consecutive ones on
    the same of the `peers`, in shares of equal profiled time as far as memories have room."""
    parts = units_of(task, layers(task))
    return fitted(task, parts, partial(_in_turn, task, parts, _times_us(task, parts), False))


def topo(task: Task) -> Plan | None:
    """m-TOPO of Baechi (Jeon et al., SoCC 2020): in program order each of the `peers` takes what comes until it holds
    its share of all bytes and as much again as the largest operation."""
    parts = smallest_units(task)
    size = task.resident_bytes + task.costs.own_bytes.min(0) * task.costs.computed
    return fitted(task, parts, partial(_in_turn, task, parts, np.bincount(parts.of, size, parts.count), True))


def metis(task: Task, seed: int = 0) -> Plan | None:
    """METIS (Karypis and Kumar, 1998) over colocation groups weighted by profiled time and edges weighted by the time
    of handing their value over, into 2 parts up to one for each of the `peers`; where a memory is too full groups move
    to others. Of these, in program order and by upward rank, the plan that simulates fastest."""
    parts, devices = colocated(task), peers(task)
    priority = priority_of(longest_first(task))
    plans: list[Plan | None] = []
    for count in range(min(2, len(devices)), min(len(devices), parts.count) + 1):
        found = devices[weighted_metis(task, parts, count, seed)]
        for order in (None, priority):
            plans.append(fitted(task, parts, partial(_repaired_plan, task, parts, found, order)))
    return quickest(task, plans)


def weighted_metis(task: Task, parts: Units, num_parts: int, seed: int) -> Assignment:
    """Part of each unit: equal profiled time, little time of handing values over."""
    pairs = task.costs.edges[:, task.costs.computed[task.costs.edges[0]]]
    ends, transfer = parts.of[pairs], Arrays.of(task).transfer_us[pairs[0]]
    crossing = ends[0] != ends[1]
    shares = (each / max(each.sum(), 1e-9) for each in (_times_us(task, parts), transfer[crossing]))
    node_weights, edge_weights = (np.maximum(1, np.rint(WHOLE * each)).astype(np.int64) for each in shares)
    return partition(
        ends[:, crossing], parts.count, num_parts, "metis", seed, node_weights=node_weights, edge_weights=edge_weights
    )  # fmt: skip


def _times_us(task: Task, parts: Units) -> Float64[np.ndarray, " units"]:
    """Time of each unit on the first of the peers that can run it, otherwise on its fastest device."""
    times = parts.times_us[peers(task)[0]]
    return np.where(np.isfinite(times), times, parts.times_us.min(0))


def _in_turn(task: Task, parts: Units, weights: Float64[np.ndarray, " units"], full: bool, room: Rooms) -> Plan | None:
    """Units in the order of their numbers to one peer after the other, each of which takes its share of the weight, as
    far as its memory has room; what is left then is `repaired`.

    Args:
        full: a share may be exceeded by the heaviest unit, and the last peers may be left with little; otherwise
            devices share out evenly what the ones before have left.
    """
    devices, memory, left = peers(task), memory_of(task), room.copy()
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
    task: Task, parts: Units, assignment: Assignment,
    priority: Int64[np.ndarray, " nodes"] | None, room: Rooms,
) -> Plan | None:  # fmt: skip
    found = repaired(task, parts, assignment, room)
    return None if found is None else task.plan(found[parts.of], priority)
