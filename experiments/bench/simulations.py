"""Simulated plans a second on one core, and the memory of a search, by the size of the task.

    python -m experiments.bench.simulations --json experiments/results/simulations.json
    python -m experiments.bench.simulations --nodes 2500 --before ../older --turns 3

The tasks are generated, on eight devices; the plans are that of HEFT with a few operations moved, such as a search asks
about. Links never queue; or copies queue; or they queue, and each memory holds a quarter of all values. Each size runs
in a process of its own. `--before` names a folder with older packages, whose turns alternate with those of these.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gst.machine.devices import machine_record
from gst.placement.baselines.list_schedules import heft
from gst.placement.machines import generated_task
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.util.progress import bar
from gst.util.writing import write_json

DEVICES, PLANS, MOVED = 8, 16, 0.02  # devices, plans and the share of operations that each of them moves
SECONDS = 2.0  # of each rate
BUDGET = 50  # plans of the search whose memory is measured
HOLDS = 0.25  # share of all bytes that fit in each memory
CASES = ("links never queue", "copies queue", "limited memory")


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
        objective(plans[:1])  # finds once what all plans share
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < SECONDS:
            objective(plans)
            count += len(plans)
        figures[case] = count / passed
    anneal(task, Budgeted(objective, BUDGET))
    return figures | {"search_mib": _peak_mib() - before}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(nodes: int, packages: Path) -> dict[str, float]:
    """Return what `measured` does with the packages of a folder."""
    command = [sys.executable, "-P", __file__, "--child", str(nodes)]
    environment = os.environ | {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2500,10000,40000,80000", help="operations of the tasks (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--before", type=Path, help="folder of older packages")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(measured(options.child)))
        return
    trees = {"now": Path(__file__).parents[2]} | ({"before": options.before} if options.before else {})
    sizes = [int(size) for size in options.nodes.split(",")]
    found: dict[str, dict[int, list[dict[str, float]]]] = {tree: {size: [] for size in sizes} for tree in trees}
    for size, _, tree in bar([(size, turn, tree) for size in sizes for turn in range(options.turns) for tree in trees]):
        found[tree][size].append(in_a_process(size, trees[tree]))
    rows: list[dict[str, Any]] = [
        {"nodes": size, "packages": tree}
        | {key: (min if key == "search_mib" else max)(each[key] for each in turns) for key in turns[0]}
        for tree, sizes_of in found.items() for size, turns in sizes_of.items()
    ]  # fmt: skip
    for row in rows:
        print(", ".join(f"{key} {value:,.0f}" if key != "packages" else f"{value:>6}" for key, value in row.items()))
    if options.json:
        write_json(options.json, {"command": " ".join(["python -m experiments.bench.simulations", *sys.argv[1:]]),
                                  "rows": rows, "machine": machine_record()})  # fmt: skip


if __name__ == "__main__":
    main()
