"""Annealing of giant tasks: windows of the schedule compared with whole plans in twice the time.

    python -m experiments.bench windows --nodes 2000 --devices 2,4

The tasks are generated, and the simulator judges every plan. All variants start from the plans of HEFT and ETF.
"""

from __future__ import annotations

import statistics
import time
from typing import Any
from unittest.mock import patch

from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.list_schedules import etf, heft
from gst.placement.machines import generated_task
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search import annealing
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

WARM_UP = 50  # plans of a run that compiles
TIMES = 2.0  # CPU time of annealing whole plans over that of windows, at least


HELP = {"nodes": "of each task, about", "devices": "of each task", "budget": "simulated plans with windows"}


def run(
    nodes: int = 10_000, devices: tuple[int, ...] = (2, 4, 6, 8), budget: int = 200, progress: Progress = no_progress
) -> dict[str, Any]:
    """Anneal one task for each number of devices, its position being the seed of the task and of the search.

    Returns:
        `tasks`: a row for each task with makespans in milliseconds (`heft_ms`, `etf_ms`, `windows_ms`, `whole_ms`, and
        the lower bound `bound_ms`) and CPU seconds (`windows_s`, and `TIMES` as many or more in `whole_s`); `geomean`:
        ratios of makespans to those of windows.

    Raises:
        ValueError: the tasks are too small for windows.
    """
    if nodes < annealing.MANY:
        raise ValueError(f"{nodes} operations; windows are annealed from {annealing.MANY} on")
    _compared(generated_task(0, num_nodes=2 * annealing.MANY, num_devices=2), WARM_UP, 0)  # compiles
    rows = []
    for seed, count in enumerate(devices):
        progress("annealing tasks", seed, len(devices))
        rows.append(_compared(generated_task(seed, num_nodes=nodes, num_devices=count), budget, seed))
    progress("annealing tasks", len(devices), len(devices))
    ratios = {
        f"{name}_over_windows": statistics.geometric_mean(row[f"{name}_ms"] / row["windows_ms"] for row in rows)
        for name in ("heft", "etf", "whole")
    }
    return {"tasks": rows, "geomean": ratios, "budget": budget, "machine": machine_record()}


def _compared(task: Task, budget: int, seed: int) -> dict[str, Any]:
    simulated = SimulatedObjective(task)
    starts = {"heft": heft(task), "etf": etf(task)}
    list_ms = {name: float(simulated([plan])[0]) for name, plan in starts.items() if plan is not None}
    plans = [plan for plan in starts.values() if plan is not None]
    windows_ms, windows_s, _ = _annealed(task, budget, seed, plans)
    with patch.object(annealing, "MANY", task.num_nodes + 1):
        whole_ms, whole_s, whole_plans = _annealed(task, budget, seed, plans)
        while whole_s < TIMES * windows_s:
            more = int(1.1 * whole_plans * TIMES * windows_s / whole_s)
            whole_ms, whole_s, whole_plans = _annealed(task, more, seed, plans)
    return {
        "seed": seed, "num_nodes": task.num_nodes, "num_devices": len(task.devices),
        "heft_ms": list_ms["heft"], "etf_ms": list_ms["etf"], "windows_ms": windows_ms, "windows_s": windows_s,
        "bound_ms": lower_bound_us(task) / 1e3, "whole_ms": whole_ms, "whole_s": whole_s, "whole_plans": whole_plans,
    }  # fmt: skip


def _annealed(task: Task, budget: int, seed: int, start: list[Plan]) -> tuple[float, float, int]:
    """Return the makespan in milliseconds, the CPU seconds, and the number of simulated plans."""
    objective, started_s = Budgeted(SimulatedObjective(task), budget), time.process_time()
    annealing.anneal(task, objective, seed, start=start)
    return objective.best_ms, time.process_time() - started_s, objective.num_asked
