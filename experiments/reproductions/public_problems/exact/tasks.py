"""Optimal plans of small tasks, placement and order together, and bounds, by constraint programming."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.exact.solver import Optimum, first_come, solve, solver_library
from gst.lowering.plan import Plan
from gst.machine.devices import core_use
from gst.placement.task import Task

PER_US = 1e3
"""The solver counts in whole nanoseconds, rounded down, so that its bound holds."""

ROUNDING = 1e-9  # share by which sums of times may differ


def optimum(
    task: Task, time_limit_s: float = 60.0, hint: Plan | None = None, seed: int = 0, least_us: float = 0.0,
    most_us: float = np.inf,
) -> Optimum:  # fmt: skip
    """Placement and order together, for a machine on which operations cost each other nothing: an operation takes its
    time alone, a value its transfer, and cores do one operation at a time. Where `costs.copies_queue`, each memory
    sends one value at a time, to each other memory once; elsewhere transfers do not wait for each other.

    Schedules that leave a device idle for something urgent are among those searched. A `Simulator` never waits, so
    that it may take longer with the plan's priorities than `objective_ms`; it never takes less than `bound_ms`.
    Colocation groups of costs without a program are placed as one. Of memory only what is resident counts.

    Args:
        hint: a plan to begin with.
        least_us: what is known that no plan takes less than.
        most_us: what is known that some plan takes, which fits.

    Raises:
        ValueError: OR-tools is not installed, or no placement fits.
    """
    cp, task = solver_library(), task.taken_apart()
    model, costs = cp.CpModel(), task.costs
    placed = _placements(model, task)
    times = np.where(np.isfinite(task.times_us), np.floor(task.times_us * PER_US), 0).astype(np.int64)
    nodes = [int(node) for node in np.flatnonzero(costs.computed)]
    edges = costs.edges[:, costs.computed[costs.edges[0]] & costs.computed[costs.edges[1]]]
    horizon = int(times.max(0).sum() + sum(_moved(costs, int(node)).max() for node in edges[0]))
    horizon = int(min(horizon, most_us * PER_US + 1))
    start = {node: model.new_int_var(0, horizon, "") for node in nodes}
    span = model.new_int_var(min(int(least_us * PER_US * (1 - ROUNDING)), horizon), horizon, "")
    took = {
        node: sum(int(each[node]) * here for each, here in zip(times, placed[task.colocation[node]], strict=True))
        for node in nodes
    }
    for node in nodes:
        model.add(start[node] + took[node] <= span)
    for producer, consumer in edges.T.tolist():
        groups = (placed[task.colocation[producer]], placed[task.colocation[consumer]])
        moved = np.zeros_like(costs.latency_us, np.int64) if costs.copies_queue else _moved(costs, producer)
        _precede(model, start[producer] + took[producer], start[consumer], *groups, moved)
    if costs.copies_queue:
        _send_in_turn(model, task, placed, edges, {node: start[node] + took[node] for node in nodes}, start, horizon)
    _one_at_a_time(model, task, placed, times, start, span, nodes)
    model.minimize(span)
    if hint is not None:
        _hint(model, task, placed, hint)
    solver, status = solve(cp, model, time_limit_s, seed)
    if status == cp.INFEASIBLE:
        raise ValueError(f"no placement of {task.name} fits the memory of its devices")
    bound = solver.best_objective_bound / PER_US / 1e3
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return Optimum(None, float("inf"), bound, False)
    assignment = np.array([[solver.value(here) for here in group] for group in placed]).argmax(1)
    begin = np.zeros(task.num_nodes)
    begin[nodes] = [solver.value(start[node]) for node in nodes]
    plan = task.plan_of_groups(assignment, -np.argsort(np.argsort(begin, kind="stable")))
    return Optimum(plan, replayed_us(task, plan) / 1e3, bound, status == cp.OPTIMAL)


def replayed_us(task: Task, plan: Plan) -> float:
    """Return the microseconds of a plan whose cores keep to the order of its priorities, a topological order. An
    operation begins as soon as its cores are free and its values are there. Copies that queue leave
    in the order in which the operations that make them begin, those of one value in that of their first readers.

    Raises:
        ValueError: the plan has no priorities.
    """
    if plan.priority is None:
        raise ValueError("a plan without priorities has no order to be replayed in")
    costs, use = task.costs, core_use(task.devices)
    producers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    consumers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    for producer, consumer in sorted(costs.edges.T.tolist()):
        if costs.computed[producer]:
            producers[consumer].append(producer)
            consumers[producer].append(consumer)
    memory = [device.memory for device in task.devices]
    lane: dict[str, float] = dict.fromkeys(memory, 0.0)
    arrival: dict[tuple[int, str], float] = {}
    free, end = np.zeros(use.shape[1]), np.zeros(task.num_nodes)
    for node in np.argsort(-plan.priority, kind="stable").tolist():
        if not costs.computed[node]:
            continue
        here = plan.placement[node]
        begin = float(free[use[here]].max())
        for producer in producers[node]:
            there = plan.placement[producer]
            if costs.copies_queue and memory[there] != memory[here]:
                begin = max(begin, arrival[producer, memory[here]])
                continue
            moved = costs.latency_us[there, here] + costs.output_bytes[producer] / costs.bytes_per_us[there, here]
            begin = max(begin, end[producer] + moved)
        end[node] = begin + task.times_us[here, node]
        free[use[here]] = end[node]
        for consumer in consumers[node] if costs.copies_queue else ():
            there = plan.placement[consumer]
            if memory[there] != memory[here] and (node, memory[there]) not in arrival:
                moved = costs.latency_us[here, there] + costs.output_bytes[node] / costs.bytes_per_us[here, there]
                lane[memory[here]] = max(lane[memory[here]], end[node]) + moved
                arrival[node, memory[there]] = lane[memory[here]]
    return float(end.max(initial=0.0))


def _placements(model: Any, task: Task) -> list[list[Any]]:
    """For each group a literal for each device."""
    placed = [[model.new_bool_var("") for _ in task.devices] for _ in range(task.num_groups)]
    resident = np.bincount(task.colocation, task.resident_bytes, task.num_groups).astype(np.int64)
    for group in placed:
        model.add_exactly_one(group)
    for device, times in enumerate(task.times_us):
        for group in np.unique(task.colocation[np.isinf(times)]):
            model.add(placed[group][device] == 0)
    for memory, limit in task.memories.items():
        if limit is not None:
            here = [number for number, device in enumerate(task.devices) if device.memory == memory]
            model.add(sum(int(size) * placed[g][d] for g, size in enumerate(resident) for d in here) <= limit)
    if len(task.devices) > 1 and _alike(task):
        first_come(model, placed)
    return placed


def _alike(task: Task) -> bool:
    """True if two devices are interchangeable."""
    apart = ~np.eye(len(task.devices), dtype=bool)
    return (
        bool((task.times_us == task.times_us[0]).all())
        and core_use(task.devices).sum(0).max() == 1
        and len(set(task.memories.values())) == 1
        and all(len(np.unique(each[apart])) == 1 for each in (task.costs.latency_us, task.costs.bytes_per_us))
    )


def _moved(costs: Any, node: int) -> Int64[np.ndarray, "devices devices"]:
    """Nanoseconds to hand over the value of a node, rounded down."""
    taken: Float64[np.ndarray, "devices devices"] = costs.latency_us + costs.output_bytes[node] / costs.bytes_per_us
    return np.floor(taken * PER_US).astype(np.int64)


def _precede(
    model: Any, end: Any, start: Any, here: Sequence[Any], there: Sequence[Any],
    moved: Int64[np.ndarray, "devices devices"],
) -> None:  # fmt: skip
    model.add(end <= start)
    for duration in np.unique(moved[moved > 0]).tolist():
        crosses = model.new_bool_var("")
        for device, goes in enumerate(moved == duration):
            if goes.any():
                model.add(here[device] + sum(there[other] for other in np.flatnonzero(goes).tolist()) <= 1 + crosses)
        model.add(end + duration * crosses <= start)


def _send_in_turn(
    model: Any, task: Task, placed: Sequence[Sequence[Any]], edges: Int64[np.ndarray, "2 edges"], end: dict[int, Any],
    start: dict[int, Any], horizon: int,
) -> None:  # fmt: skip
    """Each value is sent once to each memory where it is read; a memory sends one at a time."""
    memories = [
        [number for number, device in enumerate(task.devices) if device.memory == memory] for memory in task.memories
    ]
    lies = [[model.new_bool_var("") for _ in memories] for _ in placed]  # of each group, whether it is in each memory
    for group, literals in zip(placed, lies, strict=True):
        for devices, literal in zip(memories, literals, strict=True):
            model.add(sum(group[device] for device in devices) == literal)
    lanes: list[list[Any]] = [[] for _ in memories]
    for producer in np.unique(edges[0]).tolist():
        moved, made = _moved(task.costs, producer), lies[task.colocation[producer]]
        for here, there in permutations(range(len(memories)), 2):
            duration = int(moved[np.ix_(memories[here], memories[there])].min())
            crosses, begin = model.new_bool_var(""), model.new_int_var(0, horizon, "")
            lanes[here].append(model.new_optional_fixed_size_interval_var(begin, duration, crosses, ""))
            model.add(end[producer] <= begin)
            for consumer in edges[1, edges[0] == producer].tolist():
                read = lies[task.colocation[consumer]][there]
                model.add(made[here] + read <= 1 + crosses)
                model.add(begin + duration <= start[consumer]).only_enforce_if([made[here], read])
    for lane in lanes:
        model.add_no_overlap(lane)


def _one_at_a_time(
    model: Any, task: Task, placed: Sequence[Sequence[Any]], times: Int64[np.ndarray, "devices nodes"],
    start: dict[int, Any], span: Any, nodes: Sequence[int],
) -> None:  # fmt: skip
    for core in core_use(task.devices).T:
        parts = [
            (int(times[device, node]), start[node], placed[task.colocation[node]][device])
            for device in np.flatnonzero(core).tolist()
            for node in nodes
        ]
        model.add_no_overlap([model.new_optional_fixed_size_interval_var(s, t, here, "") for t, s, here in parts])
        model.add(sum(t * here for t, _, here in parts) <= span)


def _hint(model: Any, task: Task, placed: Sequence[Sequence[Any]], hint: Plan) -> None:
    first = np.unique(task.colocation, return_index=True)[1]
    names = [hint.devices[position] for position in hint.placement[first]]
    where = [task.names.index(name) for name in names]
    if len(task.devices) > 1 and _alike(task):
        number = {device: rank for rank, device in enumerate(dict.fromkeys(where))}  # as `first_come` wants it
        where = [number[device] for device in where]
    for group, position in zip(placed, where, strict=True):
        for device, here in enumerate(group):
            model.add_hint(here, device == position)
