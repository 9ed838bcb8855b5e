"""Simulated plans a second on one core, and the memory of a search, by the size of the task.

    python -m experiments.bench simulations --nodes 2500 --turns 1

The tasks are generated, on eight devices; the plans are that of HEFT with a few operations moved, such as a search asks
about. Links never queue; or copies queue; or they queue, and each memory holds a quarter of all values. Each size runs
in a process of its own.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.bench.child import call
from gst.machine.devices import machine_record
from gst.placement.baselines.list_schedules import heft
from gst.placement.machines import generated_task
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

DEVICES, PLANS, MOVED = 8, 16, 0.02  # devices, plans and the share of operations that each of them moves
SECONDS = 2.0  # of each rate
BUDGET = 50  # plans of the search whose memory is measured
HOLDS = 0.25  # share of all bytes that fit in each memory
CASES = ("links never queue", "copies queue", "limited memory")
HELP = {"nodes": "operations of the tasks", "turns": "processes, the fastest of which counts"}


def run(
    nodes: tuple[int, ...] = (2_500, 10_000, 40_000, 80_000), turns: int = 3, progress: Progress = no_progress
) -> dict[str, Any]:
    """Measure each size.

    Returns:
        `rows`: for each size `nodes`, plans a second of each of `CASES`, and `search_mib`, what a search takes beyond
        one of 1,000 operations.
    """
    rows = []
    for done, size in enumerate(nodes):
        progress(f"simulating {size} operations", done, len(nodes))
        runs = [call("simulations:measured", nodes=size) for _ in range(turns)]
        figures = {key: (min if key == "search_mib" else max)(each[key] for each in runs) for key in runs[0]}
        rows.append({"nodes": size, **figures})
        print(", ".join(f"{key} {value:,.0f}" for key, value in rows[-1].items()))
    return {"rows": rows, "machine": machine_record()}


def task_of(nodes: int, case: str) -> Task:
    """Return a generated task of one of `CASES`."""
    task = generated_task(1, num_nodes=nodes, num_devices=DEVICES)
    costs = task.costs if case == CASES[0] else replace(task.costs, copies_queue=True)
    if case == CASES[2]:
        limit = int(HOLDS * (costs.storages.num_bytes.sum() + task.resident_bytes.sum()))
        costs = replace(costs, devices=tuple(replace(each, memory_limit=limit) for each in costs.devices))
    return replace(task, costs=costs)


def measured(nodes: int) -> dict[str, float]:
    """Return plans a second of each case, and the MiB that a search takes beyond what one of 1,000 operations took."""
    anneal(small := task_of(1_000, CASES[2]), Budgeted(SimulatedObjective(small), BUDGET))  # compiles
    before, figures = _peak_mib(), {}
    base = heft(task_of(nodes, CASES[0]))
    assert base is not None
    generator, plans = np.random.default_rng(0), []
    for _ in range(PLANS):
        moves = generator.random(len(base.placement)) < MOVED
        elsewhere = generator.integers(0, DEVICES, len(base.placement))
        plans.append(replace(base, placement=np.where(moves, elsewhere, base.placement)))
    for case in CASES:
        task = task_of(nodes, case)
        objective = SimulatedObjective(task)
        objective(plans[:1])  # computes once what all plans share
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < SECONDS:
            objective(plans)
            count += len(plans)
        figures[case] = count / passed
    anneal(task, Budgeted(objective, BUDGET))
    return figures | {"search_mib": _peak_mib() - before}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
