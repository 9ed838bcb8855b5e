"""The least published latency of a cost graph, by constraint programming: a plan, and a bound for every plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gst.data.cost_graphs import CostGraph
from gst.devices import Plan
from gst.placement.exact import Optimum, solve, solver_library
from gst.placement.published.latency import PublishedRuntime, published_bound
from gst.placement.published.model import PER_MS, PublishedModel, calls, overfull


def published_optimum(
    graph: CostGraph, time_limit_s: float = 60.0, hint: Plan | None = None, contiguous: bool = False, seed: int = 0
) -> Optimum:
    """Search for the plan of least published latency (`gst.placement.published.latency`).

    Without `contiguous` the model is of all plans, and takes a plan for at most what it takes: time along every path,
    transfers into and out of accelerators on that path, branches in one accelerator one after the other, memory and
    colocation. Every plan on the way is judged by the objective itself, so that the result is proved where the best of
    them meets the bound. With `contiguous` the model is the objective itself, of plans with one call per accelerator
    (the contiguous splits of Tarnawski et al. 2020), and so is the bound.

    Args:
        hint: a plan to begin with; the result is never worse if it is admitted.

    Raises:
        ValueError: OR-tools is not installed, or the graph has a backward pass.
    """
    cp, runtime = solver_library(), PublishedRuntime(graph)
    hint_ms = float("inf") if hint is None else float(runtime([hint])[0])
    known = (hint, hint_ms) if hint is not None and np.isfinite(hint_ms) else (None, float("inf"))
    on_accelerator = np.where(np.isfinite(graph.accelerator_ms), graph.accelerator_ms, 0.0)
    slowest = float(np.maximum(graph.cpu_ms, on_accelerator).sum())
    horizon = int(np.ceil(min(known[1], slowest + 2 * float(graph.transfer_ms.sum())) * PER_MS))
    rounding = 4 * graph.num_nodes / PER_MS
    started = time.perf_counter()
    least = max(_merged_bound(cp, graph, horizon, time_limit_s / 4, seed), int(published_bound(graph) * PER_MS))
    if known[1] <= least / PER_MS + rounding:
        return Optimum(known[0], known[1], known[1], True)
    model = PublishedModel(cp, graph, horizon)
    model.cp_model.add(model.span >= least)
    if contiguous:
        calls(model)
    if known[0] is not None:
        model.hint(runtime.home(known[0]))
    judge = _judge(cp, runtime, model)
    solver, status = solve(cp, model.cp_model, max(started + time_limit_s - time.perf_counter(), 1.0), seed, judge)
    plan, objective = min([*judge.found, known], key=lambda each: each[1])
    bound = horizon if status == cp.INFEASIBLE else max(int(solver.best_objective_bound), least)
    return Optimum(plan, objective, min(bound / PER_MS, objective), objective <= bound / PER_MS + rounding)


def _merged_bound(cp: Any, graph: CostGraph, horizon: int, time_limit_s: float, seed: int) -> int:
    """Nanoseconds that no plan takes less than: of the smaller model, which is told of every call that it makes too
    large and asked again, as long as there is time."""
    model, least, started = PublishedModel(cp, graph, horizon, apart=False), 0, time.perf_counter()
    while (left := started + time_limit_s - time.perf_counter()) > 0:
        solver, status = solve(cp, model.cp_model, left, seed)
        if status == cp.INFEASIBLE:
            return horizon
        least = max(least, int(solver.best_objective_bound))
        if status != cp.OPTIMAL:
            break
        trees = overfull(graph, [edge for edge, same in model.same.items() if solver.value(same)])
        if not trees:
            break
        for tree in trees:
            model.cut(tree)
    return least


def _judge(cp: Any, runtime: PublishedRuntime, model: PublishedModel) -> Any:
    """A callback of the solver that asks the objective itself about every plan the solver comes upon."""

    class Judge(cp.CpSolverSolutionCallback):
        found: list[tuple[Plan, float]]

        def __init__(self) -> None:
            super().__init__()
            self.found = []

        def on_solution_callback(self) -> None:
            value: Callable[[Any], int] = self.value
            home = [next((a for a, each in enumerate(group) if value(each)), -1) for group in model.here]
            plan = runtime.plan(np.array(home, np.int64))
            took = float(runtime([plan])[0])
            if np.isfinite(took):
                self.found.append((plan, took))

    return Judge()
