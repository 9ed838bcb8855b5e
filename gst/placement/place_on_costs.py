"""Plans by every method on costs alone: made-up machines and published cost graphs. Nothing is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gst.data.cost_graphs import CostGraph
from gst.devices import Log, Plan
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.objective import Objective, SimulatedObjective
from gst.placement.outcome import AS_USUAL, PlacementResult, Settings, check_fits, curves, evaluations, placed_result
from gst.placement.planning import Planned, plan_all
from gst.placement.published.latency import PublishedObjective, published_bound
from gst.placement.published.search import search_published
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress


def place_simulated(
    task: Task,
    out: Path,
    settings: Settings = AS_USUAL,
    progress: Progress = no_progress,
    objective: Objective | None = None,
) -> PlacementResult:
    """Plan by every method on costs alone: a program on a machine that is not here. Nothing is measured.

    Args:
        objective: what simulates; `SimulatedObjective(task)` if None. With fusion the lower bound is of operations one
            by one, which fused ones may pass.

    Raises:
        ValueError: no plan fits the memories (the message says the least that would do), or `out` is of another task.
    """
    simulated = SimulatedObjective(task) if objective is None else objective
    return _place_on_costs(task, simulated, "simulated", lower_bound_us(task) / 1e3, out, settings, progress)


def place_graph(
    graph: CostGraph,
    out: Path,
    settings: Settings = AS_USUAL,
    progress: Progress = no_progress,
) -> PlacementResult:
    """Plan a published cost graph, by its published latency; one with a backward pass, by simulation.

    Raises:
        ValueError: as `place_simulated`.
    """
    task = Task.of_cost_graph(graph)
    if graph.backward.any():
        return place_simulated(task, out, settings, progress)
    return _place_on_costs(
        task, PublishedObjective(graph), "published", published_bound(graph), out, settings, progress,
        lambda: search_published(graph, settings.seed),
    )  # fmt: skip


def _place_on_costs(
    task: Task, objective: Objective, kind: str, bound_ms: float, out: Path, settings: Settings, progress: Progress,
    own_search: Callable[[], Plan] | None = None,
) -> PlacementResult:  # fmt: skip
    """`own_search`, if there is one, knows this kind of runtime; its plan is `contiguous`, where there is a budget."""
    planned = plan_all(
        task, objective, settings.methods, evaluations(settings), settings.tasks, settings.seed,
        Log(out / "searches.jsonl"), progress,
    )  # fmt: skip
    if own_search is not None and settings.budget > 0:
        started = time.perf_counter()
        plan = own_search()
        planned["contiguous"] = Planned(plan, float(objective([plan])[0]), time.perf_counter() - started, 0)
    check_fits(task, planned)
    ran = {name: each.expected_ms for name, each in planned.items() if np.isfinite(each.expected_ms)}
    best = min(ran, key=lambda name: ran[name])
    chosen = planned[best].plan
    assert chosen is not None
    plans = {
        name: {
            "latency": each.expected_ms, "feasible": name in ran, "seconds_to_plan": each.seconds, "measurements": 0,
            "evaluations": each.evaluations,
        }
        for name, each in planned.items()
    }  # fmt: skip
    return PlacementResult(
        task, chosen, placed_result(task, kind, best, ran[best], bound_ms, plans), {"curves": curves(planned)}
    )
