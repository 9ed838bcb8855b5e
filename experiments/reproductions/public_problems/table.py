"""MSR's layer graphs: human experts, our plans, and certificates of these by lower bounds, in milliseconds.

    python -m experiments.reproductions.public_problems.table --json experiments/results/public_graphs.json

Two objectives: the published latency (graphs for inference; Tarnawski et al., NeurIPS 2020), and the makespan of the
simulator. `expert` is the published split. No split fits the accelerators that the files state, so `with_means` is
the best plan of our search with accelerators as many and as large as the expert uses. `search` is the search by the
published latency with the accelerators of the file (median of the seeds), `path` its lower bound.

`annealing` is the best simulated makespan of the seeds with `--evaluations` each, from the portfolio on. `chains` and
`branches` are lower bounds of it: chains and work, and branch and bound over placements with `--seconds` of search.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.public_problems.branching import branched_bound
from experiments.reproductions.public_problems.cost_graphs import (
    CostGraph,
    read_cost_graph,
    read_split,
    task_of_cost_graph,
)
from experiments.reproductions.public_problems.placing import placing_of
from experiments.reproductions.public_problems.published import PublishedObjective, published_bound, search_published
from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.util.progress import bar

DATA = Path("../shared/data/placement")
PROVED = 1e-6  # gap up to which a plan counts as optimal


def published(graph: CostGraph, expert: Plan, seeds: int, steps: int) -> dict[str, float]:
    """Return the published latency of the expert's split, of our plans, and its lower bound."""
    objective, with_means = PublishedObjective(graph), _with_means(graph, expert)
    latency = PublishedObjective(with_means)
    plans = [search_published(graph, seed, steps) for seed in range(seeds)]
    return {
        "expert": float(latency([expert])[0]),
        "with_means": float(latency([search_published(with_means, 0, steps, [expert])])[0]),
        "search": float(np.median(objective(plans))),
        "path": published_bound(graph),
    }


def simulated(graph: CostGraph, seeds: int, evaluations: int, seconds: float) -> dict[str, Any]:
    """Return the simulated makespan of the best plan, and the certificate of it."""
    task = task_of_cost_graph(graph)
    least_ms = np.inf
    for seed in range(seeds):
        objective = Budgeted(SimulatedObjective(task), evaluations)
        anneal(task, objective, seed, start=list(portfolio(task).values()))
        least_ms = min(least_ms, objective.best_ms)
    chains_us = lower_bound_us(task)
    branched = branched_bound(placing_of(task), chains_us, 1e3 * least_ms, seconds)
    bound_ms = max(chains_us, branched.bound) / 1e3
    return {
        "annealing": least_ms, "chains": chains_us / 1e3, "branches": branched.bound / 1e3,
        "proved": bool(least_ms <= bound_ms * (1 + PROVED)),
    }  # fmt: skip


def _with_means(graph: CostGraph, plan: Plan) -> CostGraph:
    """Return the graph with accelerators as many and as large as the plan uses."""
    names = [plan.devices[place] for place in np.unique(plan.placement)]
    used = np.bincount(plan.placement, graph.sizes, len(plan.devices))
    largest = max((used[plan.devices.index(name)] for name in names if name.startswith("accelerator")), default=0.0)
    count = sum(name.startswith("accelerator") for name in names)
    memory, accelerators = max(graph.memory_limit, float(largest)), max(graph.num_accelerators, count)
    return replace(graph, memory_limit=memory, num_accelerators=accelerators)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study; graphs whose results are in the file already are left as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published graphs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150_000, help="of the search by the published latency, a seed")
    parser.add_argument("--evaluations", type=int, default=2_000, help="of annealing on the simulator, a seed")
    parser.add_argument("--seconds", type=float, default=20.0, help="of branch and bound, a graph")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/public_graphs.json"))
    options = parser.parse_args(arguments)
    paths = sorted(options.data.glob("*_layer_graphs/*.json"))
    if not paths:
        raise SystemExit(f"{options.data} has no *_layer_graphs/*.json; give the published folder by --data")
    result = json.loads(options.json.read_text()) if options.json.exists() else {"graphs": {}}
    for path in bar(paths, desc="graphs"):
        graph, name = read_cost_graph(path), f"{path.parent.name.split('_')[0]} {path.stem}"
        if name in result["graphs"]:
            continue
        row = {"layers": graph.num_nodes, "accelerators": graph.num_accelerators}
        row |= simulated(graph, options.seeds, options.evaluations, options.seconds)
        split = options.data / "human_experts" / f"{path.stem}_expert.json"
        if name.startswith("latency") and split.exists():
            row |= published(graph, read_split(split, graph), options.seeds, options.steps)
        result["graphs"][name] = row
        result |= {"command": "python -m experiments.reproductions.public_problems.table", "machine": machine_record()}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
