"""Proofs that no plan of a published problem takes less: bounds in turn, and the plans that their solvers come upon."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from experiments.reproductions.public_problems.annealing import anneal
from experiments.reproductions.public_problems.bounds import alike, lower_bound, searched_bound
from experiments.reproductions.public_problems.certificate import BRANCHES, EXACT, MOST_BRANCHED, SHARE, is_exact
from experiments.reproductions.public_problems.exact.solver import solver_library
from experiments.reproductions.public_problems.integer_program import solve
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.schedules import Schedule
from gst.placement.baselines.arrays import moved

NEAR = 1e-9  # share by which times that are equal may differ
MOST_ANNEALED_S = 2.0  # seconds for the plan of the mixed-integer program
INTEGER = "mixed-integer program"
SOLVERS = {INTEGER: "highs", EXACT: "cp-sat"}  # name of a plan that comes of a proof


class Proof(NamedTuple):
    """Proof of a problem: its bound and the best plan found on the way.

    Args:
        bound: what no plan is below, in `problem.graph.unit`.
        bound_by: the method that proved it; empty if none proved more than was known.
        plans: that solvers came upon, by the name of the solver.
    """

    bound: float
    bound_by: str
    plans: dict[str, Schedule]


def prove(problem: Problem, plan: Schedule, bound: float, seconds: float, seed: int = 0) -> Proof:
    """A better bound than the one that is known: of a mixed-integer program, by branch and bound over placements, and
    by CP-SAT where the problem is small, one after the other until one meets the best plan or the time is over.

    Args:
        plan: the best that is known.
        bound: what is known that no plan is below.
        seconds: of all together.
        seed: of CP-SAT.
    """
    started, by = time.perf_counter(), ""
    plans: dict[str, Schedule] = {}
    exact = is_exact(problem.num_nodes, len(problem.devices))

    def left() -> float:
        return seconds - (time.perf_counter() - started)

    for method in (INTEGER, BRANCHES, EXACT):
        if plan.makespan <= bound * (1 + NEAR) or left() <= 0:
            break
        better: Schedule | None = None
        if method == EXACT:
            found, better = proved_bound(problem, left(), plan, seed, bound)
        elif method == BRANCHES:
            if problem.num_nodes > MOST_BRANCHED:
                continue
            share = SHARE if exact else 1.0
            found = searched_bound(problem, bound, plan.makespan, share * left()).bound
        else:
            found, better = solve(problem, left() / 2)
            if better is not None and not better.reason and left() > 0:  # the program knows no order of operations
                better, _ = anneal(problem, better, min(MOST_ANNEALED_S, left() / 4), seed=seed)
        if found > bound * (1 + NEAR):
            bound, by = found, method
        if better is not None and not better.reason:
            plans[SOLVERS[method]] = better
            plan = min(plan, better, key=lambda each: each.makespan)
    return Proof(bound, by, plans)


def proved_bound(
    problem: Problem, seconds: float, hint: Schedule | None = None, seed: int = 0, least: float = 0.0
) -> tuple[float, Schedule | None]:
    """Return the lower bound of CP-SAT and the best plan that it found. Both are 0 and None where ortools is missing,
    the problem is too large (`is_exact`), or there is no time.

    Args:
        hint: a plan to begin with.
        least: what is known that no plan is below.
    """
    if seconds <= 0 or not is_exact(problem.num_nodes, len(problem.devices)):
        return 0.0, None
    cp = solver_library()
    arrays, devices, nodes = problem.arrays, range(len(problem.devices)), range(problem.num_nodes)
    slowest = float(np.where(np.isfinite(arrays.times), arrays.times, 0).max(0).sum()) + sum(
        float(_most_moved(problem, edge)) for edge in range(len(arrays.amounts))
    )
    unit = max(slowest, 1e-300) / 2**40  # times are whole numbers of this, rounded down, so that the bound holds
    whole = lambda value: int(value / unit)  # noqa: E731
    model: Any = cp.CpModel()
    known = max(lower_bound(problem), least)
    horizon = 2**40 if hint is None else min(2**40, whole(hint.makespan * problem.graph.scale) + len(nodes) + 1)
    here = [[model.new_bool_var("") for _ in devices] for _ in arrays.sizes]
    start = [model.new_int_var(0, horizon, "") for _ in nodes]
    span = model.new_int_var(min(whole(known * problem.graph.scale * (1 - NEAR)), horizon), horizon, "")
    of = [here[group] for group in arrays.groups.tolist()]
    took = [
        sum(whole(arrays.times[d, n]) * of[n][d] for d in devices if np.isfinite(arrays.times[d, n])) for n in nodes
    ]
    for literals in here:
        model.add_exactly_one(literals)
    for device in devices:
        for node in np.flatnonzero(np.isinf(arrays.times[device])).tolist():
            model.add(of[node][device] == 0)
        if np.isfinite(arrays.limits[device]):
            model.add(sum(int(size) * each[device] for size, each in zip(arrays.sizes, here, strict=True))
                      <= int(arrays.limits[device]))  # fmt: skip
        parts = [n for n in nodes if 0 < arrays.times[device, n] < np.inf]
        model.add_no_overlap([
            model.new_optional_fixed_size_interval_var(start[n], whole(arrays.times[device, n]), of[n][device], "")
            for n in parts
        ])  # fmt: skip
        model.add(sum(whole(arrays.times[device, n]) * of[n][device] for n in parts) <= span)
    classes = alike(problem)
    for one, other in pairwise(devices):  # of devices alike, the first takes the first group
        if classes[one] == classes[other]:
            for group in range(len(here)):
                model.add(here[group][other] <= sum(here[earlier][one] for earlier in range(group)))
    for node in nodes:
        model.add(start[node] + took[node] <= span)
        for position in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
            producer, edge = int(arrays.producers[position]), int(arrays.in_edges[position])
            model.add(start[producer] + took[producer] <= start[node])
            _add_transfers(model, problem, edge, of[producer], of[node], start[producer] + took[producer], start[node],
                           whole)  # fmt: skip
    if hint is not None:
        _add_hint(model, problem, hint, here, start, whole)
    model.minimize(span)
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, 1
    solver.parameters.random_seed = seed % 2**31
    status = solver.solve(model)
    bound = max(solver.best_objective_bound, 0.0) * unit / problem.graph.scale
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return (0.0 if status == cp.MODEL_INVALID or hint is None else min(bound, hint.makespan)), None
    home = np.array([[solver.value(each) for each in of[node]] for node in nodes]).argmax(1)
    begin = np.array([solver.value(each) for each in start], np.float64)
    return bound, Schedule(problem, home, np.argsort(begin, kind="stable"))


def _most_moved(problem: Problem, edge: int) -> float:
    """The longest time that an edge takes between two devices."""
    arrays = problem.arrays
    if len(arrays.table):
        return float(arrays.table[edge].max())
    return float((arrays.fixed + arrays.amounts[edge] * arrays.per_amount).max())


def _add_transfers(
    model: Any, problem: Problem, edge: int, here: list[Any], there: list[Any], end: Any, start: Any, whole: Any
) -> None:
    devices = range(len(problem.devices))
    durations: dict[int, list[tuple[int, int]]] = {}
    for one in devices:
        for other in devices:
            if duration := whole(moved(edge, one, other, problem.arrays)):
                durations.setdefault(duration, []).append((one, other))
    for duration, pairs in durations.items():
        crosses = model.new_bool_var("")
        for one in {one for one, _ in pairs}:
            model.add(here[one] + sum(there[other] for first, other in pairs if first == one) <= 1 + crosses)
        model.add(end + duration * crosses <= start)


def _add_hint(
    model: Any, problem: Problem, hint: Schedule, here: list[list[Any]], start: list[Any], whole: Any
) -> None:
    """Devices alike are numbered by their first groups, as the model wants them."""
    classes, leader = alike(problem), np.unique(problem.arrays.groups, return_index=True)[1]
    homes = hint.home[leader].tolist()
    rename: dict[int, int] = {}
    for number in range(int(classes.max()) + 1):
        mine = np.flatnonzero(classes == number).tolist()
        used = [each for each in dict.fromkeys(homes) if each in mine]
        rename |= dict(zip([*used, *(each for each in mine if each not in used)], mine, strict=True))
    for group, literals in enumerate(here):
        for device, literal in enumerate(literals):
            model.add_hint(literal, int(rename[homes[group]] == device))
    for node, variable in enumerate(start):
        model.add_hint(variable, whole(hint.begin[node]))
